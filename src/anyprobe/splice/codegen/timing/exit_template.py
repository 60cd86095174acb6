"""Exits by the thousand: the call that ends a function's time before its return, or before the jump that leaves it.

The first patch with some displaced bytes is written by ``emit``; others with the same differ from it in their record
and in where they lie, and a jump in where it leads. Made by filling in, a patch costs a tenth.
"""

import struct
from collections.abc import Container, Hashable
from dataclasses import replace

from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.lines import content_of
from anyprobe.splice.codegen.emit import ActionSource, emit_patch
from anyprobe.splice.codegen.patch import Action, ActionKind
from anyprobe.splice.emitted import EmittedPatch, PatchParts
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Strategy, WantKind

_I32 = struct.Struct("<i")
_NOTHING = Clobbers()


class ExitTemplates:
    """The patches that others are like."""

    def __init__(self) -> None:
        """Start with none."""
        self._known: dict[Hashable, tuple[EmittedPatch, PatchParts] | None] = {}

    def fill(
        self, splice: PlannedSplice, address: int, bias: int, action: Action, after: Container[int]
    ) -> EmittedPatch | None:
        """Return the patch at ``address`` of a splice that does nothing but end calls; ``None`` where it does more.

        ``after``: as for ``emit_patch``; a jump there is none that leaves.
        """
        if len(splice.wants) != 1 or splice.wants[0].kind is not WantKind.EXIT or not _only_ends(action):
            return None
        want, last = splice.wants[0], splice.insns[-1]
        if want.conditional or want.block or want.after or want.first or want.address != last.address:
            return None
        leaves = splice.strategy is Strategy.RETARGET
        if leaves and (last.flow is not Flow.JUMP or last.target is None or last.target + bias in after):
            return None
        if not leaves and (last.flow is not Flow.RET or action.kind is not ActionKind.LEAVE):
            return None
        assert action.bank.routines is not None
        key = action.kind, action.bank.routines.leave, b"" if leaves else content_of(splice.insns)
        if key not in self._known:
            self._known[key] = _written(splice, address, bias, action)
        known = self._known[key]
        return None if known is None else _filled(*known, splice.insns[0], address, bias, action.offset, leaves=leaves)


def _only_ends(action: Action) -> bool:
    """Return whether an action calls the routine of a bank that ends calls, and nothing else depends on it."""
    ends = action.kind is ActionKind.LEAVE or action.kind is ActionKind.LEAVE_TAIL
    bank = action.bank
    return ends and bank.slot is not None and not bank.stackless and bank.processes is None


def _written(splice: PlannedSplice, address: int, bias: int, action: Action) -> tuple[EmittedPatch, PatchParts] | None:
    """Write a patch for others to be filled in by; ``None`` where something in it depends on more than is replaced."""
    made = emit_patch(splice, address, bias, ActionSource(lambda _: (action,), lambda _: _NOTHING), {})
    if isinstance(made, Refusal) or made.parts is None or made.landings:
        return None
    copied = b"".join([made.code[start:end] for _, start, end in made.parts.copies])
    if splice.strategy is not Strategy.RETARGET:
        moves = any(insn.flow is not Flow.NEXT or insn.iced.is_ip_rel_memory_operand for insn in splice.insns[:-1])
        if moves or copied != content_of(splice.insns):
            return None
    elif copied or made.parts.outward[-1][1] != made.copies[-1][0]:
        return None
    if any(_I32.unpack_from(made.code, place)[0] != action.offset for place in made.parts.arguments):
        return None
    return made, replace(made.parts, is_shared=splice.strategy is not Strategy.RETARGET)


def _filled(
    like: EmittedPatch, parts: PatchParts, first: Insn, address: int, bias: int, offset: int, *, leaves: bool
) -> EmittedPatch:
    code, moved = bytearray(like.code), address - like.address
    for place in parts.arguments:
        _I32.pack_into(code, place, offset)
    if leaves:
        assert first.target is not None
        target = first.target + bias
        parts = replace(parts, outward=(*parts.outward[:-1], (parts.outward[-1][0], target)))
        there = target - like.copies[-1][0]
    else:
        there = first.address + bias - like.starts[0][0]
    starts, copies = (
        tuple([(original + there, at + moved) for original, at in each]) for each in (like.starts, like.copies)
    )
    for place, to in parts.outward:
        _I32.pack_into(code, place, to - address - place - 4)
    return EmittedPatch(address, bytes(code), starts, copies, like.after + moved, parts=parts)
