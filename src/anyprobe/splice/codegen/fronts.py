"""Recipes of patches by the thousand: what stands before the displaced copies is the same in most of them.

The first patch with a front (``EmittedPatch.front``) and a length is followed as a whole. The others are followed from
their first displaced copy on, where each pass comes as it came there: what is displaced is different in each.
"""

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.codegen.emit import ActionSource, emit_patch
from anyprobe.splice.codegen.patch import FLAG
from anyprobe.splice.emitted import BODY, EmittedPatch, PatchParts
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Strategy
from anyprobe.splice.translate.idempotence import is_repeated, likeness
from anyprobe.splice.translate.patches import Bearings, Dead, Walk, Where, overwritten, recipes
from anyprobe.splice.translate.steps import Op, Positions, Recipe, Step

_I32 = struct.Struct("<i")
_JUMP, _NOTHING = 0xE9, bytes(4)


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """What is known of all patches with one front."""

    first: int
    """Where the first displaced copy begins, from the start of the patch."""
    arrival: Where
    dead: Dead
    """What is not given back there."""
    positions: Positions
    """The recipes of everything but the displaced copies and what follows them."""


class Fronts:
    """The fronts of one code region's patches."""

    def __init__(self) -> None:
        """Start with none."""
        self._known: dict[Hashable, Front] = {}

    def positions(
        self, planned: PlannedSplice, bias: int, patch: EmittedPatch, bearings: Bearings, *, looped: bool = False
    ) -> tuple[Front | None, Positions]:
        """Return the recipes of a patch: those of its front, and its own; none where its code is not understood."""
        if patch.front is BODY:
            return None, self._of_body(planned, bias, patch, bearings)
        entered = patch.after - patch.address if looped else -1
        shares = patch.front is not None and planned.strategy is not Strategy.RETARGET  # which is nothing but a front
        key = (patch.front, len(patch.code), entered) if shares else None
        front = self._known.get(key) if key is not None else None
        if front is not None:
            own = _after(front, Walk(planned, bias, patch, bearings, start=front.first), looped=looped)
            if own is not None:
                return front, own
        walk = Walk(planned, bias, patch, bearings)
        if not walk.run():
            return None, {}
        dead = overwritten(walk)
        found = recipes(walk, dead, looped=looped)
        first = next((copy - patch.address for original, copy in patch.copies if original == walk.site), 0)
        arrival = walk.found.get(patch.address + first)
        if key is None or arrival is None or front is not None:
            return None, found
        own = {at: recipe for at, recipe in found.items() if walk.is_displaced(at)}
        shared = {at: recipe for at, recipe in found.items() if at not in own}
        front = self._known[key] = Front(first, arrival, dead.get(walk.site, Dead()), shared)
        return front, own

    def _of_body(self, planned: PlannedSplice, bias: int, patch: EmittedPatch, bearings: Bearings) -> Positions:
        """Return the recipes of a function's copy: a thread there can be shown, and go on, at the original's pc.

        Not where the jump at the entry has been written over that: there it goes back to the entry, if it can.
        """
        site = planned.start + bias
        lost = range(site + 1, planned.write_at + planned.written + bias)
        found: dict[int, Recipe] = {
            copy - patch.address: (Step(Op.SITE, b=original - site), Step(Op.DONE))
            for original, copy in patch.copies
            if original not in lost
        }
        alone, begin = replace(planned, wants=()), patch.copies[0][1]
        head = emit_patch(alone, begin, bias, ActionSource(lambda _: (), lambda _: Clobbers()), {})
        if isinstance(head, EmittedPatch):
            same = {
                copy - patch.address
                for original, copy in set(head.copies).intersection(patch.copies)
                if original in lost
            }
            positions = self.positions(alone, bias, head, bearings)[1]
            places = {at + begin - patch.address: recipe for at, recipe in positions.items()}
            found |= {at: recipe for at, recipe in places.items() if at in same}
        return found


def _after(front: Front, walk: Walk, *, looped: bool) -> Positions | None:
    """Return the recipes from the first displaced copy on; ``None`` where the patch is not like the others."""
    arrival = front.arrival._replace(original=walk.site)
    if not walk.run([(walk.patch.address + front.first, arrival)]):
        return None
    dead = overwritten(walk)
    if dead.get(walk.site, Dead()) != front.dead:
        return None
    return recipes(walk, dead, looped=looped)


