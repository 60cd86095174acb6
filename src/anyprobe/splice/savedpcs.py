"""Program counters saved on a thread's stack by the kernel: where signal handlers will return to.

Return addresses are not looked for: none ever points into overwritten instructions (planning sees to that) or into our
code, except below a pc that is in our code itself, or in the vdso, whose clock our code may call. Stale words would
only make quiet code look busy.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.core.memory import Memory, MemoryFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from anyprobe.target.procfs import Mapping
    from anyprobe.target.thread import Thread

_VDSO = "[vdso]"
_UNDER_VDSO = 1 << 12
"""Bytes of stack among which the return address of a call of the vdso lies: its own frames are small."""
_USER_CS = 0x33
_SELECTOR = _USER_CS.to_bytes(2, "little")
_EFLAGS_ALWAYS, _EFLAGS_LIMIT = 0x2, 1 << 22


def saved_pcs(memory: Memory, thread: "Thread", mappings: "Sequence[Mapping]") -> "NDArray[np.uint64]":
    """Return the pc of every signal frame on the stack that the thread is on, from its stack pointer up.

    In ``struct sigcontext`` (``arch/x86/include/uapi/asm/sigcontext.h``) rip is followed by eflags and the selectors.
    A frame on an alternate stack holds the pc of the interrupted code, on whatever stack that ran; frames further out
    on that other stack are found through the stack pointer that it saved.
    """
    found = [pcs for pcs, _ in _frames(memory, thread, mappings)]
    return np.concatenate(found) if found else np.empty(0, dtype=np.uint64)


def _frames(
    memory: Memory, thread: "Thread", mappings: "Sequence[Mapping]"
) -> "Iterator[tuple[NDArray[np.uint64], list[int]]]":
    """Yield the pcs and stack pointers of the signal frames on one stack after the other."""
    pointers, seen = [thread.registers.rsp], set()
    while pointers:
        pointer = pointers.pop()
        stack = _stack_at(pointer, mappings)
        if stack is None or stack.start in seen:
            continue
        seen.add(stack.start)
        low = max((pointer - 256) & -8, stack.start)
        try:
            content = memory.read(low, (stack.end - low) & -8)
        except MemoryFault:
            continue
        if len(content) < 24 or _SELECTOR not in content:  # most stacks hold no signal frame
            continue
        words = np.frombuffer(content, dtype=np.uint64)
        at = np.flatnonzero((words[2:] & 0xFFFF) == _USER_CS)
        flags = words[at + 1]
        at = at[(flags < _EFLAGS_LIMIT) & ((flags & _EFLAGS_ALWAYS) != 0)]
        saved = [int(words[i - 1]) for i in at if i > 0]
        pointers += saved
        yield words[at], saved


def words_under_vdso(memory: Memory, thread: "Thread", mappings: "Sequence[Mapping]") -> list[int]:
    """Return the stack words, return addresses among them, of a thread that is (or was interrupted) in the vdso."""
    vdso = next((m for m in mappings if m.path == _VDSO), None)
    if vdso is None:
        return []
    pcs, pointers = [thread.registers.rip], [thread.registers.rsp]
    for interrupted, saved in _frames(memory, thread, mappings):
        pcs += interrupted.tolist()
        pointers += saved
    if not any(vdso.start <= pc < vdso.end for pc in pcs):
        return []
    found: list[int] = []
    for pointer in pointers:
        stack = _stack_at(pointer, mappings)
        if stack is not None:
            low = pointer & -8
            content = memory.read(low, min(stack.end - low, _UNDER_VDSO))
            found += np.frombuffer(content, dtype=np.uint64).tolist()
    return found


def _stack_at(pointer: int, mappings: "Sequence[Mapping]") -> "Mapping | None":
    return next((m for m in mappings if m.writable and m.start <= pointer < m.end), None)
