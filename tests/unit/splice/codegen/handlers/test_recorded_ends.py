"""Ends of calls that patches record, interrupted after each of their instructions, for a while and for good."""

import ctypes
import mmap
import threading
import zlib
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from anyprobe.core.code import RecordedEnd
from anyprobe.data.layouts.layout import BLOCK_NUMBER, TID_OFFSET
from anyprobe.data.readers import rings
from anyprobe.data.readers.call_rings import CONTEXT, CallLayout, CallReader
from anyprobe.data.readers.rings import HEAD_BYTES, PRODUCED, ROW_BYTES
from anyprobe.handlers.types.storages import Ring
from anyprobe.handlers.x86.recorder import CallRecorder
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.handlers.inline import Inline
from anyprobe.splice.codegen.patch import PatchWriter
from anyprobe.splice.plan.splices import Clobbers
from support import inprocess
from support.running import executable

WORDS, THREAD, HITS = 512, 1, 64
APART = 9
SLOT = 0x38
"""A word of the thread that the C library does not use."""
PLACE = 0x40_0000
"""Where functions are said to be, a page apart."""
ALL = Clobbers(("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"), flags=True)
NONE = Clobbers()


def assembled(listing, **values):
    asm = Assembler()
    asm.code(listing, **values)
    return asm.finish(0)


class Writer(PatchWriter):
    """A patch whose routine is in this process."""

    routine = 0

    def call_handler(self, action, push_target=None):
        self.relative("call routine", self.routine)


class Recording:
    """Patches and a routine in this process, and the rings that they write to."""

    def __init__(self, clobbers=ALL, end=0):
        self.layout = CallLayout.of_bytes(8 * WORDS, threads=2)
        assert self.layout.words == WORDS
        self.region = inprocess.Region(self.layout.size)
        self.block = inprocess.Region(4096)
        np.frombuffer(self.block.view, np.int32)[BLOCK_NUMBER // 4] = THREAD
        self._area = mmap.mmap(-1, 1 << 16, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._area))
        self._area[:16] = b"\xff" * 8 + self.region.address.to_bytes(8, "little")
        self._used = 64
        self._clobbers, self._end = clobbers, end
        native = CallRecorder(Ring(self.layout), end).compiled()
        assert isinstance(native.update, RecordedEnd)
        self._update, self._native = native.update, executable(native.code)
        set_slot = executable(assembled("mov fs:[slot], rdi; ret", slot=SLOT))
        ctypes.CFUNCTYPE(None, ctypes.c_uint64)(set_slot[1])(self.block.address)
        self._clock = executable(assembled("rdtsc; shl rdx, 32; or rax, rdx; ret"))
        self.now = ctypes.CFUNCTYPE(ctypes.c_uint64)(self._clock[1])
        self._stack = inprocess.Region(3 << 20)

    def _put(self, content):
        address = self._base + self._used
        self._area[self._used : self._used + len(content)] = content
        self._used += len(content) + 15 & ~15
        return address

    def _routine(self, function):
        registers = ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
        return self._put(
            assembled(
                f"""
                    pushfq; {"; ".join(f"push {each}" for each in registers)}
                    mov rax, block; inc qword [rax+{HITS}]
                    sub rsp, 40; mov eax, fs:[tid]; mov [rsp], rax; mov rax, function; mov [rsp+8], rax
                    lea rax, [rsp+{40 + 8 * len(registers) + 16}]; mov [rsp+16], rax
                    mov rax, region; mov [rsp+24], rax; mov qword [rsp+32], {THREAD}
                    mov rdi, rsp; mov rax, native; call rax
                    add rsp, 40; {"; ".join(f"pop {each}" for each in reversed(registers))}; popfq; ret
                """,
                block=self.block.address, tid=TID_OFFSET, function=function, region=self.region.address,
                native=self._native[1],
            )
        )  # fmt: skip

    def patch(self, which, *, numbered=True):
        """Return a call of the patch of a function."""
        function = PLACE + 4096 * which
        writer = Writer(0)
        writer.routine = self._routine(function)
        if not numbered:
            return inprocess.Call(writer.routine, (ctypes.c_uint64 * 4)())
        writer.address = self._base + self._used
        number = self._update.numbers.setdefault(function, len(self._update.numbers) + 1)
        inline = Inline(self._update, (), self._base + 8, number)
        bank = SimpleNamespace(slot=SLOT, gate=self._base)
        assert inline.emit(writer, SimpleNamespace(bank=bank, offset=HITS), self._clobbers)
        writer.code("ret")
        return inprocess.Call(self._put(writer.finish()), (ctypes.c_uint64 * 4)())

    def elsewhere(self, call):
        """Return the same call on another stack, whose addresses have other upper bits."""
        top = self._stack.address + (2 << 20)
        content = assembled("mov rax, rsp; mov rsp, top; push rax; mov rax, run; call rax; pop rsp; ret", top=top,
                            run=call.run)  # fmt: skip
        return inprocess.Call(self._put(content), (ctypes.c_uint64 * 4)())

    def later(self):
        """Return what waits until the context has to change because of the time."""
        listing = """
            rdtsc; shl rdx, 32; or rax, rdx; lea rcx, [rax+0x1000000]
        wait:
            rdtsc; shl rdx, 32; or rax, rdx; cmp rax, rcx; jb wait
            ret
        """
        return inprocess.Call(self._put(assembled(listing)), (ctypes.c_uint64 * 4)())

    def word(self, offset):
        return np.frombuffer(self.region.view, np.uint64, 1, HEAD_BYTES + THREAD * ROW_BYTES + offset)

    def fresh(self):
        self.region.map[:] = bytes(len(self.region.map))
        self.block.map[HITS : HITS + 8] = bytes(8)
        return CallReader(self.region.view, self.layout)

    @property
    def hits(self):
        return int.from_bytes(self.block.map[HITS : HITS + 8], "little")


