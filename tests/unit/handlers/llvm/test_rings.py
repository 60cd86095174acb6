"""Emitting of records by generated code, from threads and signal handlers, while a reader reads."""

import ctypes
import threading

import numpy as np
import pytest
from llvmlite import ir

from anyprobe.core.arrays import among
from anyprobe.data.aggregates.records import Field, RecordType
from anyprobe.data.readers import rings
from anyprobe.data.readers.rings import (
    CONSUMED,
    FULL,
    HEAD_BYTES,
    MARGIN,
    PRODUCED,
    RETIRED,
    ROW_BYTES,
    RingLayout,
    RingReader,
)
from anyprobe.handlers.llvm.updates import emit
from support import inprocess

FOUR = RecordType("four", (Field("step"), Field("value"), Field("low", "u32"), Field("sign", "i16"), Field("thread")))


class Ring:
    """Rings in memory of ours, and the code that emits a record of four fields and the thread."""

    def __init__(self, layout, *, now=True):
        self.layout = layout
        self.region = inprocess.Region(layout.size)

        def build(builder, base, thread, value, step):
            emit(builder, layout, base, thread, [step, value, value, value, thread], None if now else step)

        self.code = inprocess.Compiled(4, build)
        self.reader = RingReader(self.region.view, layout)

    def emit(self, step, value=0, thread=1):
        self.code.call(self.region.address, thread, value, step)

    def word(self, thread, offset):
        return np.frombuffer(self.region.view, np.uint64, 1, HEAD_BYTES + thread * ROW_BYTES + offset)


def check(records, steps, drops=0):
    """Each step was emitted once, with what belongs to it; a step that is not there was dropped."""
    values = inprocess.values_of(records["step"])
    assert (records["value"] == values).all()
    assert (records["low"] == values.astype(np.uint32)).all()
    assert (records["sign"] == values.astype(np.int16)).all()
    assert len(records) + drops == len(steps)
    found = np.sort(records["step"])
    assert (found[1:] > found[:-1]).all()
    assert among(found, steps).all()


def test_threads_and_signals_lose_nothing_while_there_is_room():
    ring = Ring(RingLayout(FOUR, 1 << 16, rings=16, threads=16))
    steps = inprocess.hammer(ring.code, ring.region.address, threads=8, count=20_000, signals=True)
    assert len(steps) > 160_000
    records = ring.reader.drain(final=True)
    assert ring.reader.drops().total == 0
    check(records, steps)
    assert (np.diff(records["ts"].astype(np.int64)) >= 0).all()


def test_a_reader_that_keeps_up_or_not_loses_only_what_is_counted():
    ring = Ring(RingLayout(FOUR, 1 << 10, rings=16, threads=16))
    batches, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            batches.append(ring.reader.drain())

    reader = threading.Thread(target=read)
    reader.start()
    steps = inprocess.hammer(ring.code, ring.region.address, threads=8, count=250_000, signals=True)
    stop.set()
    reader.join()
    batches.append(ring.reader.drain(final=True))
    assert ring.reader.abandoned == 0
    check(np.concatenate(batches), steps, ring.reader.drops().total)
    for thread in range(1, 9):
        own = np.concatenate([batch["step"][batch["thread"] == thread] for batch in batches])
        outer = own[own < 1 << 40]
        assert (np.diff(outer.astype(np.int64)) > 0).all()


def test_two_million_records_of_eight_threads():
    ring = Ring(RingLayout(FOUR, 1 << 18, rings=8, threads=8))
    steps = inprocess.hammer(ring.code, ring.region.address, threads=8, count=250_000)
    check(ring.reader.drain(final=True), steps)


def test_a_full_ring_drops_what_is_new():
    ring = Ring(RingLayout(FOUR, 64, rings=2, threads=4), now=False)
    for step in range(100):
        ring.emit(step)
    room = 64 - MARGIN
    assert ring.reader.drops().full == {1: 100 - room}
    assert ring.reader.drain()["step"].tolist() == list(range(room))
    for step in range(100, 200):
        ring.emit(step)
    assert ring.reader.drain()["step"].tolist() == list(range(100, 100 + room))


