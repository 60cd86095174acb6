"""Wanted sites and planned splices: the values that planning, emission and transactions share.

All addresses are link-time addresses of the module unless they are said to be run-time ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from anyprobe.core.bulk import bulk_dataclass
from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.lines import KeptLine

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode

SHORT_BYTES = 2
"""Length of ``jmp rel8``."""
TRAP = b"\xcc"
"""``int3``."""
REDUNDANT_PREFIX = 0x36
"""A segment override: without meaning on a near jump, so it can pad one."""
OTHER_PREFIX = 0x65
"""Another one. As the highest byte of a displacement it leads beyond the room that is kept for a program's heap."""


JUMP_OPCODE, SHORT_OPCODE = 0xE9, 0xEB
_FAR = 1 << 10
"""How far apart two springboards are that leave room for one another."""
SCRATCH_ORDER = ("r11", "r10", "rax", "rcx", "rdx", "r8", "r9", "rsi", "rdi")
"""The best registers for addressing first."""


class Strategy(StrEnum):
    """How a site reaches its patch."""

    RETARGET = "retarget"
    JUMP = "jump"
    PUNNED = "punned"
    SHORT = "short"
    TRAP = "trap"


IN_PLACE = (Strategy.RETARGET, Strategy.TRAP)
"""The patch of these does not carry on with what follows."""
AUTO = frozenset(Strategy) - {Strategy.TRAP}
"""What may be used without being asked for: a trap is a matter of demand."""


class WantKind(StrEnum):
    """Why an instruction is to be spliced."""

    ENTRY = "entry"
    OFFSET = "offset"
    EXIT = "exit"
    RETURN_POINT = "return-point"
    """The instruction after a call, where a call of another function ends."""
    LOOP = "loop"
    """A branch to an entry or a return point from within the function, which must go after what runs there."""


HEADS = frozenset({WantKind.ENTRY, WantKind.RETURN_POINT})
"""What a branch from within the function is no arrival at."""


@dataclass(slots=True, eq=False)
class Want:
    """A wanted site: an instruction of a function and what it is wanted for. ``tag`` is the caller's.

    Immutable by convention; made in great numbers, hence not frozen, which makes it three times as dear to make one.
    """

    address: int
    kind: WantKind
    conditional: bool = False
    """An exit taken only when its branch is, or, if the jump is indirect, only when it leads out of ``inside``."""
    tag: object = None
    inside: tuple[tuple[int, int], ...] = ()
    block: tuple[Insn, ...] = ()
    """The exit block that the branch here leads to, spliced in its stead; its last instruction is the exit."""
    first: bool = False
    """Its action comes before all others here."""
    internal: bool = False
    """It serves the signal view; no user has asked for it."""
    origin: "Want | None" = None
    """The wanted exit, or other instruction, that this branch is spliced for."""
    after: bool = False
    """Its action comes after the instruction, on whatever way control leaves it."""
    in_place: bool = False
    """Nothing but the destination of the branch here may change: no instruction makes room for it."""

    @property
    def shows_pcs(self) -> bool:
        """Whether it is there to show a signal handler of the program's the program's own pcs."""
        return self.first and self.internal


