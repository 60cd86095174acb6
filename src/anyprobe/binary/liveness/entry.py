"""Which registers and flags code inserted at a function's entry may destroy.

A register or the flags are dead if on every path from the entry they are overwritten before anything reads them and
before control leaves for code that is not known: no convention is relied upon, so that hand-written callers and callees
are served, too. Calls and jumps to other functions of the module are followed while that is cheap; a return, a call
through a pointer or a linkage stub, a system call, a trap end the search, and what is undecided there is live.

Go is the exception: its functions may have no stack left on which flags could be saved. Where there is no dead register
for them either, the flags count as dead after calls and returns, unless a caller in the module is seen to read them.
"""

from functools import cache
from typing import NamedTuple

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.decoding.instruction_masks import CANDIDATES, FLAGS
from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import FLOWS, Flow, Insn
from anyprobe.isa.effects import effects_of
from anyprobe.isa.registers import NUMBERS, SYSV_CLOBBERED

_PREFERENCE = ("r11", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10")
"""In which order dead registers are offered: the ones that the convention leaves to linkers and callees first."""

_CALL = 0xE8
_DEPTH = 3
_STEPS = 60
_Place = tuple[int, int]
"""Number of an instruction, and what is undecided before it."""


class Scratch(NamedTuple):
    """What code inserted before a function's first instruction may destroy."""

    dead: tuple[str, ...]
    flags_dead: bool


NOTHING = Scratch((), flags_dead=False)


@cache
def scratch_of(dead: int) -> Scratch:
    """Return what may be destroyed where a mask says what is dead."""
    return Scratch(tuple(name for name in _PREFERENCE if dead >> NUMBERS[name] & 1), dead & FLAGS == FLAGS)


def entry_scratch(code_map: ModuleView, function: FunctionView) -> Scratch:
    """Return what is dead at the function's entry (after ``endbr64``): enough for a counter, if there is enough."""
    return code_map.analyses.get(EntryLiveness).scratch(function)


class EntryLiveness:
    """What functions of one module overwrite before they read it; each is looked at once."""

    def __init__(self, code_map: ModuleView) -> None:
        """Look at no function yet."""
        self._map = code_map
        self._dead: dict[int, int] = {}

    def scratch(self, function: FunctionView) -> Scratch:
        """Return what is dead at a function's entry."""
        dead = self._dead_at_entry(function, 0)
        flags_dead = dead & FLAGS == FLAGS
        if self._map.text.is_go and not flags_dead and not dead & SYSV_CLOBBERED:
            flags_dead = not self._go_reads_flags(function)
        return Scratch(scratch_of(dead).dead, flags_dead)

    def flags_dead_before(self, function: FunctionView, address: int) -> bool:
        """Return whether nothing reads the flags that an instruction of a function is come to with."""
        number = function.index_of(address)
        return number is not None and function.broken is None and not self._live(function, number, FLAGS, 0)

    def _dead_at_entry(self, function: FunctionView, depth: int) -> int:
        known = self._dead.get(function.start)
        if known is None:
            self._dead[function.start] = 0  # recursion proves nothing
            start = function.index_of(function.entry)
            known = self._dead[function.start] = 0 if start is None else self._search(function, start, depth)
        return known

    def _search(self, function: FunctionView, start: int, depth: int) -> int:
        """Look at the straight line from the entry first: most functions show enough there."""
        live, pending, here = _straight(function, start, 0, CANDIDATES)
        dead = CANDIDATES & ~live & ~pending
        if dead & FLAGS == FLAGS and dead & SYSV_CLOBBERED:
            return dead
        return dead | pending & ~self._live(function, here, pending, depth)

    def _live(self, function: FunctionView, start: int, mask: int, depth: int) -> int:
        """Return the bits of ``mask`` that may be live before an instruction."""
        live = 0
        seen: dict[int, int] = {}
        todo = [(start, mask)]
        for _ in range(_STEPS):
            if not todo:
                return live
            here, pending = todo.pop()
            pending &= ~live
            if pending & ~seen.get(here, 0) == 0:
                continue
            seen[here] = seen.get(here, 0) | pending
            live, pending, here = _straight(function, here, live, pending)
            if pending == 0:
                continue
            read, following = self._transfer(function, here, pending, depth)
            live |= read
            todo += following
        for _, pending in todo:  # out of budget
            live |= pending
        return live

    def _transfer(self, function: FunctionView, here: int, pending: int, depth: int) -> tuple[int, list[_Place]]:
        """Step over an instruction that transfers control: return what is live, and where the search goes on."""
        if here >= len(function.iced):
            return pending, []  # off the end
        insn = function.insn(here)
        targets = _known_targets(function, insn)
        if not targets:
            return pending, []
        live = pending & _own_reads(function, here)
        following = [(here + 1, pending)] if insn.flow is Flow.JCC else []
        for target in targets:
            place = None if insn.flow is Flow.CALL else function.index_of(target)
            if place is None:
                live |= pending & ~self.overwritten_at(target, depth)
            else:
                following.append((place, pending))
        return live, following

    def overwritten_at(self, target: int, depth: int = 0) -> int:
        """Return what the function at an address overwrites before it reads it: a mask, flags from bit 16 on."""
        callee = (
            self._map.function_at(target) if depth < _DEPTH and self._map.layout.start_of(target) == target else None
        )
        if callee is None or isinstance(callee, Refusal):
            return 0
        return self._dead_at_entry(callee, depth + 1)

    def _go_reads_flags(self, function: FunctionView) -> bool:
        """Return whether a Go function, or the code after a direct call of it, reads the flags it is entered with."""
        start = function.index_of(function.entry)
        if start is None or _straight(function, start, 0, FLAGS)[0]:
            return True
        return any(
            kind is Kind.NEAR and self._reads_flags(source + 5)
            for _, source, kind in self._map.entries.references.into(function.start, function.entry + 1)
            if self._map.layout.byte_at(source) == _CALL
        )

    def _reads_flags(self, address: int) -> bool:
        caller = self._map.containing(address)
        number = caller.index_of(address) if caller is not None else None
        if caller is None or number is None:
            return False
        live, pending, number = _straight(caller, number, 0, FLAGS)
        if pending and number < len(caller.iced):
            live |= _own_reads(caller, number) & pending
        return bool(live)


def _straight(function: FunctionView, here: int, live: int, pending: int) -> tuple[int, int, int]:
    """Go along a straight line until it ends or all is decided; return (live, undecided, where it stopped)."""
    iced, codes, addresses = function.iced, function.codes, function.addresses
    content, start, end, plain = function.content, function.start, len(codes), Flow.NEXT
    while pending and here < end and FLOWS[codes[here]] is plain:
        one, at = iced[here], addresses[here] - start
        reads, writes, _, flags_read, flags_written = effects_of(one, content[at : at + one.len])
        live |= pending & (reads | flags_read << 16)
        pending &= ~(live | writes | flags_written << 16)
        here += 1
    return live, pending, here


def _own_reads(function: FunctionView, number: int) -> int:
    effect = effects_of(function.iced[number], function.raw_at(number))
    return effect.reads | effect.flags_read << 16


def _known_targets(function: FunctionView, insn: Insn) -> tuple[int, ...]:
    """Return every place, but the next instruction, that control may go to; none if not all are known."""
    if insn.flow is Flow.INDIRECT_JUMP:
        table = function.table_of(insn.address)
        return tuple(table.targets) if table is not None else ()
    if insn.flow in (Flow.JUMP, Flow.JCC, Flow.CALL) and insn.target is not None:
        return (insn.target,)
    return ()
