"""From planned functions to patches in anyprobe's memory, and to the writes that are to lead there."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from anyprobe.core.cachedproperty import cached_property
from anyprobe.core.errors import InternalError, TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.layouts.layout import JUMPED, PASSED_ON
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.lines import KeptLine, content_of, has_branch
from anyprobe.splice.apply.site_clobbers import SiteClobbers, in_place
from anyprobe.splice.codegen.emit import (
    PATCH_ALIGNMENT,
    ActionSource,
    dead_springboard_bytes,
    emit_patch,
    estimate,
    head_bytes,
)
from anyprobe.splice.codegen.patch import REPLACING, Action, ActionKind, BankCode
from anyprobe.splice.edits import Edit, Module, hook_of
from anyprobe.splice.emitted import EmittedPatch, EmittedSplice, FunctionChange
from anyprobe.splice.plan.splices import HEADS, PlannedSplice, Strategy, Want, WantKind
from anyprobe.splice.plan.springboards import Springboards
from anyprobe.splice.plan.together import member_at
from anyprobe.splice.regions.banks import Hook
from anyprobe.splice.regions.code_region import ROUTINE_BYTES, CodeRegion, SlotBank, after_code

if TYPE_CHECKING:
    from anyprobe.splice.codegen.handlers.facts import HandlerFacts
    from anyprobe.splice.codegen.moved.bodies import Body
    from anyprobe.splice.codegen.timing.exit_template import ExitTemplates


MANY_FUNCTIONS = 300
_ORDERED = frozenset({WantKind.ENTRY, WantKind.OFFSET})
"""What is done for these at one instruction depends on whether branches lead back to it."""


def worth_moving(edits: Sequence[Edit]) -> bool:
    """Return whether so much is counted that speed counts for more than what signal handlers see in between."""
    if any(edit.is_one_of_many for edit in edits):
        return True
    added = (edit.planned.wants for edit in edits if edit.planned.plan.splices)
    inside = (wants for wants in added if any(want.kind is WantKind.OFFSET for want in wants))
    return sum(1 for _ in islice(inside, MANY_FUNCTIONS)) == MANY_FUNCTIONS


class Emission:
    """Writes the patches of one change."""

    def __init__(
        self,
        homes: Sequence[CodeRegion],
        springboards: Springboards,
        clobbers: SiteClobbers,
        view_root: Callable[[], int],
        *,
        banks: Collection[SlotBank] = (),
        moves: bool = False,
    ) -> None:
        """Start with no function written.

        ``homes`` are where patches may go, ``view_root`` tells where the signal view keeps its tables' address.
        ``banks`` are those of all hooks. ``moves``: lines of a function are moved together where that can be.
        """
        self._homes, self._springboards, self._clobbers = homes, springboards, clobbers
        self._view_root, self._moves, self._banks = view_root, moves, banks
        self._homes_with_stubs: dict[int, CodeRegion] = {}
        """By module."""
        self._within_reach: dict[Module, list[CodeRegion]] = {}
        self._known_actions: dict[Want, tuple[Action, ...]] = {}
        """The actions of the present function's wants."""

    @cached_property
    def _exits(self) -> "ExitTemplates":
        from anyprobe.splice.codegen.timing.exit_template import ExitTemplates  # counters have none

        return ExitTemplates()

    def emit(self, edit: Edit) -> FunctionChange | Refusal:
        """Write the patches of a function and return what leads to them, or why it cannot be."""
        wants, plan = edit.planned.wants, edit.planned.plan
        if not plan.splices:
            return _change_of(edit)
        if not self._moves and not edit.module.left:
            found = self._emit_counters(edit, plan.splices)
            if found is not None:
                return found
        again = self._home_with_left(edit) if edit.module.left else None
        home = again or self._home_for(edit)
        # the routines of a bank come before the first patch that uses them
        self._known_actions = {want: self._actions_of(edit, want, home) for want in wants}
        moved = self._move(edit, home) if self._moves else None
        if len(plan.splices) == 1 and not plan.splices[0].dead_springboard:
            return self._emit_only(edit, home, moved)
        members = plan.scope or (edit.state.code,)
        after: dict[int, dict[int, int]] = {each.start: {} for each in members}
        """Where branches of a function back to its entry go; a branch of another function is a way in."""
        made: dict[PlannedSplice, EmittedSplice] = {}
        for planned in sorted(plan.splices, key=lambda s: not any(w.kind in HEADS for w in s.wants)):
            own = after[member_at(members, planned.head).start]
            live = self._emit_splice(edit, planned, home, own, moved)
            if isinstance(live, Refusal):
                return live
            made[planned] = live
            own |= _ways_in(edit.module, live)
        added: list[EmittedSplice] = []
        for planned in plan.splices:  # each after what it leans on
            live = made[planned]
            if planned.dead_springboard:
                added.append(_dead_springboard(edit.module, planned, live))
            if planned.leans_on:
                live = _leaning(live, [made[other] for other in planned.leans_on])
            _check_jump(live)
            added.append(live)
        twice = _written_twice(added)
        if twice is not None:
            return Refusal(Reason.OVERLAP, twice, "two splices of the function would write this byte")
        return _change_of(edit, added)

    def _emit_counters(self, edit: Edit, splices: Sequence[PlannedSplice]) -> FunctionChange | None:
        """Write the patches of functions of which only the entries are wanted, for counters: most functions.

        Returns:
            What leads there; ``None`` where it is not that simple, and nothing is written.
        """
        module, alone = edit.module, len(splices) == 1
        if edit.state.splices or len(edit.planned.wants) != len(splices):
            return None
        home, bias, made = self._home_of(module), module.bias, list[EmittedSplice]()
        codes = [home.slot_code(bank) if (bank := _counted_by(each, alone=alone)) else None for each in splices]
        address = home.cursor  # the banks' routines come before the first patch that uses them
        for planned, code in zip(splices, codes, strict=True):
            if code is None:
                return None
            want, whole, size = planned.wants[0], content_of(planned.insns), planned.written
            key = ActionKind.COUNT, code.gate, self._clobbers.of(edit, want)
            patch = home.templates.filled(planned, address, bias, key, code, getattr(want.tag, "offset", 0))
            if patch is None or size > len(whole):
                return None
            new = head_bytes(planned, bias, address)
            at = planned.head + bias
            emitted = EmittedSplice(
                planned, bias, at, whole[:size], new, patch, 0, b"", is_springboard=False, whole=whole
            )
            made.append(emitted)
            address = after_code(address + len(patch.code))
        for planned, each in zip(splices, made, strict=True):
            if each.patch is not None:
                home.put(each.patch.code)
            module.claims.landings.add(planned.end)
        return FunctionChange(edit.state.code.start + bias, (), tuple(made))

    def _emit_only(
        self, edit: Edit, home: CodeRegion, moved: Mapping[PlannedSplice, EmittedPatch] | None
    ) -> FunctionChange | Refusal:
        """Write the one patch of a function: nothing leans on anything else."""
        live = self._emit_splice(edit, edit.planned.plan.splices[0], home, {}, moved)
        if isinstance(live, Refusal):
            return live
        _check_jump(live)
        return _change_of(edit, (live,))

    def lay_out(self, edit: Edit) -> Refusal | None:
        """Write the copy of a function that is to run elsewhere, if that is wanted: before others lead there.

        A copy goes on in the original anywhere: there, nothing may have made room but what the entries displace.
        """
        moves = {planned: body for planned in edit.plan.splices if (body := moved_by(planned)) is not None}
        for planned in edit.plan.splices if moves else ():
            if planned not in moves and planned.strategy is not Strategy.RETARGET:
                return Refusal(
                    Reason.TOO_SHORT, planned.start, "what leads back to its entry would displace more of it"
                )
        for planned, body in moves.items():
            if body.patch is not None:
                continue
            from anyprobe.splice.apply.recovery.copies import record_of, table_of
            from anyprobe.splice.codegen.moved.bodies import write_body

            home = self._home_of(edit.module)
            made = write_body(body, planned, home.cursor, edit.module.bias)
            if isinstance(made, Refusal):
                return made
            home.put(made.code)
            table = table_of(made)
            home.unlisted_copies.append(record_of(made, home.put(table), len(table)))
            body.patch = made
        return None

    def _emit_splice(
        self,
        edit: Edit,
        planned: PlannedSplice,
        home: CodeRegion,
        after: dict[int, int],
        moved: Mapping[PlannedSplice, EmittedPatch] | None,
    ) -> EmittedSplice | Refusal:
        module = edit.module
        bias = module.bias
        patch = None if moved is None else moved.get(planned)
        if (rebound := _rebound(planned)) is not None:
            old, _, whole = _bytes_there(module, planned)
            new = head_bytes(planned, bias, rebound.address)
            return EmittedSplice(planned, bias, planned.write_at + bias, old, new, None, whole=whole)
        if (body := moved_by(planned)) is not None:
            patch = body.patch
        if patch is None and module.left:
            patch = self._left(edit, planned, home, after)
        if patch is None:
            made = self._fill_template(edit, planned, home, after) or self._write_patch(edit, planned, home, after)
            if isinstance(made, Refusal):
                return made
            patch = made
            home.put(patch.code)
        if planned.may_go_on:
            module.claims.landings.add(planned.end)
        target = patch.address
        springboard = 0
        if planned.pun is not None:
            springboard = planned.springboard
            self._springboards.write(springboard, target)
            target = springboard
        old, borrowed, whole = _bytes_there(module, planned)
        return EmittedSplice(
            planned, bias, planned.write_at + bias, old, head_bytes(planned, bias, target), patch, springboard,
            borrowed, is_springboard=False, whole=whole,
        )  # fmt: skip

    def _left(self, edit: Edit, planned: PlannedSplice, home: CodeRegion, after: dict[int, int]) -> EmittedPatch | None:
        """Return the patch that has served here before the file was unmapped, if the same code is wanted again.

        Libraries may come and go ten thousand times.
        """
        left = edit.module.left.pop(planned.write_at + edit.module.bias, None)
        if left is None or not home.code.address <= left.address < home.cursor:
            return None
        with home.looking_back(left.address):
            made = self._fill_template(edit, planned, home, after) or self._try_to_write(edit, planned, home, after)[0]
        return made if isinstance(made, EmittedPatch) and made.code == left.code else None

    def _move(self, edit: Edit, home: CodeRegion) -> dict[PlannedSplice, EmittedPatch]:
        """Write the patches of the lines of a function in one piece; return them."""
        from anyprobe.splice.codegen.moved.fragments import Moving, can_move

        action_of = {want: actions[0] for want, actions in self._known_actions.items() if len(actions) == 1}.get
        lines = of_one_bank([splice for splice in edit.plan.splices if can_move(splice, action_of)], action_of)
        if not lines:
            return {}
        moving = Moving(home.cursor, edit.module.bias, action_of, self._clobbers.of_edit(edit))
        written = moving.write(lines)
        if written is None:
            return {}
        reserved = sum([estimate(line) for line in lines]) - PATCH_ALIGNMENT
        if len(written[0]) > min(reserved, home.room()):  # what is more would be the room of others
            return {}
        home.put(written[0])
        return written[1]

    def _fill_template(
        self, edit: Edit, planned: PlannedSplice, home: CodeRegion, after: dict[int, int]
    ) -> EmittedPatch | None:
        if len(planned.wants) != 1:
            return None
        want = planned.wants[0]
        actions = self._actions(edit, want, home)
        if len(actions) != 1:
            return None
        if want.kind is WantKind.EXIT:
            return self._exits.fill(planned, home.cursor, edit.module.bias, actions[0], after)
        return home.templates.fill(
            planned, home.cursor, edit.module.bias, actions[0], partial(self._clobbers.of, edit, want), after
        )

    def _write_patch(
        self, edit: Edit, planned: PlannedSplice, home: CodeRegion, after: dict[int, int]
    ) -> EmittedPatch | Refusal:
        patch, missing = self._try_to_write(edit, planned, home, after)
        if not missing:
            return patch
        for chain in missing:
            home.write_chain(chain)
        return self._try_to_write(edit, planned, home, after)[0]

    def _try_to_write(
        self, edit: Edit, planned: PlannedSplice, home: CodeRegion, after: dict[int, int]
    ) -> tuple[EmittedPatch | Refusal, list[tuple[Action, ...]]]:
        """Return a patch, and the actions whose handlers it would call together if there were a routine for that."""
        clobbers = self._clobbers.of
        missing: list[tuple[Action, ...]] = []

        def together(actions: Sequence[Action]) -> tuple[int, int]:
            chain = leading_chain(actions)
            routine = home.chain(chain) if chain else None
            if chain and routine is None:
                missing.append(chain)
            return len(chain), routine or 0

        source = ActionSource(lambda want: self._actions(edit, want, home), lambda want: clobbers(edit, want), together)
        kinds = {want.kind for want in planned.wants}  # most are all of one: then the function needs no decoding
        ordered = kinds >= _ORDERED or any(want.shows_pcs for want in planned.wants)
        looped = WantKind.RETURN_POINT in kinds or not ordered
        looped = looped or any(each.back_to_entry for each in edit.plan.scope or (edit.state.code,))
        return emit_patch(planned, home.cursor, edit.module.bias, source, after, looped=looped), missing

    def _actions(self, edit: Edit, want: Want, home: CodeRegion) -> tuple[Action, ...]:
        known = self._known_actions.get(want)
        return self._actions_of(edit, want, home) if known is None else known

    def _actions_of(self, edit: Edit, want: Want, home: CodeRegion) -> tuple[Action, ...]:
        hook = hook_of(want)
        if hook is None:
            return ()
        bank, kind = hook.bank, ActionKind.COUNT_STACKLESS if hook.spares_stack else hook.kind
        if hook.kind is ActionKind.COUNT and hook.handler is None and isinstance(bank, SlotBank):
            return (Action(kind, hook.offset, home.slot_code(bank)),)
        if kind is ActionKind.VIEW:
            return (Action(kind, hook.offset, home.view_code(self._view_root())),)
        if bank is None:
            return ()
        if not isinstance(bank, SlotBank) and hook.handler is not None:
            code = home.near_handler_code(bank, hook.handler)
        elif not isinstance(bank, SlotBank):
            code = _near_code(bank.piece.address)
        elif hook.kind is ActionKind.HANDLE_RETURN:
            return (Action(hook.kind, hook.offset, home.handling_code(bank, hook)),)
        elif hook.handler is not None:
            code = home.handler_code(bank, hook.handler)
        elif hook.kind in REPLACING:
            code = home.replacing_code(bank)
        else:
            code = home.slot_code(bank)
        if hook.handler is None:
            goes_on = hook.kind is ActionKind.LEAVE_TAIL and hook.jumps > 0
            flags = JUMPED | PASSED_ON * (hook.jumps > 1) if goes_on else 0
            return (Action(kind, hook.offset | flags, code, jumps=hook.jumps),)
        place = (hook.ip, hook.function) if hook.handler.asks_place else (0, 0)
        inline = in_place(home, hook, edit, want, self._clobbers)
        told = hook.handler.takes_target, hook.handler.moves_stack
        shared = hook.handler if isinstance(bank, SlotBank) and inline is None else None
        looks = hook.looks_for_room
        return (Action(hook.kind, hook.offset + hook.number, code, *place, *told, inline, shared, looks),)

    def _home_for(self, edit: Edit) -> CodeRegion:
        """Return where a function's patches go: all of a module where the stubs are that return addresses need."""
        for want in edit.planned.wants:
            if (hook := hook_of(want)) is not None and hook.kind in REPLACING:
                return self._homes_with_stubs.setdefault(id(edit.module), self._home_of(edit.module))
        return self._home_of(edit.module)

    def _home_with_left(self, edit: Edit) -> CodeRegion | None:
        """Return where the patches of a function are that was unmapped and is mapped again, if others have room too."""
        module, splices = edit.module, edit.plan.splices
        places = {module.left[at].address for each in splices if (at := each.write_at + module.bias) in module.left}
        for home in self._homes if places else ():
            if any(home.code.address <= place < home.cursor for place in places):
                room = sum([estimate(splice) for splice in splices]) + ROUTINE_BYTES
                return home if home.room(self._banks) >= room else None
        return None

    def _home_of(self, module: Module) -> CodeRegion:
        """Return the code region that reaches a module and has most room beside the routines of the change's banks."""
        fit = self._within_reach.get(module)
        if fit is None:
            fit = [home for home in self._homes if home.reaches(module.low, module.high)]
            self._within_reach[module] = fit
        if not fit:
            raise TargetError(f"there is no code memory within reach of {module.name}")
        return fit[0] if len(fit) == 1 else max(fit, key=lambda home: home.room(self._banks))


