"""Program counters saved on a thread's stack by the kernel: where signal handlers will return to.

Return addresses are not looked for: none ever points into overwritten instructions (planning sees to that) or into our
code, except below a pc that is in our code itself, or in the vdso, whose clock our code may call. Stale words would
only make quiet code look busy.
"""

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.splice.apply.suspended_contexts import may_park, parked_pcs
from anyprobe.target.remote.saved_frames import frames_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from anyprobe.target.base import ImmovableThread, ProcessFacts, ProcessQuiescence, StoppedThread
    from anyprobe.target.system.procfs import Mapping

_VDSO = "[vdso]"
_UNDER_VDSO = 1 << 12
"""Bytes of stack among which the return address of a call of the vdso lies: its own frames are small."""


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
        self._vdso = next((m for m in mappings if m.path == _VDSO), None)

    def saved_pcs(self, thread: "StoppedThread") -> list[int]:
        """Return the pc of every signal frame on the stack that the thread is on, from its stack pointer up.

        A frame on an alternate stack holds the pc of the interrupted code, on whatever stack that ran;
        frames further out on that other stack are found through the stack pointer that it saved.
        """
        return self._frames(thread.registers.rsp)[0]

    def all_saved_pcs(self, stop: "ProcessQuiescence") -> "Iterator[tuple[int, list[int]]]":
        """Yield the same for each thread of a stop by its id.

        Those that wait in vfork are among them: a child of ``posix_spawn`` is on a stack of its own. Last come, as
        thread 0, those of contexts that no thread is in at present.
        """
        for thread in stop.threads:
            yield thread.tid, self.saved_pcs(thread)
        for parent in stop.waiting:
            yield parent.tid, self.words_behind(parent)[1:]
        if stop.process.parks:
            yield 0, parked_pcs(stop.process, self._mappings, stop.threads)

    def words_behind(self, parent: "ImmovableThread") -> list[int]:
        """Return the pc of a thread that waits in vfork, and the saved pcs."""
        return [parent.pc, *self._frames(parent.stack)[0]]

    def code_words(self, thread: "StoppedThread") -> list[int]:
        """Return the pc, the saved pcs, and what may be return addresses below a pc in the vdso."""
        interrupted, saved = self._frames(thread.registers.rsp)
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

    def are_known(self, thread: "StoppedThread") -> bool:
        """Whether the stacks that a thread is on and will come back to are in the memory map, which may be older."""
        pointer = thread.registers.rsp
        return all(self._end_of_stack(each) for each in (pointer, *self._frames(pointer)[1]))

    def _frames(self, pointer: int) -> tuple[list[int], list[int]]:
        """Return the pcs and stack pointers that signal frames saved, on one stack after the other.

        One mapping may hold several stacks, of which an alternate one is not always the lowest.
        """
        pcs: list[int] = []
        pointers: list[int] = []
        ahead: list[int] = [pointer]
        read: dict[int, int] = {}
        """From where on each mapping has been read, by its end."""
        while ahead:
            pointer = ahead.pop()
            end = self._end_of_stack(pointer)
            if not end or pointer >= read.get(end, end):
                continue
            low = max((pointer - 256) & -8, self._start_of(end))
            high, read[end] = read.get(end, end), pointer
            try:
                content = self._memory.read(low, (high - low) & -8)
            except MemoryFault:
                continue
            for _, saved, pc in frames_in(content):
                pcs.append(pc)
                pointers.append(saved)
                ahead.append(saved)
        return pcs, pointers

    def _end_of_stack(self, pointer: int) -> int:
        """Return the end of the writable mapping that an address lies in, or 0."""
        index = bisect_right(self._ends, pointer)
        if index == len(self._ends):
            return 0
        mapping = self._mappings[index]
        return mapping.end if mapping.start <= pointer and mapping.perms[1] == "w" else 0

    def _start_of(self, end: int) -> int:
        return self._mappings[bisect_left(self._ends, end)].start
