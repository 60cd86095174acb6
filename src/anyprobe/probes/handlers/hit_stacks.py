"""The stack of a thread that waits for a callback, gone up in the controller by the rules that handlers go by.

A debugger that is attached meanwhile sees the thread in generated code, which no unwinding rules describe.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.binary.unwind.rules import (
    AT_RBP,
    END,
    NONE,
    OF_RBP,
    OF_RSP,
    OFFSET_SHIFT,
    SAVED_MASK,
    SAVED_SHIFT,
    SIGNAL,
    STUB,
)
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.probes.symbols import Symbols

Read = Callable[[int, int], bytes]
_DEPTH = 126
_FRAME_LIMIT = 1 << 20
"""Bytes between a stack pointer and what can be a frame pointer."""
_SIGNAL_RBP, _SIGNAL_RSP, _SIGNAL_RIP = 120, 160, 168
"""In the kernel's ``ucontext``, which a signal-return trampoline finds at its stack pointer."""


class Stack(tuple[int, ...]):  # noqa: SLOT001 - a tuple can have no others
    """Addresses of code: where the hit was, then where each caller goes on. As a text: their names."""

    symbols: "Symbols[ObjectTable]"

    def __str__(self) -> str:
        """Return the names in one line, innermost first."""
        return self.symbols.stack(self)


class Frame(NamedTuple):
    """Where a function is, and what its caller's frame is found by."""

    pc: int
    sp: int
    bp: int
    exact: bool = False
    """Whether the instruction at ``pc`` comes next; else it is that behind a call."""


class HitStacks:
    """Goes up the stacks of one process."""

    def __init__(self, symbols: "Symbols[ObjectTable]", read: Read) -> None:
        """Find code by its symbols, and words of the stack by ``read``."""
        self._read = read
        self._symbols = symbols

    def stack(self, ip: int, rsp: int, rbp: int) -> Stack:
        """Return the stack of a thread that is in front of an instruction."""
        found = Stack(frame.pc for frame in self._frames(Frame(ip, rsp, rbp, exact=True)))
        found.symbols = self._symbols
        return found

    def _frames(self, frame: Frame) -> Iterator[Frame]:
        yield frame
        for number in range(1, _DEPTH):
            try:
                caller = self._caller(frame, innermost=number == 1)
            except (MemoryFault, TargetError):
                return
            if caller is None or caller.pc == 0 or self._rule(caller) is None:
                return
            frame = caller
            yield frame

    def _rule(self, frame: Frame) -> int | None:
        """Return the unwinding rule, ``NONE`` where there is none; None where there is no code."""
        at = frame.pc - (not frame.exact)
        loaded = self._symbols.objects.at(at)
        if loaded is None:
            self._symbols.objects.refresh()
            loaded = self._symbols.objects.at(at)
        if loaded is None or not any(each.start <= at < each.end for each in loaded.text):
            return None
        rules = loaded.image.unwind_rules
        return rules.at(at - loaded.bias - loaded.image.lowest_address) if len(rules.starts) else NONE

    def _caller(self, frame: Frame, *, innermost: bool) -> Frame | None:
        rule = self._rule(frame)
        if rule is None or rule & 7 == END:
            return None
        kind, offset = rule & 7, rule >> OFFSET_SHIFT & 0xFFFF
        words = offset - (offset >> 15 << 16)
        if kind == SIGNAL:
            pc, sp, bp = (self._word(frame.sp + each) for each in (_SIGNAL_RIP, _SIGNAL_RSP, _SIGNAL_RBP))
            return Frame(pc, sp, bp, exact=True)
        if kind == NONE:
            return self._by_frame_pointer(frame, innermost=innermost)
        above, bp = 0, frame.bp
        if kind == OF_RSP:
            above = frame.sp + 8 * words
        elif kind == OF_RBP:
            above = frame.bp + 8 * words
        elif kind == STUB:
            above = frame.sp + 8 + 8 * (frame.pc & 15 >= words)
        elif kind == AT_RBP:
            above, bp = self._word(frame.bp + 8 * words), self._word(frame.bp)
        if above <= frame.sp:
            return None
        if saved := rule >> SAVED_SHIFT & SAVED_MASK:
            bp = self._word(above - 8 * saved)
        return Frame(self._word(above - 8), above, bp)

    def _by_frame_pointer(self, frame: Frame, *, innermost: bool) -> Frame | None:
        if innermost and self._begins(frame.pc):
            return Frame(self._word(frame.sp), frame.sp + 8, frame.bp)
        if not 0 <= frame.bp - frame.sp < _FRAME_LIMIT or frame.bp % 8:
            return None
        return Frame(self._word(frame.bp + 8), frame.bp + 16, self._word(frame.bp))

    def _begins(self, pc: int) -> bool:
        """Return whether a function begins here: then the return address is on top of the stack."""
        loaded = self._symbols.objects.at(pc)
        function = None if loaded is None else loaded.image.functions.containing(pc - loaded.bias)
        return function is not None and loaded is not None and pc - loaded.bias - function.start in (0, 4)

    def _word(self, address: int) -> int:
        return int.from_bytes(self._read(address, 8), "little")
