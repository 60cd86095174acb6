"""Program counters saved on a thread's stack by the kernel: where signal handlers will return to.

Return addresses are not looked for: none ever points into overwritten instructions (planning sees to that) or into our
code, except below a pc that is in our code itself, or in the vdso, whose clock our code may call. Stale words would
only make quiet code look busy.
"""

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.splice.apply.suspended_contexts import may_park, parked_pcs
from anyprobe.target.remote.saved_frames import frames_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from anyprobe.target.base import ImmovableThread, ProcessFacts, ProcessQuiescence, Registers, StoppedThread
    from anyprobe.target.system.procfs import Mapping

_VDSO = "[vdso]"
_LEAST_BOUNDED = 1 << 18
"""What is less to search than this is searched, whatever ends there."""
_MOST_SEARCHED = 1 << 26
"""Bytes of one stack in which return addresses are looked for: more than that is other memory above it."""
_RED_ZONE = 128
_CHUNK = 1 << 22
"""Bytes of a large stack that are read at once."""
_R14_BEFORE_RSP = 72
_FRAME_END = 32
"""In ``struct sigcontext``; the end of what a frame is known by counts from there, too."""
_UNDER_VDSO = 1 << 12
"""Bytes of stack among which the return address of a call of the vdso lies: its own frames are small."""


class _Frame(NamedTuple):
    place: int
    pointer: int
    pc: int
    r14: int


class FramesOnStacks:
    """Finds the saved pcs of a process's threads, and of contexts that its signal handlers have left for others."""

    def __init__(self, process: "ProcessFacts") -> None:
        """Look at nothing yet."""
        self._process = process

    def look(self, mappings: "Sequence[Mapping]") -> None:
        """See whether handlers may leave contexts, which takes long the first time."""
        may_park(self._process, mappings)

    def of_all(self, stop: "ProcessQuiescence") -> "Iterator[tuple[int, list[int]]]":
        """Yield the saved pcs of each thread of a stop by its id, last those that no thread is in at present."""
        return Stacks(self._process.mem, stop.mappings).all_saved_pcs(stop)


