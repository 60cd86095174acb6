"""Which registers and flags inserted code may destroy.

A register is dead at a point if on every path from there it is overwritten before it is read, and nobody outside the
function can expect its value (``clobbers`` says when). Where the control flow is unknown everything is live.
"""

from dataclasses import dataclass

from anyprobe.binary.cfg import CodeMap, FunctionCode
from anyprobe.binary.clobbers import TLS_DESCRIPTOR_CALL, Clobbers
from anyprobe.binary.codescan import Kind
from anyprobe.isa import registers
from anyprobe.isa.decode import FLOWS, Flow, Insn
from anyprobe.isa.effects import STATUS_FLAGS, effects_of
from anyprobe.isa.registers import ALL_GPRS, SYSV_CLOBBERED, mask_of, names_of

PREFERENCE = ("r11", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r12", "r13", "rbx", "r15")
"""In which order dead registers are offered: the ones that the convention leaves to linkers and callees first."""

# One mask for all: bits 0-15 registers, bits 16-21 status flags.
_FLAGS = STATUS_FLAGS << 16
_ALL = ALL_GPRS | _FLAGS
_SYSCALL_READS = mask_of(("rax", "rdi", "rsi", "rdx", "r10", "r8", "r9", "rsp"))
_INT80_READS = mask_of(("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp"))
_SYSCALL_WRITES = mask_of(("rax", "rcx", "r11"))
_CALL = 0xE8
_INT3 = b"\xcc"
_PREFIX_STEPS = 24
_ENTRY_STEPS = 150
_WALK_STEPS = 400


@dataclass(frozen=True, slots=True)
class Scratch:
    """What code inserted before a function's first instruction may destroy."""

    dead: tuple[str, ...]
    flags_dead: bool


@dataclass(frozen=True, slots=True)
class Live:
    """What must be the same behind inserted code as before it."""

    gprs: frozenset[str]
    flags: bool


@dataclass(frozen=True, slots=True)
class _Convention:
    """What calls read and returns give back, as masks."""

    call_reads: int
    ret_reads: int
    clobbered: int


_SYSV = _Convention(
    registers.SYSV_CALL_READS, registers.SYSV_RESULTS | registers.SYSV_PRESERVED, registers.SYSV_CLOBBERED
)
_GO = _Convention(
    registers.GO_CALL_READS,
    registers.GO_ARGUMENTS | registers.GO_PRESERVED,
    ALL_GPRS & ~registers.GO_PRESERVED,
)


def entry_scratch(code_map: CodeMap, function: FunctionCode, wanted: int = 1) -> Scratch:
    """Return what is dead at the function's entry (behind ``endbr64``).

    The search stops early when it has ``wanted`` registers; there may be more.
    """
    return _analysis(code_map).entry_scratch(function, wanted)


def live_at(code_map: CodeMap, function: FunctionCode, address: int) -> Live:
    """Return what is live before the instruction at an address."""
    return _analysis(code_map).live_at(function, address)


def _analysis(code_map: CodeMap) -> "_Analysis":
    known = code_map.liveness
    if not isinstance(known, _Analysis):
        known = code_map.liveness = _Analysis(code_map)
    return known


class _Analysis:
    """What is known of one module; every function's part of it is computed once."""

    def __init__(self, code_map: CodeMap) -> None:
        self.map = code_map
        self.clobbers = Clobbers(code_map)
        self.convention = _GO if code_map.text.is_go else _SYSV
        self._entry: dict[tuple[int, int], Scratch] = {}
        self._read_first: dict[int, int] = {}
        self._callers: dict[int, bool] = {}

    def entry_scratch(self, function: FunctionCode, wanted: int) -> Scratch:
        known = self._entry.get((function.start, wanted))
        if known is None:
            start = function.index_of(function.entry)
            dead = self._dead_at_entry(function, start, wanted) if start is not None else 0
            names = tuple(name for name in PREFERENCE if dead >> registers.NUMBERS[name] & 1)
            known = self._entry[function.start, wanted] = Scratch(names, dead & _FLAGS == _FLAGS)
        return known

    def live_at(self, function: FunctionCode, address: int) -> Live:
        start = function.index_of(address)
        live = _ALL if start is None else _Walk(self, function).live(start, _ALL, _WALK_STEPS)
        return Live(names_of(live | registers.mask_of(("rsp",))), bool(live & _FLAGS))

    def _dead_at_entry(self, function: FunctionCode, start: int, wanted: int) -> int:
        """Look at the straight line from the entry first, then for registers that the function never mentions."""
        candidates = self.convention.clobbered & ~mask_of(("rsp",)) | _FLAGS
        walk = _Walk(self, function)
        live, pending = walk.straight(start, candidates)
        dead = candidates & ~live & ~pending
        if _is_enough(dead, wanted):
            return dead
        unmentioned = self._unmentioned(function, pending & ALL_GPRS)
        dead |= unmentioned
        if _is_enough(dead, wanted):
            return dead
        return dead | pending & ~walk.live(start, pending & ~unmentioned, _ENTRY_STEPS)

    def _unmentioned(self, function: FunctionCode, mask: int) -> int:
        """Return those registers that nothing in the function or behind its exits can read."""
        if function.complete is not None:
            return 0
        for insn in function.special:
            mask &= ~self._read_by_transfer(function, insn)
            if not mask:
                return 0
        mask &= self.destroyed(function)
        for number, one in enumerate(function.iced):
            if not mask:
                break
            if FLOWS[one.code] is Flow.NEXT:
                mask &= ~effects_of(one, function.raw_at(number)).reads
        return mask

    def _read_by_transfer(self, function: FunctionCode, insn: Insn) -> int:
        """Return what an instruction that transfers control may read, itself or where it leads out."""
        flow, target = insn.flow, insn.target
        if flow is Flow.RET:
            return self.convention.ret_reads
        if flow is Flow.SYSCALL:
            return _SYSCALL_READS | _INT80_READS
        if flow is Flow.TRAP and insn.raw != _INT3:
            return 0
        if flow is Flow.INDIRECT_CALL:
            return self.convention.call_reads | effects_of(insn.iced, insn.raw).reads
        if flow is Flow.INDIRECT_JUMP:
            table = function.table_of(insn.address)
            outward = [t for t in table.targets if not function.start <= t < function.end] if table else []
            if outward or (table is None and function.has_inner_entries):
                return ALL_GPRS
            return effects_of(insn.iced, insn.raw).reads | (0 if table else self.convention.call_reads)
        if target is None:
            return ALL_GPRS
        own = effects_of(insn.iced, insn.raw).reads
        if flow is not Flow.CALL and function.start <= target < function.end:
            return own
        if self.map.start_of(target) != target and not self.map.is_stub(target):
            return ALL_GPRS if flow is not Flow.CALL else self.convention.call_reads
        return own | self.convention.call_reads | self.reads_first(target)

    def destroyed(self, function: FunctionCode) -> int:
        """Return the registers that no caller expects back."""
        if self.map.text.is_go:
            return self.convention.clobbered & ~self.clobbers.saved(function)
        return self.clobbers.of(function)

    def reads_first(self, target: int) -> int:
        """Return what a callee of this module reads before it writes, as far as a straight line shows it.

        Ordinary functions read their arguments only; thunks (``__x86_indirect_thunk_r11``) read any register.
        """
        known = self._read_first.get(target)
        if known is None:
            callee = self.map.function_at(target) if self.map.start_of(target) == target else None
            live = _Walk(self, callee).straight(0, ALL_GPRS)[0] if isinstance(callee, FunctionCode) else 0
            known = self._read_first[target] = live & SYSV_CLOBBERED
        return known

    def callers_read_flags(self, function: FunctionCode) -> bool:
        """Return whether some direct call of the function is followed by a read of the flags: no compiler does."""
        known = self._callers.get(function.start)
        if known is None:
            known = self._callers[function.start] = any(
                kind is Kind.NEAR and self._flags_read_at(source + 5)
                for _, source, kind in self.map.references.into(function.start, function.entry + 1)
                if self.map.byte_at(source) == _CALL
            )
        return known

    def _flags_read_at(self, address: int) -> bool:
        caller = self.map.containing(address)
        number = caller.index_of(address) if caller is not None else None
        while caller is not None and number is not None and number < len(caller.iced):
            effect = effects_of(caller.iced[number], caller.raw_at(number))
            if effect.flags_read:
                return True
            if effect.flags_written or FLOWS[caller.iced[number].code] is not Flow.NEXT:
                return False
            number += 1
        return False


def _is_enough(dead: int, wanted: int) -> bool:
    return dead & _FLAGS == _FLAGS and (dead & ALL_GPRS).bit_count() >= wanted


class _Walk:
    """One forward search from an instruction of a function."""

    def __init__(self, analysis: _Analysis, function: FunctionCode) -> None:
        self.analysis, self.map, self.function = analysis, analysis.map, function
        self.convention = analysis.convention
        self._live = 0

    def straight(self, number: int, mask: int) -> tuple[int, int]:
        """Return (live, undecided) of ``mask`` from the straight line at an instruction."""
        live, code = 0, self.function
        for step in range(number, min(number + _PREFIX_STEPS, len(code.iced))):
            if FLOWS[code.iced[step].code] is not Flow.NEXT:
                insn = code.insn(step)
                effect = effects_of(insn.iced, insn.raw)
                # syscall saves the flags in r11 and restores them: no read that anybody sees.
                flags_read = 0 if insn.flow is Flow.SYSCALL else effect.flags_read << 16
                live |= mask & (effect.reads | flags_read)
                break
            effect = effects_of(code.iced[step], code.raw_at(step))
            live |= mask & (effect.reads | effect.flags_read << 16)
            mask &= ~(live | effect.writes | effect.flags_written << 16)
            if not mask:
                break
        return live, mask & ~live

    def live(self, number: int, mask: int, budget: int) -> int:
        """Return the bits of ``mask`` that may be live before an instruction."""
        self._live = 0
        seen: dict[tuple[int, int], int] = {}
        todo: list[tuple[FunctionCode, int, int]] = [(self.function, number, mask)]
        while todo:
            code, here, pending = todo.pop()
            while True:
                pending &= ~self._live
                key = (code.start, here)
                if pending & ~seen.get(key, 0) == 0:
                    break
                seen[key] = seen.get(key, 0) | pending
                if len(seen) > budget or here >= len(code.iced) or code.broken is not None:
                    # Out of budget or off the end: whatever is undecided on this path stays live.
                    self._live |= pending
                    break
                if FLOWS[code.iced[here].code] is not Flow.NEXT:
                    todo += self._transfer(code, code.insn(here), here, pending)
                    break
                effect = effects_of(code.iced[here], code.raw_at(here))
                self._live |= pending & (effect.reads | effect.flags_read << 16)
                pending &= ~(effect.writes | effect.flags_written << 16)
                here += 1
        return self._live

    def _transfer(self, code: FunctionCode, insn: Insn, here: int, pending: int) -> list[tuple[FunctionCode, int, int]]:
        """Step over an instruction that does not simply go on; return where the search continues."""
        flow = insn.flow
        if flow is Flow.SYSCALL:
            return self._system_call(code, insn, here, pending)
        if flow is Flow.OTHER or flow is Flow.INVALID or insn.raw == _INT3:
            self._live |= pending
            return []
        effect = effects_of(insn.iced, insn.raw)
        self._live |= pending & (effect.reads | effect.flags_read << 16)
        pending &= ~self._live
        if flow is Flow.TRAP:
            return []
        if insn.is_call:
            return self._call(code, insn, here, pending)
        if flow is Flow.RET:
            self._leave(pending, self.convention.ret_reads)
            return []
        if flow is Flow.INDIRECT_JUMP:
            return self._indirect_jump(code, insn, pending)
        following = [(code, here + 1, pending)] if insn.falls_through else []
        return following + self._jump(code, insn.target or 0, pending)

    def _system_call(
        self, code: FunctionCode, insn: Insn, here: int, pending: int
    ) -> list[tuple[FunctionCode, int, int]]:
        """The kernel gives back every register but these, and the flags."""
        fast = insn.raw == b"\x0f\x05"
        self._live |= pending & (_SYSCALL_READS if fast else _INT80_READS)
        return [(code, here + 1, pending & ~(_SYSCALL_WRITES if fast else 0))]

    def _call(self, code: FunctionCode, insn: Insn, here: int, pending: int) -> list[tuple[FunctionCode, int, int]]:
        self._live |= pending & self.convention.call_reads
        if insn.target is None:
            preserving = insn.raw == TLS_DESCRIPTOR_CALL
            killed = mask_of(("rax",)) if preserving else self.convention.clobbered
        else:
            self._live |= pending & self.analysis.reads_first(insn.target)
            if insn.target in self.map.text.noreturn:
                return []
            # Go's runtime has callees that preserve every register; there a call tells nothing.
            killed = 0 if self.map.text.is_go else self.analysis.clobbers.at_call(insn.target)
        if here + 1 >= len(code.iced):
            return []  # a call that ends its function does not return
        return [(code, here + 1, pending & ~killed & ~_FLAGS)]

    def _leave(self, pending: int, reads: int) -> None:
        """End a path that returns to the function's caller."""
        self._live |= pending & reads
        pending &= ~self._live
        if pending & ALL_GPRS:
            self._live |= pending & ALL_GPRS & ~self.analysis.destroyed(self.function)
        if pending & _FLAGS and self.analysis.callers_read_flags(self.function):
            self._live |= pending & _FLAGS

    def _jump(self, code: FunctionCode, target: int, pending: int) -> list[tuple[FunctionCode, int, int]]:
        """Follow a direct jump inside the function, into a part of it, or out of it."""
        if code.start <= target < code.end:
            place = code.index_of(target)
            if place is not None:
                return [(code, place, pending)]
            return self._give_up(pending)
        if self.function.start <= target < self.function.end:
            place = self.function.index_of(target)
            return [(self.function, place, pending)] if place is not None else self._give_up(pending)
        owner = self.map.start_of(target)
        if owner is not None and owner != target and not self.map.is_stub(target):
            part = self.map.function_at(owner)
            place = part.index_of(target) if isinstance(part, FunctionCode) else None
            if isinstance(part, FunctionCode) and place is not None:
                return [(part, place, pending)]
            return self._give_up(pending)
        if owner == target:
            own = self.map.part_at(target, self.function)
            if own is not None:
                return [(own, 0, pending)]
            self._live |= pending & self.analysis.reads_first(target)
        self._leave(pending, self.convention.call_reads | registers.SYSV_PRESERVED)
        return []

    def _indirect_jump(self, code: FunctionCode, insn: Insn, pending: int) -> list[tuple[FunctionCode, int, int]]:
        table = code.table_of(insn.address)
        if table is not None:
            found: list[tuple[FunctionCode, int, int]] = []
            for target in table.targets:
                found += self._jump(code, target, pending)
            return found
        if insn.address in code.unresolved or code.has_inner_entries:
            return self._give_up(pending)
        self._leave(pending, self.convention.call_reads | registers.SYSV_PRESERVED)
        return []

    def _give_up(self, pending: int) -> list[tuple[FunctionCode, int, int]]:
        self._live |= pending
        return []