@lru_cache(16)
def _near_code(address: int) -> BankCode:
    """Return how code reaches the counters at an address near it: the same for each of thousands of flags."""
    return BankCode(None, 0, address, None)


def moved_by(planned: PlannedSplice) -> "Body | None":
    """Return the function that a splice at its entry has run elsewhere, if it does."""
    hooks = (hook_of(want) for want in planned.wants)
    return next((hook.body for hook in hooks if hook is not None and hook.kind is ActionKind.MOVE), None)


def _rebound(planned: PlannedSplice) -> EmittedPatch | None:
    """Return what a branch leads to whose function runs elsewhere, where a splice is that."""
    hook = hook_of(planned.wants[0]) if planned.strategy is Strategy.RETARGET and len(planned.wants) == 1 else None
    return hook.body.patch if hook is not None and hook.kind is ActionKind.REBIND and hook.body is not None else None


def _counted_by(planned: PlannedSplice, *, alone: bool) -> SlotBank | None:
    """Return the bank by which a splice counts an entry, if that is all, and nothing depends on others of its plan."""
    insns, wants = planned.insns, planned.wants
    if planned.strategy is not Strategy.JUMP or type(insns) is not KeptLine or len(wants) != 1 or planned.leans_on:
        return None
    (want,) = wants
    hook = want.tag
    if not isinstance(hook, Hook) or hook.kind is not ActionKind.COUNT or hook.handler is not None:
        return None
    if want.kind is not WantKind.ENTRY or not want.address == insns.address == planned.head:
        return None
    if not alone and has_branch(insns.shape):  # which may lead to another entry of its function
        return None
    return hook.bank if type(hook.bank) is SlotBank else None


