"""Where a stack ends that lies among much other memory, as goroutines' stacks do in Go's heap.

Go's runtime has the goroutine that runs in ``r14`` and in a word before the thread pointer; ``runtime.g`` begins with
the bounds of its stack. Its thread's ``runtime.m`` knows the goroutines of the system's stack, of the signal stack and
the one that it runs. Whatever is read is believed only where it says that a stack of a size as Go has them is around
the stack pointer, so that nothing has to be known of the program: other words than bounds never do.
"""

from collections.abc import Iterator

from anyprobe.core.memory import Memory, MemoryFault

_LEAST, _MOST = 1 << 11, 1 << 30
"""Sizes of goroutines' stacks (``runtime/stack.go``), which are powers of two."""
_M_OF_G = 48
_GS_OF_M = (0, 80, 192, 72, 184)
"""Where ``runtime.m`` has ``g0``, ``gsignal`` and ``curg``; the latter two before Go 1.25, and since."""
_G_BEFORE_THREAD_POINTER = 8
_END = 1 << 47
"""End of the addresses that a program can have."""


def stack_bounds(memory: Memory, pointer: int, register: int, thread_pointer: int) -> tuple[int, int] | None:
    """Return the bounds of the goroutine's stack that an address lies in, if they are known.

    Args:
        memory: Of the process, which stands still.
        pointer: A stack pointer.
        register: What ``r14`` was when that was the stack pointer.
        thread_pointer: The ``fs`` base of the thread.

    """
    for goroutine in _goroutines(memory, register, thread_pointer):
        low, high = _words(memory, goroutine, 2)
        size = high - low
        if low <= pointer < high and _LEAST <= size <= _MOST and not size & (size - 1):
            return low, high
    return None


def _goroutines(memory: Memory, register: int, thread_pointer: int) -> Iterator[int]:
    """Yield addresses of which some may be of a ``runtime.g``, the most likely first."""
    likely = [register, *_words(memory, thread_pointer - _G_BEFORE_THREAD_POINTER, 1)]
    yield from likely
    for goroutine in likely:
        (thread,) = _words(memory, goroutine + _M_OF_G, 1)
        for place in _GS_OF_M if thread else ():
            yield _words(memory, thread + place, 1)[0]


def _words(memory: Memory, address: int, count: int) -> tuple[int, ...]:
    """Return words of memory, zeros where there is none."""
    if not 0 < address < _END:
        return (0,) * count
    try:
        content = memory.read(address, 8 * count)
    except MemoryFault:
        return (0,) * count
    return tuple(int.from_bytes(content[at : at + 8], "little") for at in range(0, 8 * count, 8))
