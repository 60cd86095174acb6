"""The commonest patch by the thousand: one counter in front of instructions that can be copied as they are.

The first such patch of a kind is written by ``emit`` and becomes the template of the others, which differ in their
counter, in the displaced bytes, and in where they lie. Made by filling in, a patch costs a tenth.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from anyprobe.isa.decode import Flow
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

    def fill(
        self, splice: PlannedSplice, address: int, bias: int, action: Action, clobbers_of: Callable[[], Clobbers]
    ) -> EmittedPatch | None:
        """Return the splice's patch at ``address``; ``None`` where it is not of the simple kind."""
        if not is_plain(splice, action):
            return None
        want, insns = splice.wants[0], splice.insns
        for insn in insns:
            if insn.flow is not Flow.NEXT or insn.iced.is_ip_rel_memory_operand:
                return None
        size, clobbers = splice.end - insns[0].address, clobbers_of()
        key = (action.bank.gate, clobbers, size)
        template = self._known.get(key)
        if template is None:
            template = self._known[key] = _make(address, action.bank, clobbers, size)
        code = bytearray(template.code)
        at = template.displaced_at
        code[at : at + size] = b"".join([insn.raw for insn in insns])
        for place in template.arguments:
            _I32.pack_into(code, place, action.offset)
        for place, target in template.outward:
            _I32.pack_into(code, place, target - address - place - 4)
        end = splice.end + bias
        _I32.pack_into(code, template.back_at, end - address - template.back_at - 4)
        behind = address + at if want.kind is WantKind.ENTRY else address
        starts = CopiedPlaces(insns, bias, address + at, address)
        copies = CopiedPlaces(insns, bias, address + at)
        return EmittedPatch(address, bytes(code), starts, copies, behind, template.front)


_I32 = struct.Struct("<i")


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