def test_many_laps():
    ring = Ring(RingLayout(FOUR, 64, rings=1, threads=1), now=False)
    for lap in range(50):
        for step in range(lap * 37, lap * 37 + 37):
            ring.emit(step)
        assert ring.reader.drain()["step"].tolist() == list(range(lap * 37, lap * 37 + 37))
    assert ring.reader.drops().total == 0


def test_threads_without_a_number_or_a_ring_share_one():
    ring = Ring(RingLayout(FOUR, 64, rings=2, threads=4), now=False)
    for step, thread in enumerate((0, 1, 2, 3, 3, 4, 5, 1 << 40)):
        ring.emit(step, step, thread=thread)
    assert ring.reader.drops().total == 0
    assert ring.reader.drain()["step"].tolist() == list(range(8))
    assert int(ring.word(0, PRODUCED)[0]) == 6
    for step in range(40):
        ring.emit(step, thread=0)
    assert ring.reader.drops().full == {0: 40 - 32}
    assert len(ring.reader.drain()) == 32


def test_a_shared_ring_with_room_loses_nothing():
    ring = Ring(RingLayout(FOUR, 1 << 21, rings=1, threads=16))
    batches, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            batches.append(ring.reader.drain())

    reader = threading.Thread(target=read)
    reader.start()
    steps = inprocess.hammer(ring.code, ring.region.address, threads=8, count=100_000, numbered=False, signals=True)
    stop.set()
    reader.join()
    batches.append(ring.reader.drain(final=True))
    assert ring.reader.drops().total == 0
    check(np.concatenate(batches), steps)


def begun(ring, thread=1):
    """Take a place as an emit does that is interrupted for good, and return it."""
    produced = ring.word(thread, PRODUCED)
    produced += np.uint64(1)
    return int(produced[0]) - 1


def test_the_reader_waits_for_a_record_that_is_being_written():
    ring = Ring(RingLayout(FOUR, 64, rings=1, threads=1), now=False)
    ring.emit(1)
    place = begun(ring)
    ring.emit(3)
    assert ring.reader.drain()["step"].tolist() == [1]
    slots = np.frombuffer(ring.region.view, FOUR.dtype, 64, ring.layout.rings_offset)
    slots["step"][place] = 2
    slots["ts"][place] = 2 << 1 | 1
    assert ring.reader.drain()["step"].tolist() == [2, 3]
    assert ring.reader.drops().total == 0


@pytest.mark.parametrize("late", [False, True], ids=["never", "late"])
def test_a_record_that_is_never_finished_costs_its_place_and_no_other(late, monkeypatch):
    monkeypatch.setattr(rings, "PATIENCE", 0.0)
    ring = Ring(RingLayout(FOUR, 64, rings=1, threads=1), now=False)
    ring.emit(0)
    place = begun(ring)
    ring.emit(2)
    found = [*ring.reader.drain()["step"].tolist(), *ring.reader.drain()["step"].tolist()]
    assert found == [0, 2]
    assert ring.reader.abandoned == 1
    slots = np.frombuffer(ring.region.view, FOUR.dtype, 64, ring.layout.rings_offset)
    assert slots["ts"][place] == RETIRED
    if late:
        slots["step"][place], slots["ts"][place] = 1, 1 << 1 | 1
    seen = []
    for step in range(3, 300):
        ring.emit(step)
        seen += ring.reader.drain()["step"].tolist()
    lost = ring.reader.drops().full.get(1, 0)
    assert len(seen) == 297 - lost
    assert lost == (0 if late else 4)  # once in each lap
    assert sorted(set(seen)) == seen


def test_a_hole_is_passed_when_the_ring_is_filling_up():
    ring = Ring(RingLayout(FOUR, 64, rings=1, threads=1), now=False)
    begun(ring)
    for step in range(20):
        ring.emit(step)
    assert not len(ring.reader.drain())
    for step in range(20, 40):
        ring.emit(step)
    assert ring.reader.drain()["step"].tolist() == list(range(40))


