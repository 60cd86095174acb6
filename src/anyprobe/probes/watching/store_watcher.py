"""A watch by a range test before every store of some modules: any number of bytes, in one process.

A handler runs before stores that go to watched memory, and to nothing else (``splice.codegen.handlers.store_test``). It
leaves a record: where the store is, where it goes, what is there, the registers, the stack. What is going to be stored
is worked out from the instruction and the registers.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iced_x86 import Instruction, Register

from anyprobe.core.closing import Closing
from anyprobe.core.code import Input, InputKind
from anyprobe.core.errors import SpecError, UnsupportedTarget
from anyprobe.data.aggregates.records import rows
from anyprobe.handlers.frontend.collecting import MISSING
from anyprobe.handlers.intrinsics import emit_partial
from anyprobe.handlers.types.annotations import ptr, u64
from anyprobe.isa.registers import GPRS
from anyprobe.isa.stores import is_masked, stored_bytes, string_bytes
from anyprobe.probes.clock import own_time
from anyprobe.probes.opening import attach
from anyprobe.probes.providers.function.handlers.actions import hook_up
from anyprobe.probes.providers.function.handlers.points import HandlerAt, Point
from anyprobe.probes.specs.spec import parsed
from anyprobe.probes.stacks.lines import SourceLines
from anyprobe.probes.watching.places import Watched, find
from anyprobe.probes.watching.stores import about_to_be_stored
from anyprobe.probes.watching.watcher import Access

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.probe import Place, Probe
    from anyprobe.probes.watching.heap import Allocation

MOST = 8
"""Ranges of one watch: each takes a comparison at every store."""
RECORD = "store"
DEPTH = 24
USUAL = ("a.out:*", "libc:mem*", "libc:__mem*", "libc:*str*cpy*", "libc:*str*cat*")
"""The functions whose stores are tested if nothing else is asked for: the program's, and the C library's copies."""
_REGISTERS = tuple(gpr.name for gpr in GPRS)
_OLD = 4
"""Which field of the record is what memory holds: it may be missing."""


_At: Any = ptr[u64]


def _before_store(ctx: Any) -> None:  # noqa: ANN401 - compiled
    emit_partial(
        "store", pc=u64(ctx.ip), address=u64(ctx.caller), tid=ctx.tid, pid=ctx.pid, old=_At(ctx.caller)[0],
        stack=ctx.ustack(24),
        rax=ctx.regs.rax, rcx=ctx.regs.rcx, rdx=ctx.regs.rdx, rbx=ctx.regs.rbx,
        rsp=ctx.regs.rsp, rbp=ctx.regs.rbp, rsi=ctx.regs.rsi, rdi=ctx.regs.rdi,
        r8=ctx.regs.r8, r9=ctx.regs.r9, r10=ctx.regs.r10, r11=ctx.regs.r11,
        r12=ctx.regs.r12, r13=ctx.regs.r13, r14=ctx.regs.r14, r15=ctx.regs.r15,
    )  # fmt: skip


def _check_number(watched: Sequence[Watched]) -> None:
    if len(watched) > MOST:
        raise UnsupportedTarget(f"{len(watched)} ranges are to be watched: {MOST} is the most")


class StoreWatcher(Closing):
    """Watches the stores of some functions of one process, to ``close``."""

    sees_kernel = False

    def __init__(self, pid: int, texts: Sequence[str], modules: Sequence[str], *, around: bool = False) -> None:
        """Place the tests.

        Args:
            pid: The process.
            texts: What is watched.
            modules: Those whose stores are tested; if none, the program's and what the C library copies by.
            around: What is watched are allocations of the heap, or rather what lies right before and after them.

        """
        specs = [f"{each}:*" for each in modules] or list(USUAL)
        self.allocations: list[Allocation] = []
        self._stack = ExitStack()
        self._session = self._stack.enter_context(attach(pid))
        try:
            found = [find(text, self._session.host.objects.objects) for text in texts]
            self.watched = self._around(found) if around else found
            _check_number(self.watched)
            self._place(specs)
        except BaseException:
            self._stack.close()
            raise
        self.seen, self.lost, self._ahead = 0, 0, 0
        self._lines = SourceLines()
        self._instructions: dict[int, Instruction | None] = {}

    def _around(self, watched: Sequence[Watched]) -> list[Watched]:
        """Return what lies before and after allocations."""
        from anyprobe.probes.watching.heap import allocation_at

        process, found = self._session.host.process, list[Watched]()
        for each in watched:
            allocation = allocation_at(each.text, each.address, process.mappings(), process.mem.read)
            self.allocations.append(allocation)
            length = each.size if each.text.endswith(f":{each.size}") else 0
            if length > allocation.end - allocation.start:
                raise SpecError(each.text, 0, f"this allocation has {allocation.end - allocation.start} bytes")
            found += allocation.outside(length)
        return found

    def close(self) -> None:
        """Take the tests out."""
        self._stack.close()

    def count(self) -> int:
        """Return how many stores to watched memory were met."""
        return self.seen + self.lost

    @property
    def sites(self) -> int:
        """How many stores are tested."""
        return self._sites

    @property
    def refused(self) -> int:
        """How many could not be."""
        return len(self._session.refused)

    def _place(self, specs: Sequence[str]) -> None:
        handling = self._session.handling
        read = parsed(tuple(f"{each}%store" for each in specs))
        facts = handling.prepared(HandlerAt(function=_before_store, point=Point.BEFORE, specs=read))
        caller = Input(InputKind.CONTEXT, "caller")
        inputs = (Input(InputKind.CONTEXT, "address") if each == caller else each for each in facts.code.inputs)
        code = facts.code._replace(inputs=tuple(inputs))
        told = replace(facts, code=code, watches=tuple((each.address, each.size) for each in self.watched))
        self._sites = 0

        def equip(probe: "Probe") -> None:
            probe.places[:] = [place for place in probe.places if self._may_go_there(place)]
            for place in probe.places:
                hook_up(place, told)
            self._sites += len(probe.places)

        self._session.place_made(read, equip)

    def _may_go_there(self, place: "Place") -> bool:
        """Return whether a store may go to watched memory: one that has its address by itself tells."""
        insn = place.insn
        if insn is None or insn.iced.memory_base != Register.RIP:
            return insn is not None
        start = insn.iced.memory_displacement + place.module.bias
        return self._watched_at(start, stored_bytes(insn.iced)) is not None

    def _watched_at(self, address: int, size: int) -> Watched | None:
        found = (each for each in self.watched if address < each.address + each.size and each.address < address + size)
        return next(found, None)

    def look(self, *, final: bool = False) -> Iterator[Access]:
        """Yield what has come since the last look."""
        self._ahead = time.monotonic_ns() - own_time()[0]
        for name, _, batch in self._session.handling.records(final=final):
            for row in rows(batch) if name == RECORD else ():
                access = self._access(row)
                if access is not None:
                    self.seen += 1
                    yield access
        self.lost = sum(sum(causes.values()) for causes in self._session.handling.dropped().values())

    def _access(self, row: dict[str, Any]) -> Access | None:
        pc, address = row["pc"], row["address"]
        instruction = self._instruction(pc)
        if instruction is None:
            return None
        size = stored_bytes(instruction)
        if instruction.has_rep_prefix and string_bytes(instruction):
            size *= row["rcx"]
        watched = self._watched_at(address, size) if size else None  # repeated no time it stores nothing
        if watched is None:
            return None
        usual = size in (1, 2, 4, 8)
        old = row["old"] & (1 << 8 * size) - 1 if usual and not row[MISSING] >> _OLD & 1 else None
        new = about_to_be_stored(instruction, row, size, old) if usual else None
        symbols = self._session.host.symbols
        loaded = symbols.objects.holding(pc)
        module, _, function = symbols.name(pc).rpartition(":")
        line = "" if loaded is None else self._lines.at(loaded, pc - loaded.bias)
        stack = [each.strip() for each in str(row["stack"]).split(" < ") if each.strip()]
        kind = "masked" if is_masked(instruction) else "write"
        return Access(
            row["ts"] + self._ahead, row["pid"], row["tid"], watched, address, size, pc, kind, old, new,
            function, module, line, stack,
        )  # fmt: skip

    def _instruction(self, pc: int) -> Instruction | None:
        if pc not in self._instructions:
            self._instructions[pc] = None
            loaded = self._session.host.symbols.objects.holding(pc)
            if loaded is not None:
                module = self._session.host.module(loaded)
                part = module.code.containing(pc - module.bias)
                insn = part.insn_at(pc - module.bias) if part is not None else None
                self._instructions[pc] = None if insn is None else insn.iced
        return self._instructions[pc]