@bulk_dataclass(frozen=True, slots=True, eq=False)
class PlannedSplice:
    """One splice: the bytes at ``head`` lead to a patch that displaces ``insns`` and runs the wants' actions."""

    strategy: Strategy
    head: int
    insns: Sequence[Insn]
    wants: Sequence[Want]
    written: int
    """Number of bytes overwritten, from ``write_at`` on."""
    write_at: int
    borrowed: int = 0
    """Number of bytes after the written ones that the jump depends on (punned jumps)."""
    pun: "Pun | None" = None
    springboard: int = 0
    """Run-time address of the springboard that a punned jump leads to."""
    dead_springboard: int = 0
    """Link-time address of the five dead bytes that a short jump leads to, and that hold a jump on to the patch."""
    leans_on: "tuple[PlannedSplice, ...]" = ()
    """Splices of the same plan without which this one would go astray: whose displaced bytes hold its springboard."""
    hosts_until: int = 0
    """End of the springboards of others in what is displaced here: nothing may stand before it any more."""
    ambiguous: bool = False
    """Whether a thread may come to the byte after a trap's ``int3`` without having met it."""

    @property
    def start(self) -> int:
        """The address of the first displaced instruction."""
        insns = self.insns
        return insns.address if type(insns) is KeptLine else insns[0].address

    @property
    def end(self) -> int:
        """End of the displaced instructions."""
        insns = self.insns
        if type(insns) is KeptLine:
            return insns.end
        last = insns[-1]
        return last.address + last.length

    @property
    def first_end(self) -> int:
        """End of the first of them."""
        insns = self.insns
        return insns.first_end if type(insns) is KeptLine else insns[0].end

    @property
    def begins_with_trap(self) -> bool:
        """Whether the first of them raises a signal by itself, and may be skipped by a handler."""
        return type(self.insns) is not KeptLine and self.insns[0].flow is Flow.TRAP

    @property
    def may_go_on(self) -> bool:
        """Whether what follows them may run after the last one."""
        return type(self.insns) is KeptLine or self.insns[-1].may_go_on

    @property
    def internal(self) -> bool:
        """Whether it serves no probe of the user's."""
        wanted = [want.internal for want in self.wants if want.kind is not WantKind.LOOP]
        return bool(wanted) and all(wanted)

    @property
    def shows_pcs(self) -> bool:
        """Whether it is at a signal handler of the program's, which sees the program's own pcs by it."""
        return any(want.shows_pcs for want in self.wants)


@dataclass(frozen=True, slots=True)
class Pun:
    """A punned jump: padding bytes, the opcode, and a displacement of which only the low ``free`` bytes can be chosen.

    Targets are ``base + n`` for n below ``256**free``; a carry never leaves the free bytes.
    """

    prefixes: int
    free: int
    base: int
    """Lowest target (link-time address)."""
    tail: bytes = b""
    """Displacement bytes that are written, too, and leave no choice: those of a jump that the one in front leans on."""
    prefix: int = REDUNDANT_PREFIX
    """What pads the jump; the one in front may need its value."""

    def is_apart_from(self, place: int) -> bool:
        """Return whether a springboard at ``place`` leaves this jump all its places."""
        return place + _FAR <= self.base or self.base + 256**self.free + _FAR <= place

    def head_bytes(self, target: int) -> bytes:
        """Return the bytes to write for a target in range."""
        low = (target - self.base).to_bytes(4, "little")[: self.free]
        return bytes([self.prefix]) * self.prefixes + b"\xe9" + low + self.tail


@dataclass(frozen=True, slots=True)
class Clobbers:
    """What the code at a site may overwrite without saving it."""

    registers: tuple[str, ...] = ()
    flags: bool = False

    def scratch(self) -> str | None:
        """Return the best dead register for addressing, if there is one."""
        return next((name for name in SCRATCH_ORDER if name in self.registers), None)


@bulk_dataclass(frozen=True, slots=True, eq=False)
class FunctionPlan:
    """The outcome for one function."""

    splices: Sequence[PlannedSplice] = ()
    refused: Sequence[tuple[Want, Refusal]] = ()
    verdicts: Sequence[tuple[int, Strategy, Refusal | None]] = ()
    """(site, strategy, why not) in the order in which they were tried; ``None``: chosen."""
    notes: Sequence[str] = ()
    """What is to be said about it besides."""
    scope: "Sequence[FunctionCode]" = ()
    """The functions whose instructions may be displaced for the sake of others; none where nothing else has to be."""

    def is_plain(self, wants: Sequence[Want]) -> bool:
        """Return whether all it makes for what is wanted is a jump at one entry."""
        if len(wants) != 1 or len(self.splices) != 1 or wants[0].kind is not WantKind.ENTRY:
            return False
        splice = self.splices[0]
        return splice.strategy is Strategy.JUMP and len(splice.wants) == 1 and splice.head == wants[0].address
