"""Mapping our memory into a target: whatever call fails, and whatever fails in the undoing, nothing is left."""

import os
import signal
from itertools import count
from pathlib import Path

import pytest

import anyprobe
from anyprobe.core.address import PAGE
from anyprobe.core.errors import AnyprobeError, InternalError, RemoteCallFailed, TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.core.refusal import Reason
from anyprobe.journal.records import MappingUse, Owner
from anyprobe.splice.apply.recovery.recovery import remove
from anyprobe.splice.memory.arena import Piece
from anyprobe.splice.memory.memfd import map_arena
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.target.process.process import Process
from anyprobe.target.system.gateway import FaultPlan, faults

OWNER = Owner(bytes(16), os.getpid(), 0)
SOMEWHERE = 1 << 40
"""Where the program has nothing."""


class Faulty:
    """Calls in the target of which the ``number``-th and, ``again``, the one after it fail, made or not."""

    def __init__(self, remote, number, *, made, again):
        self._remote, self._made = remote, made
        self._faults = {number, number + 1} if again else {number}
        self.calls = 0

    def __getattr__(self, name):
        return getattr(self._remote, name)

    def _make(self, call, *arguments):
        self.calls += 1
        if self.calls not in self._faults:
            return call(*arguments)
        if self._made:
            call(*arguments)
        raise TargetError("the result is not known")

    def syscall(self, *arguments):
        return self._make(self._remote.syscall, *arguments)

    def run(self, *arguments):
        return self._make(self._remote.run, *arguments)


def pieces_at(place):
    """Return a code region with near counters, one without, a data region and a springboard page."""
    return [
        Piece(MappingUse.GATE, place, PAGE, 0),
        Piece(MappingUse.COUNTERS, place + PAGE, PAGE, PAGE),
        Piece(MappingUse.CODE, place + 2 * PAGE, 2 * PAGE, 2 * PAGE),
        Piece(MappingUse.GATE, place + 8 * PAGE, PAGE, 4 * PAGE),
        Piece(MappingUse.CODE, place + 9 * PAGE, PAGE, 5 * PAGE),
        Piece(MappingUse.DATA, place + 16 * PAGE, 4 * PAGE, 6 * PAGE),
        Piece(MappingUse.SPRINGBOARD, place + 24 * PAGE, PAGE, 10 * PAGE),
    ]


@pytest.fixture
def process(run_target):
    target = run_target("counts.c", "2")
    target.run_freely()
    opened = Process.open(target.pid)
    yield opened
    opened.close()
    target.halt()
    target.finish()


def create(process):
    """Map everything, in one stop."""
    place = AddressSpace(process.mappings()).far_gap(64 * PAGE, SOMEWHERE)
    with process.stop() as stop, stop.remote() as remote:
        map_arena(process, remote, OWNER, pieces_at(place), journal_at=place + 32 * PAGE, records=8).close()


def left(process):
    """Return what a session may leave: mappings there or of its memfd, and descriptors."""
    links = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    there = range(SOMEWHERE, SOMEWHERE + (1 << 30))
    maps = [(m.start, m.end, m.perms) for m in process.mappings() if m.start in there or "anyprobe:" in m.path + ":"]
    return maps, [link for link in links if "anyprobe" in link]


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("made", [False, True], ids=["not made", "made"])
def test_every_call_fails(process, made, again):
    failures = 0
    for number in count(1):
        place = AddressSpace(process.mappings()).far_gap(64 * PAGE, SOMEWHERE)
        with process.stop() as stop:
            before = left(process)
            with stop.remote() as remote:
                faulty = Faulty(remote, number, made=made, again=again)
                try:
                    arena = map_arena(process, faulty, OWNER, pieces_at(place), journal_at=place + 32 * PAGE, records=8)
                except TargetError:
                    failures = number
                else:
                    assert faulty.calls < number
                    arena.close()
                    break
            assert left(process) == before, number
    assert failures >= 4  # the memfd, two mappings, all the others at once


@pytest.mark.parametrize("number", range(8))
def test_what_the_program_has_mapped_meanwhile_stays(process, number):
    """One piece's place was taken: a typed error, and only what is ours is unmapped."""
    place = AddressSpace(process.mappings()).far_gap(64 * PAGE, SOMEWHERE)
    taken = [piece.address for piece in pieces_at(place)] + [place + 32 * PAGE]
    with process.borrow() as remote:
        remote.syscall(9, taken[number], PAGE, 3, 0x100022, (1 << 64) - 1, 0)
    process.mem.write(taken[number], b"the program's")
    with process.stop() as stop:
        before = left(process)
        with stop.remote() as remote, pytest.raises(RemoteCallFailed, match="mmap"):
            map_arena(process, remote, OWNER, pieces_at(place), journal_at=place + 32 * PAGE, records=8)
        assert left(process) == before
    assert process.mem.read(taken[number], 13) == b"the program's"


@pytest.mark.parametrize("fault", ["fail:{}:EIO", "fail:{}:ESRCH", "short:{}"])
def test_every_gateway_call_fails(process, fault):
    """The program lives, and what an error leaves behind is removed as at a session's end."""
    before = left(process)
    for call in count(1):
        faults.install(FaultPlan.parse(fault.format(call)))
        try:
            create(process)
        except (AnyprobeError, MemoryFault, OSError):
            pass
        finally:
            reached = faults.reached
            faults.clear()
        remove(process)
        assert left(process) == before, call
        if not reached:
            break
    assert call > 60


@pytest.mark.parametrize("kind", ["kill-before", "kill-after"])
@pytest.mark.sliced(2)
def test_the_controller_dies_at_every_call(process, kind):
    """The program lives, and whoever comes next removes what is left."""
    before = left(process)
    for call in count(1):
        controller = os.fork()
        if not controller:
            faults.install(FaultPlan(kind, call))
            create(process)
            os._exit(0)
        _, status = os.waitpid(controller, 0)
        assert status in (0, signal.SIGKILL)
        assert not process.exited(), call
        remove(process)
        assert left(process) == before, call
        if status == 0:
            break
    assert call > 60


def test_room_stays_for_a_heap_that_comes_later(run_target):
    """Where it will begin is not told by the mappings, least of all once there are some of ours below the program."""
    target = run_target("crowded.c", "2")
    maps = Path(f"/proc/{target.pid}/maps")
    assert "[heap]" not in maps.read_text()
    with anyprobe.attach(target.pid) as session:
        for function in ("loop", "table", "last_byte"):
            session.count(f"a.out:{function}:insn", f"libc.so.6:str{function[0]}*")
        assert not [why for _, why in session.refused if why.reason is Reason.PUN_OUT_OF_REACH]
        heap = session.process.heap_start
        assert heap
        taken = [tuple(int(each, 16) for each in line.split()[0].split("-")) for line in maps.read_text().splitlines()]
        assert not [start for start, end in taken if start < heap + (1 << 30) and end > heap]
        target.go(10)
    target.finish()


def test_nothing_is_written_behind_a_piece(process):
    place = SOMEWHERE
    with process.stop() as stop, stop.remote() as remote:
        arena = map_arena(process, remote, OWNER, pieces_at(place), journal_at=place + 32 * PAGE, records=8)
    try:
        piece = next(each for each in arena.pieces if each.address == place + 9 * PAGE)
        arena.write(piece, piece.end - 4, b"\x90" * 4)
        for address, size in ((piece.end - 4, 5), (piece.end, 1), (piece.address - 1, 2)):
            with pytest.raises(InternalError):
                arena.write(piece, address, b"\x90" * size)
    finally:
        arena.close()
        remove(process)