def test_what_is_held_back_comes_in_order():
    ring = Ring(RingLayout(FOUR, 64, rings=2, threads=2), now=False)
    for step, thread in ((10, 1), (30, 1), (20, 2)):
        ring.emit(step, thread=thread)
    assert ring.reader.drain(until=25)["step"].tolist() == [10, 20]
    ring.emit(26, thread=2)
    assert ring.reader.drain()["step"].tolist() == [26, 30]


def test_a_second_reader_goes_on_where_the_first_one_was():
    ring = Ring(RingLayout(FOUR, 64, rings=1, threads=1), now=False)
    for step in range(40):
        ring.emit(step)
    ring.reader.drain()
    ring.emit(40)
    assert RingReader(ring.region.view, ring.layout).drain()["step"].tolist() == [40]
    assert int(ring.word(1, CONSUMED)[0]) == 41
    assert int(ring.word(1, FULL)[0]) == 0


def test_rings_have_memory_before_they_are_written():
    layout = RingLayout(FOUR, 64, rings=3, threads=4)
    ring, given = Ring(layout), []
    reader = RingReader(ring.region.view, layout, allocate=lambda offset, size: given.append((offset, size)))
    assert given == [(layout.rings_offset, layout.ring_bytes)]
    for thread in (1, 2, 3):
        ring.emit(1, thread=thread)
    reader.drain()
    reader.drain()
    assert given[1:] == [(layout.rings_offset + layout.ring_bytes, 2 * layout.ring_bytes)]


@pytest.mark.parametrize("factor", [1, 1 << 30, (1 << 32) - 1, 1 << 32, 5 << 32])
def test_times_become_nanoseconds_as_in_handlers(factor):
    ring = Ring(RingLayout(FOUR, 64, rings=1, threads=1), now=False)
    reader = RingReader(ring.region.view, ring.layout, nanoseconds=factor)
    moments = [0, 1, 15, (1 << 32) - 16, 123 << 35, 1 << 52]
    for moment in moments:
        ring.emit(moment)
    assert reader.drain()["ts"].tolist() == [moment * factor >> 32 for moment in moments]


def test_texts_and_floats():
    record = RecordType(
        "r", (Field("flag", "bool"), Field("name", "text", 13), Field("x", "f64"), Field("y", "f32"), Field("z", "i8"))
    )
    assert record.offsets == (8, 16, 32, 40, 44, 45)
    layout = RingLayout(record, 64, rings=1, threads=1)
    region = inprocess.Region(layout.size)

    def build(builder, base, thread, first, second):
        half = ir.Constant(ir.DoubleType(), 0.5)
        flag = builder.icmp_unsigned("==", thread, thread)
        emit(
            builder, layout, base, thread, [builder.zext(flag, first.type), [first, second], half, half, first], second
        )

    code = inprocess.Compiled(4, build, features="+cx16")
    code.call(region.address, 1, int.from_bytes(b"abcdefgh", "little"), int.from_bytes(b"i\0\0\0\0\0\0\0", "little"))
    found = RingReader(region.view, layout).drain()
    assert found.tolist() == [(ord("i"), True, b"abcdefghi", 0.5, 0.5, ord("a"))]


def test_nothing_outside_is_called():
    ring = Ring(RingLayout(FOUR, 64, rings=2, threads=4))
    lines = [line.strip() for line in ring.code.assembly.splitlines()]
    assert {line.split()[1] for line in lines if line.startswith("call")} == {"ring.2.4096.4096.claim"}
    changes = {line.split()[1] for line in lines if line.startswith("lock")}
    assert changes == {"incq", "xaddq", "cmpxchgq"}  # a drop, the shared ring or a claim, a claim
    assert [line.split()[0] for line in lines if "xadd" in line].count("xaddq") == 1
    assert "rdtsc" in lines