def _change_of(edit: Edit, added: Iterable[EmittedSplice] = ()) -> FunctionChange:
    return FunctionChange(edit.state.code.start + edit.module.bias, edit.leaving, tuple(added))


def _ways_in(module: Module, live: EmittedSplice) -> dict[int, int]:
    """Return where branches go that lead to an entry or return point, if that is spliced here, by their targets."""
    heads = [want for want in live.planned.wants if want.kind in HEADS]
    if not heads:
        return {}
    assert live.patch is not None
    entries = [want.address for want in heads if want.kind is WantKind.ENTRY]
    starts = (module.code.layout.start_of(address) or address for address in entries)
    targets = [*(want.address for want in heads), *starts]
    return dict.fromkeys((target + module.bias for target in targets), live.patch.after)


def _bytes_there(module: Module, planned: PlannedSplice) -> tuple[bytes, bytes, bytes]:
    """Return what is written over, what must stay after that, and the whole of the displaced instructions."""
    first, whole_at, written = planned.write_at, planned.start, planned.written
    if first == whole_at and not planned.borrowed:
        whole = content_of(planned.insns)
        if written <= len(whole):
            return whole[:written], b"", whole
    middle, end = first + written, planned.end
    start = min(first, whole_at)
    content = module.code.text.memory.read(start, max(middle + planned.borrowed, end) - start)
    borrowed = content[middle - start :][: planned.borrowed]
    return content[first - start : middle - start], borrowed, content[whole_at - start : end - start]


