"""What a patch finds out before it calls a handler, which does nothing where that does not hold.

Comparisons of registers, of words on the stack, and of numbers in memory. Memory is read only where the program goes
on to access the same page in any case (``binary.liveness.certain_accesses``), so that whether the thread faults is no
matter of the probe. Two things are looked at first, and where they are not so the handler decides by itself, through
the kernel: no pointer is null, and what is read lies in the page that the program will access.

A read that faults all the same would have faulted in the program a few instructions later, at the same page. Where the
program handles faults the thread goes on at a *landing* (``codegen.fault_exit``), which calls the handler; the program
then meets its own fault at its own instruction.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from anyprobe.binary.liveness.certain_accesses import Access, Pointer
from anyprobe.core.code import Comparison, NativeCode, Number
from anyprobe.isa.assemble import i32
from anyprobe.isa.registers import NUMBERS, part_of
from anyprobe.splice.codegen.handlers.inline import SCRATCH_ORDER, InPatch, source_of
from anyprobe.splice.emitted import ENTRY_BYTES
from anyprobe.splice.translate.routine import LAST_TRAP

if TYPE_CHECKING:
    from anyprobe.splice.codegen.patch import Action, PatchWriter
    from anyprobe.splice.plan.splices import Clobbers

READS_ESTIMATE = ENTRY_BYTES * (LAST_TRAP + 1) + 640
"""Bytes that a guard with reads takes besides, at most."""
_NULLS = 4096
"""What lies below is taken for null."""
_PAGE = 4096
_LOADS = {
    (8, True): "movsx {0}, byte [{1}+place]", (16, True): "movsx {0}, word [{1}+place]",
    (32, True): "movsxd {0}, dword [{1}+place]", (8, False): "movzx {0}, byte [{1}+place]",
    (16, False): "movzx {0}, word [{1}+place]", (32, False): "mov {0}, dword [{1}+place]",
    (64, True): "mov {0}, [{1}+place]", (64, False): "mov {0}, [{1}+place]",
}  # fmt: skip
_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Guard:
    """What a patch finds out before it calls a handler, which does nothing where it does not hold."""

    only_if: tuple[Comparison, ...]
    sources: tuple[str, ...]
    """As for ``Inline``."""
    nearby: tuple[tuple[_Span, ...], ...] = ()
    """The bytes that the program accesses near each read, for each comparison."""

    @property
    def reads(self) -> bool:
        """Whether it reads memory."""
        return any(each.number.path for each in self.only_if)

    def emit(self, writer: "PatchWriter", action: "Action", clobbers: "Clobbers") -> bool:
        """Append comparisons, and the call of the handler where they all hold; return whether that could be."""
        if not clobbers.flags and "rax" in self.sources:
            return False
        _Guarded(writer, action, self, clobbers).run()
        return True

    def where(self, accesses: AbstractSet[Access]) -> "Guard | None":
        """Return what is left of it where the program goes on to make some accesses; ``None``: nothing."""
        kept, nearby = list[Comparison](), list[tuple[_Span, ...]]()
        for each in self.only_if:
            spans = _spans(each.number, self.sources[each.number.word], accesses)
            if spans is not None:
                kept.append(each)
                nearby.append(spans)
        return Guard(tuple(kept), self.sources, tuple(nearby)) if kept else None


def guard_of(code: NativeCode) -> Guard | None:
    """Return what a patch can find out before it calls a handler, ``None`` where that is nothing."""
    used = {each.number.word for each in code.only_if}
    found = tuple(source_of(each) if index in used else "" for index, each in enumerate(code.inputs))
    return Guard(code.only_if, cast("tuple[str, ...]", found)) if used and None not in found else None


def _spans(number: Number, source: str, accesses: AbstractSet[Access]) -> tuple[_Span, ...] | None:
    """Return, for each read that leads to a number, the accessed bytes that lie nearest; ``None`` where one has none.

    They lie around what is read, before it or after it, less than a page away.
    """
    pointer = Pointer(source) if source in NUMBERS else Pointer("rsp").read(int(source.removeprefix("stack+") or 0))
    found = list[_Span]()
    for at, displacement in enumerate(number.path):
        size = _size(number, at)
        spans = [(each.start, each.end) for each in accesses if each.pointer == pointer]
        usable = [span for span in spans if _is_near(span, displacement, displacement + size)]
        if not usable:
            return None
        found.append(min(usable, key=lambda span: abs(span[0] - displacement)))
        pointer = pointer.read(displacement)
    return tuple(found)


def _is_near(span: _Span, start: int, end: int) -> bool:
    if span[0] <= start:
        return end - span[0] < _PAGE
    return span[1] >= end and span[1] - start < _PAGE


class _Guarded(InPatch):
    """Writes comparisons, and the call of the routine for where they all hold."""

    def __init__(self, writer: "PatchWriter", action: "Action", guard: Guard, clobbers: "Clobbers") -> None:
        super().__init__(writer, action, guard.sources)
        self._guard, self._keeps_flags = guard, not clobbers.flags
        free = [name for name in SCRATCH_ORDER if name not in (*guard.sources, "rax")]
        self._scratch, self._second = free[:2]
        needs_scratch = any(self._register(each.number) is None for each in guard.only_if)
        # what is dead is saved, too: the handler shows it
        self._pushed = ["rax"] * self._keeps_flags + [self._scratch] * needs_scratch
        self._pushed += [self._second] * self._needs_second()
        self._after = 0
        self._loads: list[int] = []
        """Where memory is read."""

    def _needs_second(self) -> bool:
        pairs = zip(self._guard.only_if, self._guard.nearby, strict=False)
        return any(not _covers(span, each.number, at) for each, spans in pairs for at, span in enumerate(spans))

    def run(self) -> None:
        """Append it."""
        writer = self._writer
        self._save()
        nearby = self._guard.nearby or ((),) * len(self._guard.only_if)
        leaving = []
        for each, spans in zip(self._guard.only_if, nearby, strict=True):
            self._spans = spans
            leaving.append(self._leave_unless(each))
        writer.cold("jmp holds", self._holds)
        for at in leaving:
            writer.out[at - 4 : at] = i32(len(writer.out) - at)
        self._restore()
        self._after = writer.here

    def _holds(self) -> None:
        """Append the call, and where reads that fault land: there the handler finds out what is to be done."""
        writer, start = self._writer, self._writer.here
        self._call_routine(self._after)
        if self._loads:
            entries = writer.here
            for _ in range(LAST_TRAP + 1):
                writer.relative("jmp holds", start)
                writer.code("int3; " * (ENTRY_BYTES - 5))
            writer.soft_reads += [(load, entries) for load in self._loads]

    def _register(self, number: Number) -> str | None:
        return None if number.path else super()._register(number)

    def _load(self, number: Number, register: str) -> None:
        """Append: a register gets a number, perhaps of memory; the handler is called where that may not be read."""
        if not number.path:
            super()._load(number, register)
            return
        source = self._sources[number.word]
        if source not in NUMBERS:
            super()._load(Number(number.word), register)
            source = register
        for at, (displacement, span) in enumerate(zip(number.path, self._spans, strict=True)):
            last = at == len(number.path) - 1
            self._check(source, displacement, _size(number, at), span)
            self._loads.append(self._writer.here)
            form = _LOADS[number.read if last else (64, False)]
            wide = register if number.read[1] or number.read[0] == 64 or not last else part_of(register, 32)
            self._writer.value(form.format(wide, source), displacement)
            source = register
        self._convert(number, register, register)

    def _check(self, pointer: str, displacement: int, size: int, span: _Span) -> None:
        """Append: call the handler if a pointer is null, or what it leads to lies in a page that may not be there."""
        writer, end = self._writer, displacement + size
        writer.value(f"cmp {pointer}, nulls", _NULLS)
        writer.cold("jb holds", self._holds)
        if _contains(span, displacement, end):
            return
        # the byte that is furthest away has to be in the page of one that is accessed
        furthest, accessed = (end - 1, span[0]) if span[0] <= displacement else (displacement, span[1] - 1)
        second = self._second
        writer.value(f"lea {second}, [{pointer}+place]", furthest)
        writer.value(f"and {second}, last", _PAGE - 1)
        writer.value(f"add {second}, distance", accessed - furthest)
        writer.value(f"cmp {second}, last", _PAGE - 1)
        writer.cold("ja holds", self._holds)


def _covers(span: _Span, number: Number, at: int) -> bool:
    start = number.path[at]
    return _contains(span, start, start + _size(number, at))


def _contains(span: _Span, start: int, end: int) -> bool:
    return span[0] <= start and end <= span[1]


def _size(number: Number, at: int) -> int:
    """Return the bytes of a read on the way to a number: its own of the last one, else those of a pointer."""
    return number.read[0] // 8 if at == len(number.path) - 1 else 8