@cache
def function_at(address):
    return ctypes.CFUNCTYPE(None)(address)


def run(call, times=1):
    function = function_at(call.run)
    for _ in range(times):
        function()


def which(records):
    return ((records["func"].astype(int) - PLACE) // 4096).tolist()


def taken(reader, *, final=True):
    """Return the records in the order in which they are in the ring."""
    parts = [each for _, each in reader.drain_by_thread(final=final)]
    return np.concatenate(parts) if parts else np.empty(0, reader.layout.record.dtype)


@pytest.fixture
def moments(request):
    """After how many instructions an event is interrupted: all by the torture, else other ones for each case."""
    if request.config.getoption("--torture"):
        return range(1, 2000)
    return range(1 + zlib.crc32(request.node.name.encode()) % APART, 2000, APART)


@pytest.mark.parametrize("clobbers", [ALL, NONE], ids=["all registers", "none"])
@pytest.mark.parametrize("end", [0, 1])
def test_each_end_takes_eight_bytes_and_says_all(clobbers, end):
    recording = Recording(clobbers, end)
    calls = [recording.patch(each) for each in range(5)]
    reader, before = recording.fresh(), recording.now()
    for each in calls * 20:
        run(each)
    after = recording.now()
    found = taken(reader)
    assert which(found) == list(range(5)) * 20
    assert before < int(found["ts"][0]) < int(found["ts"][-1]) < after
    assert (np.diff(found["ts"].astype(np.int64)) > 0).all()
    assert (found["frame"] & 3 == end).all()
    assert len(set(found["frame"].tolist())) == 1
    assert set(found["tid"].tolist()) == {threading.get_native_id()}
    assert recording.hits == 100
    # the first one, and each one after some milliseconds, names the thread, the context and its function
    assert int(recording.word(PRODUCED)[0]) in range(100 + 3, 100 + 60, 3)


CASES = {
    "a first event": 0,
    "an event": 5,
    "a context": -5,
    "the end of a lap": WORDS - 6,
    "a full ring": WORDS - 3,
    "a ring with room for one": WORDS - 4,
}


@pytest.mark.parametrize("leave", [False, True], ids=["interrupted", "left"])
@pytest.mark.parametrize("case", CASES)
def test_events_between_any_two_instructions_of_an_event(case, leave, moments):
    recording = Recording()
    outer, *inner = (recording.patch(each) for each in range(7))
    inner[0] = recording.patch(1, numbered=False)
    inner[1] = recording.elsewhere(inner[1])
    inner[2] = recording.elsewhere(recording.patch(3, numbered=False))
    before_them = abs(CASES[case])
    lost, seldom = 0, moments.step > 1
    for steps in moments:
        reader, start = recording.fresh(), recording.now()
        run(inner[4], before_them)
        if CASES[case] < 0:
            recording.word(CONTEXT)[0] = (1 << 64) - 1
        found = [taken(reader)] if case == "the end of a lap" else []
        if inprocess.interrupted(outer, steps, inner[:4], leave=leave) is None:
            break
        found.append(taken(reader, final=leave))
        for each in inner[4:] * 3:  # what comes after makes sense, too
            run(each)
        found = np.concatenate([*found, taken(reader)])
        times, end = found["ts"].astype(np.int64), recording.now()
        assert (np.diff(times) > 0).all(), steps
        assert not len(times) or (start < times[0] and times[-1] < end)
        drops = reader.drops()
        named = which(found)
        begun = 0 in named or drops.abandoned or not leave
        assert drops.abandoned <= leave
        assert len(found) + drops.total in {before_them + 10 + bool(begun), before_them + 11}, steps
        own = [each for each in named if each != 5 and each]
        if not drops.full:
            assert own == [1, 2, 3, 4, 6, 6, 6]
        assert int(found["lost"][-1]) == sum(drops.full.values()), "the last event knows of all that were lost"
        frames = {each: set(found["frame"][np.array(named) == each].tolist()) for each in (2, 5)}
        if frames[2]:
            assert frames[2] == {recording._stack.address + (2 << 20) - 16 & 0xFFFFFFFF}
        assert len(frames[5]) == 1
        lost += drops.total
    assert steps > 30
    assert bool(lost) == (case in {"a full ring", "a ring with room for one"} or leave) or seldom


def test_a_context_that_becomes_old_while_an_event_is_interrupted(moments):
    recording = Recording()
    outer, first, second = (recording.patch(each) for each in range(3))
    later = recording.later()
    for steps in moments:
        reader, start = recording.fresh(), recording.now()
        run(first)
        if inprocess.interrupted(outer, steps, [second, later, second, first]) is None:
            break
        run(first)
        found, end = taken(reader), recording.now()
        times = found["ts"].astype(np.int64)
        assert sorted(which(found)) == [0, 1, 1, 1, 2, 2]
        assert [each for each in which(found) if each] == [1, 2, 2, 1, 1]
        assert (np.diff(times) > 0).all()
        assert start < times[0] < times[-1] < end
        second_at = [at for at, each in enumerate(which(found)) if each == 2]
        assert times[second_at[1]] - times[second_at[0]] >= 1 << 24
    assert steps > 30


@pytest.mark.parametrize("case", ["an event", "a context", "a first event"])
@pytest.mark.parametrize("more", [False, True])
def test_a_word_that_is_given_up_while_it_is_written_is_lost_once(monkeypatch, case, more, moments):
    monkeypatch.setattr(rings, "PATIENCE", 0.0)
    recording = Recording()
    outer, first, second = (recording.patch(each) for each in range(3))
    given_up = 0
    for steps in moments:
        reader, found = recording.fresh(), []
        before = abs(CASES[case])
        run(first, before)
        if CASES[case] < 0:
            recording.word(CONTEXT)[0] = (1 << 64) - 1

        @ctypes.CFUNCTYPE(ctypes.c_uint64, *[ctypes.c_uint64] * 4)
        def read(*_, reader=reader, found=found):
            for _ in range(3):
                found.extend(which(taken(reader, final=False)))
            return 0

        reading = inprocess.Call(ctypes.cast(read, ctypes.c_void_p).value, (ctypes.c_uint64 * 4)())
        others = [second, reading, second] if more else [reading]
        if inprocess.interrupted(outer, steps, others) is None:
            break
        found += which(taken(reader, final=False))
        for _ in range(4):  # more than a lap
            run(second, WORDS // 3)
            found += which(taken(reader, final=False))
        found += which(taken(reader))
        drops = reader.drops()
        given_up += drops.abandoned
        made = before + 1 + 4 * (WORDS // 3) + 2 * more
        assert len(found) + drops.total == made, steps
        assert found.count(0) + drops.total >= 1
    assert steps > 30
    assert given_up > 0 or moments.step > 1
