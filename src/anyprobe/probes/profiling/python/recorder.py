"""A program in the kernel that copies the frames of Python's functions at the moment in which a sample is taken.

Samples have the C stack alone, and the program goes on at once: what is read after them is another moment's.
"""

import os
import struct
from collections.abc import Iterable

from anyprobe.core.code import BpfProgram
from anyprobe.handlers.bpf.assembly import FRAME, Assembly
from anyprobe.probes.stacks.interpreter import Copied
from anyprobe.target.kernel import bpf, perf, programs
from anyprobe.target.kernel.ring_buffers import RingBuffer

FRAME_BYTES = 72
"""As much of a frame as is copied."""
DEPTH = 128
"""As many frames are copied at most."""
_THREADS = 16_384
_RING_BYTES = 1 << 22
_LOOK_UP, _TIME, _TASK, _READ_USER, _RESERVE, _SUBMIT = 1, 5, 14, 112, 131, 132
_TABLE, _RING = 0, 1
_TID, _MOMENT, _COUNT, _CURRENT, _SLOTS = 0, 8, 16, 24, 32
"""Where a record has what."""
_SLOT = 8 + FRAME_BYTES
_RECORD = _SLOTS + DEPTH * _SLOT
_FIRST, _PART, _PREVIOUS = 0, 8, 16
"""Where the value of a thread has what."""
_KEY, _WORD = -8, -16
"""Where on its stack the program has what."""


class FrameRecorder:
    """Copies the frames of some threads whenever one of some events of the kernel samples them."""

    def __init__(self, events: Iterable[int]) -> None:
        """Begin with no thread; raise a typed error where the kernel does not take programs from this user."""
        self._threads = bpf.create_hash(8, 24, _THREADS)
        try:
            self._ring = RingBuffer(_RING_BYTES, _RECORD)
        except BaseException:
            os.close(self._threads)
            raise
        try:
            code = programs.placed(_program(), {}, {_TABLE: self._threads, _RING: self._ring.descriptor})
            program = programs.load(code, programs.Kind(programs.PROGRAM_OF_A_SAMPLE), "anyprobe_python")
            try:
                for event in events:
                    perf.set_program(event, program)
            finally:
                os.close(program)
        except BaseException:
            self.close()
            raise

    def watch(self, tid: int, current: int, part: int | None, previous: int) -> None:
        """Copy the frames of a thread from now on.

        ``current``: where its state says what it executes, a frame, or what has the frame's address at ``part``;
        ``previous``: where in a frame the address of the next one is.
        """
        value = struct.pack("<Qqq", current, -1 if part is None else part, previous)
        bpf.set_value(self._threads, struct.pack("<Q", tid), value)

    def take(self) -> list[Copied]:
        """Return what has been copied since the last time."""
        return [_copied(row.tobytes()) for row in self._ring.take()]

    def close(self) -> None:
        """Give its memory back; the program goes with the events."""
        self._ring.close()
        os.close(self._threads)


def _copied(record: bytes) -> Copied:
    tid, moment, count, current = struct.unpack_from("<QQQQ", record)
    frames = {}
    for at in range(_SLOTS, _SLOTS + min(count, DEPTH) * _SLOT, _SLOT):
        frames[int.from_bytes(record[at : at + 8], "little")] = record[at + 8 : at + _SLOT]
    return Copied(tid, moment, current, frames)


def _program() -> BpfProgram:
    """Return the program; samples are kept in any case."""
    code = Assembly()
    index, thread, record, frame = 6, 7, 8, 9

    def read(target: int, offset: int, size: int, label: str) -> None:
        """Read the program's memory at r3 to a place at ``target``; go to a label where that cannot be read."""
        code.copy(1, target)
        code.compute_number("+", 1, offset)
        code.put(2, size)
        code.call(_READ_USER)
        code.go_if_number("!=", 0, 0, label)

    code.call(_TASK)
    code.cut(0, 32, signed=False)
    code.store(FRAME, _KEY, 0)
    code.address(1, _TABLE, table=True)
    code.copy(2, FRAME)
    code.compute_number("+", 2, _KEY)
    code.call(_LOOK_UP)
    code.go_if_number("==", 0, 0, "keep")
    code.copy(thread, 0)
    code.address(1, _RING, table=True)
    code.put(2, _RECORD)
    code.put(3, 0)
    code.call(_RESERVE)
    code.go_if_number("==", 0, 0, "keep")
    code.copy(record, 0)
    code.load(1, FRAME, _KEY)
    code.store(record, _TID, 1)
    code.store_number(record, _COUNT, 0)
    code.store_number(record, _CURRENT, 0)
    code.call(_TIME)
    code.store(record, _MOMENT, 0)
    code.load(3, thread, _FIRST)
    read(record, _CURRENT, 8, "submit")
    code.load(frame, record, _CURRENT)
    code.load(3, thread, _PART)
    code.go_if_number("s<", 3, 0, "begin")
    code.compute("+", 3, frame)
    read(FRAME, _WORD, 8, "submit")
    code.load(frame, FRAME, _WORD)
    code.here("begin")
    code.put(index, 0)
    code.here("next")
    code.go_if_number("==", frame, 0, "submit")
    code.go_if_number(">=", index, DEPTH, "submit")
    code.copy(1, index)
    code.compute_number("*", 1, _SLOT)
    code.compute("+", 1, record)
    code.store(1, _SLOTS, frame)
    code.copy(3, frame)
    read(1, _SLOTS + 8, FRAME_BYTES, "submit")
    code.load(3, thread, _PREVIOUS)
    code.compute("+", 3, frame)
    read(FRAME, _WORD, 8, "submit")
    code.load(frame, FRAME, _WORD)
    code.compute_number("+", index, 1)
    code.store(record, _COUNT, index)
    code.go("next")
    code.here("submit")
    code.copy(1, record)
    code.put(2, 0)
    code.call(_SUBMIT)
    code.here("keep")
    code.put(0, 1)
    code.leave()
    instructions, references = code.finish()
    return BpfProgram(instructions, (), references, len(code))