def leading_chain(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Return the actions, from the first one on, whose handlers can be called together; none if these are not two."""
    from anyprobe.splice.codegen.handlers.chain import can_follow

    chain: list[Action] = []
    handlers: list[HandlerFacts] = []
    for action in actions:
        same = not chain or action.bank.gate == chain[0].bank.gate
        if action.handler is None or not same or not can_follow(handlers, action.handler):
            break
        chain.append(action)
        handlers.append(action.handler)
    return tuple(chain) if len(chain) > 1 else ()


def of_one_bank(lines: list[PlannedSplice], action_of: Callable[[Want], Action | None]) -> list[PlannedSplice]:
    """Return the lines whose counters lie in the bank of the first one: a register has the block of one bank."""
    slots = [{action.bank.slot for want in line.wants if (action := action_of(want)) is not None} for line in lines]
    return [line for line, own in zip(lines, slots, strict=True) if own == slots[0] and len(own) == 1]


def _check_jump(live: EmittedSplice) -> None:
    """Raise if a jump that is partly made of bytes that others write, or that stay, would go astray."""
    planned = live.planned
    if not live.borrowed or planned.strategy is Strategy.TRAP:
        return
    content = live.new + live.borrowed
    prefixes = planned.pun.prefixes if planned.pun is not None else 0
    size, target = (4, live.springboard) if planned.pun is not None else (1, planned.dead_springboard + live.bias)
    distance = int.from_bytes(content[prefixes + 1 : prefixes + 1 + size], "little", signed=True)
    if live.address + prefixes + 1 + size + distance != target:
        raise InternalError(f"the jump at {live.address:#x} would not lead to {target:#x}")


def _written_twice(splices: Sequence[EmittedSplice]) -> int | None:
    """Return a byte that two splices write, if there is one."""
    spans = sorted((splice.address, splice.address + len(splice.new)) for splice in splices)
    return next((start for (_, end), (start, _) in pairwise(spans) if start < end), None)


def _leaning(splice: EmittedSplice, on: Iterable[EmittedSplice]) -> EmittedSplice:
    """Return a splice after whose bytes are those that others write, which it leans on."""
    changed = {at: byte for other in on for at, byte in enumerate(other.new, other.address)}
    after = enumerate(splice.borrowed, splice.address + len(splice.old))
    return replace(splice, borrowed=bytes(changed.get(at, byte) for at, byte in after))


def _dead_springboard(module: Module, planned: PlannedSplice, live: EmittedSplice) -> EmittedSplice:
    """Return the write into dead bytes that a short jump needs; it comes before the jump."""
    assert live.patch is not None
    old = module.code.text.memory.read(planned.dead_springboard, JUMP_BYTES)
    new = dead_springboard_bytes(planned, module.bias, live.patch.address)
    return EmittedSplice(
        planned, module.bias, planned.dead_springboard + module.bias, old, new, None, is_springboard=True
    )