def form_of(planned: PlannedSplice, patch: EmittedPatch, generated: range, *, looped: bool = False) -> Hashable:
    """Return the same for patches of one code region with the same recipes; ``None`` where others are not like it.

    Such patches differ in what they count, where they lie, where they lead outside of ``generated``, anyprobe's code,
    and in numbers that do not matter.
    """
    insns, address = planned.insns, patch.address
    entered = patch.after - address if looped else -1
    if patch.front is BODY:
        return None
    if patch.parts is not None and patch.parts.is_shared:
        return patch.parts, entered
    if patch.front is None:
        return None if patch.parts is None else _form_of_parts(planned, patch, patch.parts, generated, entered)
    if planned.strategy is Strategy.RETARGET:
        return _form_of_retargeted(planned, patch, generated, entered)
    if insns[-1].flow is Flow.JUMP:  # nothing tells where its copy ends
        return None
    layout = tuple([copy - address for _, copy in patch.copies])  # copies of calls vary in length
    known = _likenesses(insns, dict(enumerate(layout[1:])), partial(_copied_to, patch, generated))
    turns = known is not None and any(insn.flow is not Flow.NEXT for insn in insns)
    return None if known is None else (patch.front, entered, len(patch.code), turns and layout, *known)


def _likenesses(
    insns: Sequence[Insn], ends: Mapping[int, int], destination: Callable[[int], Hashable]
) -> list[Hashable] | None:
    """Return the same for displaced instructions of which the same is known; ``None`` where others are not like them.

    ``ends``: where in the patch the copy of each ends; ``destination``: where one that ends there leads. Once the last
    one has run, the pass is over, and nothing of it is taken back: so no more of it matters than how long it is, if it
    does not branch.
    """
    found: list[Hashable] = []
    for number, insn in enumerate(insns):
        end = ends.get(number)
        if insn.flow is Flow.NEXT and number == len(insns) - 1 and not is_repeated(insn):
            found.append(insn.length)
        elif insn.flow not in (Flow.JCC, Flow.JUMP):
            found.append(likeness(insn))
        elif insn.target == insn.address or (insn.flow is Flow.JCC and insn.condition is None):
            return None
        elif end is None:
            found.append((insn.iced.code, insn.length))
        else:
            found.append((insn.iced.code, insn.length, destination(end)))
    return found


def _form_of_parts(
    planned: PlannedSplice, patch: EmittedPatch, parts: PatchParts, generated: range, entered: int
) -> Hashable:
    """Return the form of a patch of any actions: its code without what differs, and what is known of that."""
    code, copied = bytearray(patch.code), {number: end for number, _, end in parts.copies}
    outward = list[tuple[int, object]]()
    for place, target in parts.outward:
        if code[place - 2 : place] == FLAG:  # which one it is nothing depends on: it is set again
            outward.append((place, None))
        else:
            outward.append((place, _destination(target, patch, generated) if code[place - 1] == _JUMP else target))
        code[place : place + 4] = _NOTHING
    arguments = [patch.code[place : place + 4] for place in parts.arguments]
    same = tuple([arguments.index(each) for each in arguments])  # where ways come together it matters which are
    for place in parts.arguments:
        code[place : place + 4] = _NOTHING
    likenesses = _likenesses(planned.insns, copied, partial(_copied_to, patch, generated))
    if likenesses is None:
        return None
    for _, start, end in parts.copies:
        code[start:end] = bytes(end - start)
    layout = tuple([copy - patch.address for _, copy in patch.copies])
    return planned.strategy, entered, bytes(code), same, tuple(outward), parts.copies, layout, *likenesses


def _destination(target: int, patch: EmittedPatch, generated: range) -> tuple[int, int] | None:
    """Return where in a patch, or in other generated code, a jump leads; ``None`` where it leads to the program."""
    if patch.address <= target < patch.end:
        return 0, target - patch.address
    return (1, target) if target in generated else None


def _copied_to(patch: EmittedPatch, generated: range, end: int) -> tuple[int, int] | None:
    """Return the same of the copy of a branch that ends at an offset."""
    return _destination(patch.address + end + _I32.unpack_from(patch.code, end - 4)[0], patch, generated)


def _form_of_retargeted(planned: PlannedSplice, patch: EmittedPatch, generated: range, entered: int) -> Hashable:
    """Return the form of a patch that ends in one jump to where the branch led; it may be to a copy instead."""
    branch, jump = planned.insns[0], patch.copies[-1][1]
    distance = _I32.unpack_from(patch.code, jump + 1 - patch.address)[0]
    if jump + 5 + distance in generated or branch.target == branch.address:
        return None
    return patch.front, entered, len(patch.code), jump - patch.address, branch.flow
