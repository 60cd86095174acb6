"""The commonest patch by the thousand: one counter in front of instructions behind which control goes on.

The first such patch of a kind is written by ``emit`` and becomes the template of the others, which differ in their
counter, in the displaced copies, and in where they lie. Made by filling in, a patch costs a tenth.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from anyprobe.core.refusal import Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.relocate import displace
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode, PatchWriter
from anyprobe.splice.emitted import EmittedPatch
from anyprobe.splice.memory.places import CopiedPlaces
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Strategy, WantKind


@dataclass(frozen=True, slots=True)
class _Template:
    front: tuple[int, Clobbers]
    code: bytes
    displaced_at: int
    arguments: tuple[int, ...]
    """Where the counter's offset stands."""
    outward: tuple[tuple[int, int], ...]
    """(place, absolute target) of displacements that depend on where the patch lies."""
    back_at: int
    """Where the displacement of the jump back stands."""


def is_plain(splice: PlannedSplice, action: Action) -> bool:
    """Return whether a splice's action is a counter in front of its first displaced instruction, and all there is."""
    return _is_counter(splice, action) and splice.strategy is not Strategy.RETARGET


def is_plain_branch(splice: PlannedSplice, action: Action) -> bool:
    """Return the same of a jump or call that leads into the patch by itself: a counter, and all there is."""
    retargeted = splice.strategy is Strategy.RETARGET and splice.insns[0].flow in (Flow.JUMP, Flow.CALL)
    return retargeted and _is_counter(splice, action)


def _is_counter(splice: PlannedSplice, action: Action) -> bool:
    want = splice.wants[0]
    if len(splice.wants) != 1 or want.conditional or want.block or want.after:
        return False
    counts = action.kind is ActionKind.COUNT and action.bank.slot is not None
    return counts and want.address == splice.insns[0].address


class CounterTemplates:
    """The templates of one code region."""

    def __init__(self) -> None:
        """Start with none."""
        self._known: dict[tuple[int, Clobbers, int], _Template] = {}
        self._fronts: dict[tuple[int, Clobbers], int] = {}
        """Where in a patch the displaced copies begin."""

    def fill(
        self, splice: PlannedSplice, address: int, bias: int, action: Action, clobbers_of: Callable[[], Clobbers],
        behind: Mapping[int, int] = MappingProxyType({}),
    ) -> EmittedPatch | None:  # fmt: skip
        """Return the splice's patch at ``address``; ``None`` where it is not of the simple kind.

        ``behind`` is as for ``emit_patch``; a branch that does not go where it says is not simple.
        """
        if not is_plain(splice, action):
            return None
        want, insns = splice.wants[0], splice.insns
        copied = True
        for insn in insns:
            if insn.flow is not Flow.NEXT or insn.iced.is_ip_rel_memory_operand:
                copied = False
        if not copied and not _can_displace(splice, bias, behind):
            return None
        clobbers = clobbers_of()
        starts: Sequence[tuple[int, int]]
        copies: Sequence[tuple[int, int]]
        if copied:
            displaced = b"".join([insn.raw for insn in insns])
            template = self._template(address, action.bank, clobbers, len(displaced))
            at = template.displaced_at
            starts = CopiedPlaces(insns, bias, address + at, address)
            copies = CopiedPlaces(insns, bias, address + at)
        else:
            front = (action.bank.gate, clobbers)
            at = self._fronts.get(front) or self._template(address, action.bank, clobbers, JUMP_BYTES).displaced_at
            made = _displaced(insns, bias, address + at)
            if made is None:
                return None
            displaced, copies = made
            starts = ((copies[0][0], address), *copies[1:-1])
            template = self._template(address, action.bank, clobbers, len(displaced))
        code = bytearray(template.code)
        code[at : at + len(displaced)] = displaced
        for place in template.arguments:
            _I32.pack_into(code, place, action.offset)
        for place, target in template.outward:
            _I32.pack_into(code, place, target - address - place - 4)
        end = splice.end + bias
        _I32.pack_into(code, template.back_at, end - address - template.back_at - 4)
        entered = address + at if want.kind is WantKind.ENTRY else address
        return EmittedPatch(address, bytes(code), starts, copies, entered, template.front)

    def _template(self, address: int, bank: BankCode, clobbers: Clobbers, size: int) -> _Template:
        key = (bank.gate, clobbers, size)
        template = self._known.get(key)
        if template is None:
            template = self._known[key] = _make(address, bank, clobbers, size)
            self._fronts[bank.gate, clobbers] = template.displaced_at
        return template


def _can_displace(splice: PlannedSplice, bias: int, behind: Mapping[int, int]) -> bool:
    """Return whether nothing but copies is made of the displaced instructions, and control goes on behind them."""
    if not splice.insns[-1].may_go_on:
        return False
    for insn in splice.insns:
        if insn.flow not in _DISPLACED:
            return False
        if insn.target is None or insn.flow is Flow.CALL:
            continue
        if insn.target + bias in behind or insn.target in (splice.head, splice.head - 4):
            return False
    return True


def _displaced(insns: Sequence[Insn], bias: int, at: int) -> tuple[bytes, Sequence[tuple[int, int]]] | None:
    """Return copies that lie at ``at``, and where each instruction has gone, the one that follows included."""
    out, places = bytearray(), []
    for insn in insns:
        here = at + len(out)
        address = insn.address + bias
        places.append((address, here))
        plain = insn.flow is Flow.NEXT and not insn.iced.is_ip_rel_memory_operand
        copy = insn.raw if plain else displace(insn.at(address), here)
        if isinstance(copy, Refusal):
            return None
        out += copy
    places.append((insns[-1].end + bias, at + len(out)))
    return bytes(out), tuple(places)


_I32 = struct.Struct("<i")
_DISPLACED = frozenset({Flow.NEXT, Flow.JCC, Flow.CALL})


def _make(address: int, bank: BankCode, clobbers: Clobbers, size: int) -> _Template:
    """Write the patch once, with nothing displaced, and note what depends on place and counter."""
    writer = PatchWriter(address)
    writer.action(Action(ActionKind.COUNT, 0, bank), clobbers)
    displaced_at = len(writer.out)
    writer.raw(bytes(size))
    writer.relative("jmp back", writer.here)
    back_at = len(writer.out) - 4
    code = writer.finish()
    outward = tuple(
        (place, target)
        for place, target in writer.displacements
        if not address <= target <= address + len(code) and place != back_at
    )
    return _Template((bank.gate, clobbers), code, displaced_at, tuple(writer.arguments), outward, back_at)