@pytest.mark.parametrize("thread", [0, 1])
@pytest.mark.parametrize("filled", [0, 31, 63 - MARGIN, 64 - MARGIN])
def test_emits_between_any_two_instructions_of_an_emit_lose_nothing_uncounted(filled, thread):
    ring = Ring(RingLayout(FOUR, 64, rings=4, threads=1), now=False)
    base = ring.region.address
    for steps in range(1, 1000):
        ring.region.map[:] = bytes(len(ring.region.map))
        reader = RingReader(ring.region.view, ring.layout)
        for step in range(filled):
            ring.emit(step, thread=thread)
        others = [inprocess.call_of(ring.code, base, thread, 1000 + step, 1000 + step) for step in range(4)]
        outer = inprocess.call_of(ring.code, base, thread, 999, 999)
        if inprocess.interrupted(outer, steps, others) is None:
            break
        records = reader.drain(final=True)
        assert (records["value"][records["step"] >= 999] == records["step"][records["step"] >= 999]).all()
        assert len(set(records["step"].tolist())) == len(records)
        drops = reader.drops()
        assert drops.abandoned == 0
        assert len(records) + drops.total == filled + 5
    assert steps > 20


@pytest.mark.parametrize("thread", [0, 1])
@pytest.mark.parametrize("laps", [0, 2])
def test_a_record_that_is_given_up_while_it_is_written_is_lost_once(monkeypatch, thread, laps):
    monkeypatch.setattr(rings, "PATIENCE", 0.0)
    ring = Ring(RingLayout(FOUR, 64, rings=4, threads=1), now=False)
    base, given_up = ring.region.address, 0
    for steps in range(1, 1000):
        ring.region.map[:] = bytes(len(ring.region.map))
        reader, found = RingReader(ring.region.view, ring.layout), []
        for step in range(32 * laps):
            ring.emit(step, step, thread=thread)
            found += reader.drain()["step"].tolist()

        @ctypes.CFUNCTYPE(ctypes.c_uint64, *[ctypes.c_uint64] * 4)
        def read(*_, reader=reader, found=found):
            for _ in range(2):
                found.extend(reader.drain()["step"].tolist())
            return 0

        others = [inprocess.Call(ctypes.cast(read, ctypes.c_void_p).value, (ctypes.c_uint64 * 4)())]
        if inprocess.interrupted(inprocess.call_of(ring.code, base, thread, 999, 999), steps, others) is None:
            break
        found += reader.drain(final=True)["step"].tolist()
        drops = reader.drops()
        given_up += drops.abandoned
        assert len(found) + drops.total == 32 * laps + 1, steps
        # its place costs one record in each lap
        for step in range(1000, 1192):
            ring.emit(step, step, thread=thread)
            found += reader.drain()["step"].tolist()
        assert len(found) + reader.drops().total == 32 * laps + 1 + 192
    assert steps > 20
    assert given_up > 2


def test_an_emit_that_never_ends_costs_its_own_record_and_a_place(monkeypatch):
    monkeypatch.setattr(rings, "PATIENCE", 0.0)
    ring = Ring(RingLayout(FOUR, 64, rings=4, threads=1), now=False)
    base = ring.region.address
    for steps in range(1, 1000):
        ring.region.map[:] = bytes(len(ring.region.map))
        reader = RingReader(ring.region.view, ring.layout)
        ring.emit(1, 1)
        others = [inprocess.call_of(ring.code, base, 1, 2, 2)]
        outer = inprocess.call_of(ring.code, base, 1, 999, 999)
        if inprocess.interrupted(outer, steps, others, leave=True) is None:
            break
        found = []
        for step in range(3, 300):
            ring.emit(step, step)
            batch = reader.drain()
            assert (batch["value"] == batch["step"]).all()
            found += batch["step"].tolist()
        finished = 999 in found
        lost = reader.drops().full.get(1, 0)
        assert len(found) + lost == 299 + finished
        assert reader.abandoned <= 1 - finished
        assert lost <= 4
    assert steps > 20
