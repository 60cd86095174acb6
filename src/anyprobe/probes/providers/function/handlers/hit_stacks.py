"""The stack of a thread that waits for a callback, gone up in the controller by the rules that handlers go by.

A debugger that is attached meanwhile sees the thread in generated code, which no unwinding rules describe.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from anyprobe.binary.unwind.rules import NONE
from anyprobe.probes.stacks.unwinding import Code, Frame, walk

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.probes.stacks.symbols import Symbols

Read = Callable[[int, int], bytes]


class Stack(tuple[int, ...]):  # noqa: SLOT001 - a tuple can have no others
    """Addresses of code: where the hit was, then where each caller goes on. As a text: their names."""

    symbols: "Symbols[ObjectTable]"

    def __str__(self) -> str:
        """Return the names in one line, innermost first."""
        return self.symbols.stack(self)


class HitStacks(Code):
    """Goes up the stacks of one process."""

    def __init__(self, symbols: "Symbols[ObjectTable]", read: Read) -> None:
        """Find code by its symbols, and words of the stack by ``read``."""
        self._read = read
        self._symbols = symbols

    def stack(self, ip: int, rsp: int, rbp: int) -> Stack:
        """Return the stack of a thread that is in front of an instruction."""
        found = Stack(frame.pc for frame in walk(self, Frame(ip, rsp, rbp, exact=True), self._word).frames)
        found.symbols = self._symbols
        return found

    def rule(self, at: int) -> int | None:
        """Return the unwinding rule of an instruction, ``NONE`` where there is none; None where there is no code."""
        loaded = self._symbols.objects.at(at)
        if loaded is None:
            self._symbols.objects.refresh()
            loaded = self._symbols.objects.at(at)
        if loaded is None or not any(each.start <= at < each.end for each in loaded.text):
            return None
        rules = loaded.image.unwind_rules
        return rules.at(at - loaded.bias - loaded.image.lowest_address) if len(rules.starts) else NONE

    def begins(self, pc: int) -> bool:
        """Return whether a function begins here, or after its ``endbr64``."""
        loaded = self._symbols.objects.at(pc)
        function = None if loaded is None else loaded.image.functions.containing(pc - loaded.bias)
        return function is not None and loaded is not None and pc - loaded.bias - function.start in (0, 4)

    def _word(self, address: int) -> int:
        return int.from_bytes(self._read(address, 8), "little")