class Stacks:
    """The writable memory of a stopped process, among which its stacks are."""

    def __init__(self, memory: Memory, mappings: "Sequence[Mapping]") -> None:
        """Take the memory map as it is while everything is stopped."""
        self._memory, self._mappings = memory, mappings
        self._ends = [mapping.end for mapping in mappings]
        self._found: dict[int, tuple[int, list[_Frame]]] = {}
        """From where on memory was searched, and the frames found, by its end; nothing runs meanwhile."""
        self._goroutine_stacks: set[tuple[int, int]] = set()
        """Bounds of those that threads are on, as far as these were asked for."""
        self._vdso = next((m for m in mappings if m.path == _VDSO), None)

    def saved_pcs(self, thread: "StoppedThread") -> list[int]:
        """Return the pc of every signal frame on the stack that the thread is on, from its stack pointer up.

        A frame on an alternate stack holds the pc of the interrupted code, on whatever stack that ran;
        frames further out on that other stack are found through the stack pointer that it saved.
        """
        return self._frames(thread.registers.rsp, thread.registers)[0]

    def all_saved_pcs(self, stop: "ProcessQuiescence") -> "Iterator[tuple[int, list[int]]]":
        """Yield the same for each thread of a stop by its id.

        Those that wait in vfork are among them: a child of ``posix_spawn`` is on a stack of its own. Last come, as
        thread 0, those of contexts that no thread is in at present.
        """
        for thread in stop.threads:
            yield thread.tid, self.saved_pcs(thread)
        for parent in stop.waiting:
            yield parent.tid, self.words_after(parent)[1:]
        if stop.process.parks:
            yield 0, parked_pcs(stop.process, self._mappings, stop.threads)

    def words_after(self, parent: "ImmovableThread") -> list[int]:
        """Return the pc of a thread that waits in vfork, and the saved pcs."""
        return [parent.pc, *self._frames(parent.stack)[0]]

    def code_words(self, thread: "StoppedThread") -> list[int]:
        """Return the pc, the saved pcs, and what may be return addresses below a pc in the vdso."""
        interrupted, saved = self._frames(thread.registers.rsp, thread.registers)
        pcs = [thread.registers.rip, *interrupted]
        if self._vdso is None or not any(self._vdso.start <= pc < self._vdso.end for pc in pcs):
            return pcs
        found = pcs
        for pointer in (thread.registers.rsp, *saved):
            end = self._end_of_stack(pointer)
            if end:
                low = pointer & -8
                content = self._memory.read(low, min(end - low, _UNDER_VDSO))
                found += memoryview(content[: len(content) & -8]).cast("Q").tolist()
        return found

    def words(self, stop: "ProcessQuiescence") -> "Iterator[NDArray[np.uint64]]":
        """Yield the pcs of a stop's threads, and all words of the stacks that they are on and will come back to."""
        threads = [(each.registers.rip, each.registers.rsp, each.registers) for each in stop.threads]
        for pc, pointer, registers in (*threads, *((each.pc, each.stack, None) for each in stop.waiting)):
            interrupted, saved = self._frames(pointer, registers)
            yield np.array([pc, *interrupted], np.uint64)
            for each in (pointer, *saved):
                low = each - _RED_ZONE & -8
                for start in range(low, min(self._end_of_stack(each), low + _MOST_SEARCHED), _CHUNK):
                    with suppress(MemoryFault):
                        end = min(start + _CHUNK, self._end_of_stack(each))
                        yield np.frombuffer(self._memory.read(start, end - start), np.uint64)

    def are_known(self, thread: "StoppedThread") -> bool:
        """Whether the stacks that a thread is on and will come back to are in the memory map, which may be older."""
        pointer = thread.registers.rsp
        return all(self._end_of_stack(each) for each in (pointer, *self._frames(pointer, thread.registers)[1]))

    def _frames(self, pointer: int, registers: "Registers | None" = None) -> tuple[list[int], list[int]]:
        """Return the pcs and stack pointers that signal frames saved, on one stack after the other.

        One mapping may hold several stacks, of which an alternate one is not always the lowest. ``registers``: of the
        thread, which tell of a goroutine where its stack ends.
        """
        pcs: list[int] = []
        pointers: list[int] = []
        ahead: list[tuple[int, int | None]] = [(pointer, None)]
        read: dict[int, int] = {}
        """From where on each stack has been searched, by its end."""
        while ahead:
            pointer, r14 = ahead.pop()
            end = self._top_of_stack(pointer, r14, registers)
            if not end or pointer >= read.get(end, end):
                continue
            low, high, read[end] = max(pointer - 256 & -8, self._start_of(pointer)), read.get(end, end), pointer
            for frame in self._frames_from(low, end):
                if not low <= frame.place < high:
                    continue
                pcs.append(frame.pc)
                pointers.append(frame.pointer)
                ahead.append((frame.pointer, frame.r14))
        return pcs, pointers

    def _frames_from(self, low: int, end: int) -> "Sequence[_Frame]":
        """Return the frames from an address on to the end of a stack, and maybe some that are further down."""
        searched, found = self._found.get(end, (end, []))
        fresh: list[_Frame] = []
        with suppress(MemoryFault):  # in what cannot be read there are none
            for start in range(low, searched, _CHUNK):
                content = self._memory.read(start, min(_CHUNK, searched - start) + min(_FRAME_END, end - searched))
                for at, pointer, pc in frames_in(content):
                    if start + at < min(start + _CHUNK, searched):
                        fresh.append(_Frame(start + at, pointer, pc, self._word(start + at - _R14_BEFORE_RSP)))
        if low < searched:
            found = fresh + found
            self._found[end] = low, found
        return found

    def _word(self, address: int) -> int:
        try:
            return int.from_bytes(self._memory.read(address, 8), "little")
        except MemoryFault:
            return 0

    def _top_of_stack(self, pointer: int, r14: int | None, registers: "Registers | None") -> int:
        """Return where the stack ends that an address is in, at the latest, or 0.

        ``r14``: as a signal frame has it; None: as the thread has it now.
        """
        end = self._end_of_stack(pointer)
        if end - pointer < _LEAST_BOUNDED:
            return end
        for low, high in self._goroutine_stacks:
            if low <= pointer < high:
                return high
        if registers is None:
            return end
        from anyprobe.splice.apply.goroutine_bounds import stack_bounds

        bounds = stack_bounds(self._memory, pointer, registers.r14 if r14 is None else r14, registers.fs_base)
        if bounds is None or bounds[1] > end:
            return end
        self._goroutine_stacks.add(bounds)
        return bounds[1]

    def _end_of_stack(self, pointer: int) -> int:
        """Return the end of the writable mapping that an address lies in, or 0."""
        index = bisect_right(self._ends, pointer)
        if index == len(self._ends):
            return 0
        mapping = self._mappings[index]
        return mapping.end if mapping.start <= pointer and mapping.perms[1] == "w" else 0

    def _start_of(self, pointer: int) -> int:
        return self._mappings[bisect_right(self._ends, pointer)].start
