"""Which vector, mask and x87 registers are dead before the instructions of a function.

The same walk as ``liveness.site``, over other registers. Of a vector register two parts are told apart, the low 128
bits and the rest, since older instructions leave the rest as it was. The x87 stack, which MMX shares, is one thing:
that its registers are renamed by every push makes more of it hopeless.

A direct call overwrites what the function overwrites before it reads it. One through a pointer or a stub reads what the
System V convention passes in vector registers (psABI 3.2.3), and comes back with the rest as it was, as compilers may
have agreed. A return leaves the results, and whatever the function does not overwrite or may have put back. Go has
another convention, and functions that put the stack pointer elsewhere have none: there all is live. Control and status
words (MXCSR, the x87 environment) count as live everywhere, and are not listed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from iced_x86 import (
    CpuidFeature,
    Instruction,
    InstructionInfoFactory,
    Mnemonic,
    OpAccess,
    OpKind,
    Register,
    RegisterExt,
)

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.instruction_masks import KEEPS_ALL, masks_of
from anyprobe.binary.flow.first_bytes import FirstBytes
from anyprobe.binary.liveness.site import Line, SiteLiveness
from anyprobe.core.cachedproperty import cached_property
from anyprobe.isa.decode import FLOWS, Flow, constants
from anyprobe.isa.effects import READS, WRITES

_VECTORS, _MASKS = 32, 8
_REST, _K, X87 = 32, 64, 1 << 72
"""Low parts of vector registers are bits from 0 on, their rests from ``_REST`` on, mask registers from ``_K`` on."""
ALL = (1 << 73) - 1
ARGUMENTS = 0xFF | 0xFF << _REST
RESULTS = 0b11 | 0b11 << _REST | X87
_SAVING = frozenset(
    value for name, value in constants(Mnemonic).items() if name.startswith(("FXSAVE", "FXRSTOR", "XSAVE", "XRSTOR"))
)
_INITIALISING = frozenset({Mnemonic.FNINIT, Mnemonic.FINIT})
_STACK_FEATURES = frozenset({CpuidFeature.FPU, CpuidFeature.FPU287, CpuidFeature.FPU387, CpuidFeature.MMX})
_factory = InstructionInfoFactory()
_effects: dict[bytes, "VectorEffects"] = {}
_LIMIT = 100_000


class VectorEffects(NamedTuple):
    """What an instruction does, as masks."""

    reads: int
    writes: int
    """Overwritten in full whatever happens."""
    may_write: int
    fetched: int
    """What is loaded from memory or another register as it is: it may be what the caller had there."""


def names_of(mask: int) -> tuple[str, ...]:
    """Return what a mask says: ``zmm3`` for a register, ``xmm3`` and ``zmm3[128:]`` for its parts, ``k1``, ``x87``."""
    found = []
    for number in range(_VECTORS):
        parts = mask >> number & 1, mask >> _REST + number & 1
        found += {(1, 1): [f"zmm{number}"], (1, 0): [f"xmm{number}"], (0, 1): [f"zmm{number}[128:]"]}.get(parts, [])
    found += [f"k{number}" for number in range(_MASKS) if mask >> _K + number & 1]
    return (*found, *(["x87"] if mask & X87 else []))


def vector_effects(one: Instruction, raw: bytes) -> VectorEffects:
    """Return what an iced instruction decoded from ``raw`` does to vector, mask and x87 registers."""
    known = _effects.get(raw)
    if known is None:
        if len(_effects) > _LIMIT:
            _effects.clear()
        known = _effects[raw] = _ask(one)
    return known


def _ask(one: Instruction) -> VectorEffects:
    if one.mnemonic in _SAVING:  # by a mask that is not known
        return VectorEffects(ALL, 0, ALL, 0)
    reads = writes = may_write = 0
    # iced names the whole register where the upper part is cleared, as all VEX and EVEX forms do
    for used in _factory.info(one).used_registers():
        parts = _parts(used.register)
        reads |= parts if used.access in READS else 0
        may_write |= parts if used.access in WRITES else 0
        writes |= parts if used.access == OpAccess.WRITE else 0
    if not _STACK_FEATURES.isdisjoint(one.cpuid_features()):
        initialises = one.mnemonic in _INITIALISING
        reads, writes, may_write = reads | X87 * (not initialises), writes | X87 * initialises, may_write | X87
    moves = one.op_count == 2 and (one.op1_kind == OpKind.MEMORY or reads & ~may_write != 0)
    return VectorEffects(reads, writes, may_write, may_write if moves else 0)


def _parts(register: int) -> int:
    """Return the parts that a register has, none if it is of another kind."""
    full = RegisterExt.full_register(register)  # type: ignore[arg-type]
    if Register.ZMM0 <= full <= Register.ZMM31:
        number = int(full) - int(Register.ZMM0)
        low = 1 << number
        return low if RegisterExt.is_xmm(register) else low | low << _REST  # type: ignore[arg-type]
    if Register.K0 <= register <= Register.K7:
        return 1 << _K + int(register) - int(Register.K0)
    return X87 if RegisterExt.is_st(register) or RegisterExt.is_mm(register) else 0  # type: ignore[arg-type]


class VectorLiveness(SiteLiveness):
    """What is dead before the instructions of one function; a part elsewhere is a function of its own."""

    candidates = ALL
    ends = SiteLiveness.ends | {Flow.CALL, Flow.INDIRECT_CALL, Flow.SYSCALL}

    def __init__(self, code_map: ModuleView, function: FunctionView, *, looks_into_calls: bool = True) -> None:
        """Solve the function's blocks; ``looks_into_calls``: and those of the functions that it calls itself."""
        self._looks_into_calls, self._called = looks_into_calls, dict[int, int]()
        super().__init__(code_map, function)

    def _steps(self) -> Sequence[tuple[Flow, int, int]]:
        flows = map(FLOWS.__getitem__, self._function.codes)
        return [(flow, each.reads, each.writes) for flow, each in zip(flows, self._effects, strict=True)]

    @cached_property
    def _effects(self) -> list[VectorEffects]:
        function = self._function
        return [vector_effects(one, function.raw_at(number)) for number, one in enumerate(function.iced)]

    @cached_property
    def _left_by_return(self) -> int:
        """What is live after the function's returns."""
        if self._map.text.is_go or any(masks.moved & KEEPS_ALL for masks in masks_of(self._function)):
            return ALL
        destroyed = kept = stored = 0
        for effects in self._effects:
            destroyed |= effects.may_write
            kept |= effects.fetched
            stored |= effects.reads
        return RESULTS | ALL & ~(destroyed & ~(kept & stored))

    def _transfer(self, here: int, flow: Flow, live: int, pending: int) -> Line:
        if flow is Flow.RET:
            return Line(live | pending & self._left_by_return, 0, ())
        is_stub = flow is Flow.CALL and self._map.analyses.get(FirstBytes).is_stub(
            self._function.iced[here].near_branch_target
        )
        if (flow is Flow.INDIRECT_CALL or is_stub) and not self._map.text.is_go:
            return self._outcomes(live | pending & ARGUMENTS, pending & ~ARGUMENTS, (), here + 1)
        if flow is Flow.SYSCALL:  # the kernel gives all of it back
            return self._outcomes(live, pending, (), here + 1)
        return super()._transfer(here, flow, live, pending)

    def _dead_in_callee(self, target: int) -> int:
        known = self._called.get(target)
        if known is None:
            callee = self._map.containing(target) if self._looks_into_calls else None
            known = 0
            if callee is not None and callee.index_of(target) is not None and not self._map.text.is_go:
                known = VectorLiveness(self._map, callee, looks_into_calls=False).dead_at(target)
            self._called[target] = known
        return known
