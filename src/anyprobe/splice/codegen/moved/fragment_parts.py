"""What a line that moves consists of: stretches that are copied as they are, and what comes in between."""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from iced_x86 import Code, Register

from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.effects import effects_of
from anyprobe.isa.encode import CONDITIONS, head
from anyprobe.splice.memory.places import Places
from anyprobe.splice.plan.splices import PlannedSplice, Want

_SETTING_THREADS = frozenset(
    {
        Code.WRFSBASE_R32, Code.WRFSBASE_R64, Code.MOV_SREG_RM16, Code.MOV_SREG_R32M16, Code.MOV_SREG_R64M16,
        Code.POPW_FS, Code.POPQ_FS, Code.LFS_R16_M1616, Code.LFS_R32_M1632, Code.LFS_R64_M1664,
    }
)  # fmt: skip
"""After these ``fs`` may be another thread's."""
_I32 = struct.Struct("<i")
_NEAR_JUMPS = (0xE9, 0xEB)

SETS_THREAD, _REWRITTEN = 1 << 16, 1 << 17
"""What is known of an instruction, beside the registers that it may change if it goes on to the next one: that ``fs``
may be another thread's after it; that its copy has other bytes."""
_traits: dict[bytes, int] = {}
"""By the instruction's bytes."""
_TRAITS_LIMIT = 200_000

Form = tuple[bytes, bytes, int] | tuple[()]
"""What stands before a displacement and after it, and where that leads; or nothing that saves a closer look."""
FROM_ITSELF: Form = ()
JUMP = head("jmp target")
LONG_JCC = tuple(head(f"j{condition} target") for condition in CONDITIONS)
"""Conditional jumps in their long form, without the displacement."""


class Stretch(NamedTuple):
    """Instructions of a line up to the next counter, or to one whose copy has other bytes."""

    first: int
    """Address of the first instruction."""
    wants: Sequence[Want]
    """At the first instruction."""
    plain: Sequence[Insn]
    """What is copied as it is."""
    raw: bytes
    turn: Insn | None
    """What follows, and has other bytes as a copy."""
    form: Form
    changed: int
    """Which registers ``plain`` may change, and whether it sets ``fs``."""
    changed_by_all: int
    """The registers that change with ``turn``."""


def stretches_of(splice: PlannedSplice, bias: int) -> list[Stretch]:
    """Cut a line before counters and after instructions whose copies have other bytes."""
    insns, by_address = splice.insns, _by_address(splice.wants)
    found: list[Stretch] = []
    start = traits = 0
    for number, insn in enumerate(insns):
        own = _traits.get(insn.raw)
        if own is None:
            own = _traits_of(insn)
        if number > start and insn.address in by_address:
            found.append(_stretch(insns[start:number], by_address, traits))
            start, traits = number, 0
        if own & _REWRITTEN:
            form = _form(insn, bias)
            found.append(_stretch(insns[start:number], by_address, traits, insn, form, own))
            start, traits = number + 1, 0
        else:
            traits |= own
    if start < len(insns):
        found.append(_stretch(insns[start:], by_address, traits))
    return found


def _form(insn: Insn, bias: int) -> Form:
    """Return what is to be known of an instruction whose copy has other bytes."""
    raw, target = insn.raw, insn.target
    if target is not None:
        if insn.flow is Flow.JUMP and raw[0] in _NEAR_JUMPS:
            return JUMP, b"", target + bias
        condition = insn.condition
        return FROM_ITSELF if condition is None else (LONG_JCC[condition], b"", target + bias)
    if insn.iced.memory_base != Register.RIP:
        return FROM_ITSELF
    # where the displacement's four bytes can be told from the rest, they are all that changes
    # below the first byte of a file, in the vdso, link-time addresses wrap
    address = insn.iced.ip_rel_memory_address
    old = _I32.pack(signed_distance(address - insn.end))
    front, found, back = raw.partition(old)
    return (front, back, address + bias) if found and old not in front + back else FROM_ITSELF


def _stretch(
    plain: Sequence[Insn],
    by_address: dict[int, list[Want]],
    traits: int,
    turn: Insn | None = None,
    form: Form = FROM_ITSELF,
    after: int = 0,
) -> Stretch:
    first = plain[0] if plain else turn
    assert first is not None
    raw = b"".join([insn.raw for insn in plain])
    return Stretch(first.address, by_address.get(first.address, ()), plain, raw, turn, form, traits, traits | after)


def last_changed(registers: int, stretch: Stretch) -> int:
    """Return which of some registers, all of which a stretch changes, are changed last."""
    for insn in (*stretch.plain, *((stretch.turn,) if stretch.turn is not None else ())):
        kept = registers & ~_traits_of(insn)
        if not kept:
            break
        registers = kept
    return registers


def _traits_of(insn: Insn) -> int:
    known = _traits.get(insn.raw)
    if known is None:
        if len(_traits) > _TRAITS_LIMIT:
            _traits.clear()
        known = _traits[insn.raw] = _work_out_traits(insn)
    return known


def _work_out_traits(insn: Insn) -> int:
    if insn.flow is not Flow.NEXT:
        return _REWRITTEN
    traits = effects_of(insn.iced, insn.raw).may_write & 0xFFFF
    if insn.iced.code in _SETTING_THREADS:
        traits |= SETS_THREAD
    return traits | _REWRITTEN if insn.iced.is_ip_rel_memory_operand else traits


def signed_distance(difference: int) -> int:
    """Return the difference of two addresses that may have wrapped."""
    return (difference + (1 << 63)) % (1 << 64) - (1 << 63)


def _by_address(wants: Sequence[Want]) -> dict[int, list[Want]]:
    found: dict[int, list[Want]] = {}
    for want in wants:
        found.setdefault(want.address, []).append(want)
    return found


class SlowPlaces(Places):
    """The places in the slow line of the instructions of a line.

    A thread that is led there has no block in any register.
    """

    __slots__ = ("_bias", "_copies", "_insns", "_stretches")

    def __init__(
        self, insns: Sequence[Insn], bias: int, stretches: Sequence[tuple[int, int, int]], *, copies: bool
    ) -> None:
        """Take what a slow line consists of; ``copies``: where the copies are, not the counters before them."""
        self._insns, self._bias, self._stretches, self._copies = insns, bias, stretches, copies

    def __len__(self) -> int:
        """Return the number of instructions."""
        return len(self._insns)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the places of all instructions."""
        stretches = iter(self._stretches)
        following = next(stretches)
        shift = 0
        for insn in self._insns:
            address = insn.address
            place = address + shift
            if address == following[0]:
                _, start, copy = following
                following, shift = next(stretches, (-1, 0, 0)), copy - address
                place = copy if self._copies else start
            yield address + self._bias, place
