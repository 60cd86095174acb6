"""From a planned splice to bytes: its patch at a given address, and what to write at its head."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.encode import CONDITIONS, head
from anyprobe.isa.lines import KeptLine, is_copied
from anyprobe.isa.relocate import displace
from anyprobe.splice.codegen.counter_template import FrontKey, front_key, is_plain, is_plain_branch
from anyprobe.splice.codegen.patch import (
    REPLACING,
    Action,
    ActionKind,
    PatchWriter,
    UndisplaceableError,
)
from anyprobe.splice.emitted import EmittedPatch, Landing, PatchParts
from anyprobe.splice.plan.splices import HEADS, TRAP, Clobbers, PlannedSplice, Strategy, Want, WantKind

PATCH_ALIGNMENT = 16
_JUMP = head("jmp target")
PLAIN_ESTIMATE, COUNTER_ESTIMATE = 24, 81
"""Upper bounds of a patch that only counts, beyond its counters and instructions (alignment, the jump back), and of the
code of a counter that has to save everything, its first hit included."""
_PLAIN_ESTIMATES: dict[object, int] = {ActionKind.COUNT: COUNTER_ESTIMATE, ActionKind.FLAG: 7}
PATCH_ESTIMATE, ACTION_ESTIMATE, INSTRUCTION_ESTIMATE = 200, 112, 32
"""Bytes at most of any other patch, of any action, and of the copy of an instruction that cannot be copied as it is."""

_COUNT_FIRST = frozenset(
    {
        ActionKind.COUNT, ActionKind.COUNT_STACKLESS, ActionKind.FLAG,
        ActionKind.LEAVE, ActionKind.LEAVE_TAIL, ActionKind.LEAVE_CALLER, ActionKind.LEAVE_SWITCH,
    }
)  # fmt: skip
_USUAL = _COUNT_FIRST - {ActionKind.COUNT_STACKLESS} | {ActionKind.ENTER, ActionKind.UNWIND}
"""What is done by code that says nothing of where it is but by arguments and displacements."""
_SEE_STACK = REPLACING | {ActionKind.HANDLER}
"""What looks at the stack, which has to be as before the instruction."""
_ORDER = {WantKind.ENTRY: 0, WantKind.RETURN_POINT: 0, WantKind.LOOP: 1, WantKind.OFFSET: 2, WantKind.EXIT: 3}


@dataclass(frozen=True, slots=True)
class ActionSource:
    """Where a patch's actions come from: per want, the code to run and what it may clobber at the site."""

    actions: Callable[[Want], tuple[Action, ...]]
    clobbers: Callable[[Want], Clobbers]
    together: Callable[[Sequence[Action]], tuple[int, int]] = lambda _: (0, 0)
    """How many of some actions, from the first one on, are handlers of one call, and what that call's routine is."""


def estimate(splice: PlannedSplice) -> int:
    """Return an upper bound of the bytes that the splice's patch takes."""
    size, plain = _copies_estimate(splice.insns), True
    for want in splice.wants:
        bare = not (want.conditional or want.after or want.block)
        kind = getattr(want.tag, "kind", None)
        if bare and kind in _PLAIN_ESTIMATES:
            size += _PLAIN_ESTIMATES[kind]
            continue
        plain = False
        if kind is ActionKind.MOVE:
            size += want.tag.body.most_bytes  # type: ignore[attr-defined] # a hook
            continue
        size += ACTION_ESTIMATE + INSTRUCTION_ESTIMATE * len(want.block)
        if getattr(want.tag, "kind", None) is ActionKind.VIEW:
            from anyprobe.splice.codegen.view_call import COUNTED_ESTIMATE, VIEW_ESTIMATE

            size += VIEW_ESTIMATE + COUNTED_ESTIMATE * (len(splice.wants) - 1)
        if want.inside:
            from anyprobe.splice.codegen.timing.exit_test import DECISION_ESTIMATE, RANGE_ESTIMATE

            size += DECISION_ESTIMATE + RANGE_ESTIMATE * len(want.inside)
        if getattr(want.tag, "handler", None) is not None:
            from anyprobe.splice.codegen.handlers.inline import INLINE_ESTIMATE

            size += INLINE_ESTIMATE
            if any(each.number.path for each in want.tag.handler.code.only_if):  # type: ignore[attr-defined] # a hook
                from anyprobe.splice.codegen.handlers.guards import READS_ESTIMATE

                size += READS_ESTIMATE
    return size + (PLAIN_ESTIMATE if plain else PATCH_ESTIMATE)


def _copies_estimate(insns: Sequence[Insn]) -> int:
    if isinstance(insns, KeptLine):
        return len(insns.content) + (0 if is_copied(insns.shape) else INSTRUCTION_ESTIMATE * len(insns))
    return sum([len(insn.raw) if insn.flow is Flow.NEXT else INSTRUCTION_ESTIMATE for insn in insns])


def emit_patch(
    splice: PlannedSplice,
    address: int,
    bias: int,
    source: ActionSource,
    after: Mapping[int, int],
    *,
    looped: bool = True,
) -> EmittedPatch | Refusal:
    """Return the patch of a splice at ``address``.

    ``after`` maps the run-time address of a function's entry, or of a return point, to where branches to it must go:
    after what runs there. The patch's own head is added to it by its own want. ``looped``: there may be such branches,
    so what runs at entries comes before what runs at the instruction; else all of it runs in the order of the wants.
    """
    try:
        return _Emission(splice, address, bias, source, dict(after), looped=looped).run()
    except UndisplaceableError as failure:
        return failure.refusal


class _Emission:
    def __init__(
        self,
        splice: PlannedSplice,
        address: int,
        bias: int,
        source: ActionSource,
        after: dict[int, int],
        *,
        looped: bool,
    ) -> None:
        self._looped = looped
        self._splice, self._bias, self._source, self._heads = splice, bias, source, after
        self._writer = PatchWriter(address)
        self._starts: list[tuple[int, int]] = []
        self._copies: list[tuple[int, int]] = []
        self._after_here = 0
        self._faults: list[tuple[Insn, int, int, list[Action]]] = []
        """(instruction, where its copy is, where that goes on, what runs if it faults)."""
        self._spans: list[tuple[int, int, int]] = []
        """(run-time address of the instruction, start, end) of displaced copies, by offset."""
        self._is_usual = True
        """Whether it is made of nothing but counters, calls of timing routines and displaced copies."""

    def run(self) -> EmittedPatch:
        splice, writer = self._splice, self._writer
        if splice.strategy is Strategy.RETARGET:
            self._retargeted(splice.insns[0].at(splice.insns[0].address + self._bias))
        else:
            for insn in splice.insns:
                self._instruction(insn)
            if splice.insns[-1].may_go_on:
                end = splice.end + self._bias
                self._copies.append((end, writer.here))
                writer.relative("jmp target", end)
        code = writer.finish()
        landings = self._landings() if self._faults else ()
        landings += tuple(Landing(copy, entries) for copy, entries in writer.soft_reads)
        return EmittedPatch(
            writer.address,
            bytes(writer.out) if landings else code,
            tuple(self._starts),
            tuple(self._copies),
            self._after_here or writer.address,
            self._front(),
            landings,
            self._parts(),
        )

    def _landings(self) -> tuple[Landing, ...]:
        from anyprobe.splice.codegen.fault_exit import write_landing

        return tuple(write_landing(self._writer, *fault) for fault in self._faults)

    def _parts(self) -> PatchParts | None:
        """Return what tells what the patch does from where it lies, if it does what most do."""
        kinds = {action.kind for want in self._splice.wants for action in self._source.actions(want)}
        if not self._is_usual or not kinds <= _USUAL or any(want.block or want.after for want in self._splice.wants):
            return None
        numbers = {insn.address + self._bias: number for number, insn in enumerate(self._splice.insns)}
        copies = tuple([(numbers[original], start, end) for original, start, end in self._spans])
        return PatchParts(tuple(self._writer.arguments), tuple(self._writer.displacements), copies)

    def _front(self) -> FrontKey | None:
        """Return what tells the front from others where one plain action comes before everything else."""
        splice, wants = self._splice, self._splice.wants
        actions = self._source.actions(wants[0]) if len(wants) == 1 else ()
        plain = len(actions) == 1 and (is_plain(splice, actions[0]) or is_plain_branch(splice, actions[0]))
        return front_key(actions[0], partial(self._source.clobbers, wants[0])) if plain else None

    def _wants_at(self, address: int) -> list[Want]:
        """Return the wants at a link-time address, in the order in which they run."""
        found = [want for want in self._splice.wants if want.address == address]
        return sorted(found, key=lambda want: -1 if want.first else _ORDER[want.kind]) if len(found) > 1 else found

    def _actions(self, wants: list[Want]) -> None:
        found = [
            (want, action)
            for want in wants
            if want.kind is not WantKind.LOOP
            for action in self._source.actions(want)
            if action.kind is not ActionKind.FAULT
        ]
        ordered = sorted(found, key=_turn) if len(found) > 1 else found
        if ordered and ordered[0][1].kind is ActionKind.VIEW:
            from anyprobe.splice.codegen.view_call import write_view

            (_, view), *ordered = ordered
            called = [action for _, action in ordered]
            write_view(self._writer, view, called, partial(self._in_turn, [*map(_with_stack, ordered)]))
        else:
            self._in_turn(ordered)

    def _in_turn(self, ordered: list[tuple[Want, Action]]) -> None:
        while ordered:
            number, routine = self._source.together([action for _, action in ordered]) if len(ordered) > 1 else (0, 0)
            if routine:
                self._writer.call_handlers([action for _, action in ordered[:number]], routine)
                ordered = ordered[number:]
                continue
            (want, action), *ordered = ordered
            self._writer.action(action, self._source.clobbers(want))

    def _retargeted(self, insn: Insn) -> None:
        """The branch itself leads here: actions, then on to its destination."""
        assert insn.target is not None
        wants = self._wants_at(insn.address - self._bias)
        if any(action.kind is ActionKind.FAULT for want in wants for action in self._source.actions(want)):
            from anyprobe.splice.codegen.fault_exit import check_landing

            check_landing(insn, first=True)
        if wants[0].block:
            self._exit_block(wants)
            return
        self._before_retargeted(insn, [want for want in wants if not want.after])
        self._after([want for want in wants if want.after], insn.target)
        self._copies.append((insn.target, self._writer.here))
        self._after_here = self._writer.here
        # a call of the function by itself is a call like any other; only jumps go after the handlers
        target = insn.target if insn.flow is Flow.CALL else self._heads.get(insn.target, insn.target)
        self._writer.relative("jmp target", target)

    def _before_retargeted(self, insn: Insn, wants: list[Want]) -> None:
        """Append actions; handlers see the stack as it was before a call."""
        handlers = [action for want in wants for action in self._source.actions(want)]
        handlers = [
            action
            for action in handlers
            if action.kind in _SEE_STACK and insn.flow is Flow.CALL and not action.bank.per_processor
        ]  # a kernel has no red zone
        if any(action.moves_stack for action in handlers):
            detail = (
                "a call by a changed branch has pushed its return address: the stack pointer cannot be changed here"
            )
            raise UndisplaceableError(Refusal(Reason.NO_DISPLACED_FORM, insn.address, detail))
        shown = bool(handlers)
        if shown:
            self._writer.code("lea rsp, [rsp+8]")  # the return address is in the red zone
        self._actions(wants)
        if shown:
            self._writer.code("lea rsp, [rsp-8]")

    def _after(self, wants: list[Want], following: int, push: Callable[[int], bytes] | None = None) -> None:
        """Append actions that are told where control goes, which ``push`` finds out where ``following`` is 0."""
        for want in wants:
            for action in self._source.actions(want):
                told = action._replace(ip=following) if following and action.function else action
                self._writer.action(told, Clobbers(), push)

    def _instruction(self, insn: Insn) -> None:
        """Emit one link-time instruction: its actions and its displaced copy."""
        writer, address = self._writer, insn.address + self._bias
        self._starts.append((address, writer.here))
        wants = self._wants_at(insn.address)
        if not wants:  # most of what is displaced
            self._copies.append((address, writer.here))
            if not self._is_copied_as_it_is(insn, address):
                insn = insn.at(address)
                self._copy(insn, self._after_entry(insn))
            return
        heads = [want for want in wants if want.kind in HEADS]
        together = set(heads)
        if heads and not self._looped:
            together.update(want for want in wants if want.kind is WantKind.OFFSET and not want.after)
            if insn.flow is Flow.RET and any(want.shows_pcs for want in heads):
                together.update(want for want in wants if want.kind is WantKind.EXIT)
        self._actions([want for want in self._splice.wants if want in together])
        if heads:
            self._after_here = writer.here
            self._heads[address] = writer.here
            if heads[0].kind is WantKind.ENTRY:
                self._heads[address - 4] = writer.here  # a branch to an endbr64 before the entry
        faults = [action for want in wants for action in self._source.actions(want) if action.kind is ActionKind.FAULT]
        if faults:
            from anyprobe.splice.codegen.fault_exit import check_landing

            check_landing(insn, first=insn is self._splice.insns[0])
        through = [want for want in wants if want.block]
        after = [want for want in wants if want.after]
        plain = [want for want in wants if not want.block and not want.after]
        self._actions([want for want in plain if want not in together and not want.conditional])
        taken = [want for want in plain if want.conditional]
        if taken and insn.flow is Flow.INDIRECT_JUMP:
            from anyprobe.splice.codegen.timing.exit_test import decide

            inside = [(low + self._bias, high + self._bias) for low, high in taken[0].inside]
            decide(writer, insn.at(address), inside, lambda: self._actions(taken))
            taken, self._is_usual = [], False
        if faults:
            self._watched(insn.at(address), after, faults)
            return
        if after:
            self._with_actions_after(insn.at(address), after, taken, through)
            return
        self._copies.append((address, writer.here))
        if self._is_copied_as_it_is(insn, address):
            return
        if through:
            if insn.flow is Flow.JCC:
                writer.cold(f"j{_condition(insn)} taken", lambda: self._exit_block(through))
            else:
                self._exit_block(through)
            return
        insn = insn.at(address)
        if taken:
            self._conditional_exit(insn, taken)
            return
        self._copy(insn, self._after_entry(insn))

    def _is_copied_as_it_is(self, insn: Insn, address: int) -> bool:
        """Append the very bytes of a link-time instruction if these do the same anywhere; return whether they do."""
        if insn.flow is not Flow.NEXT or insn.iced.is_ip_rel_memory_operand:
            return False
        writer = self._writer
        start = len(writer.out)
        writer.raw(insn.raw)
        self._spans.append((address, start, len(writer.out)))
        return True

    def _watched(self, insn: Insn, after: list[Want], faults: list[Action]) -> None:
        """Append the copy of a run-time instruction that does not branch and may fault, which is waited for."""
        writer = self._writer
        self._copies.append((insn.address, writer.here))
        copy = writer.here
        self._copy(insn)
        self._faults.append((insn, copy, writer.here, faults))
        self._after(after, insn.end)

    def _with_actions_after(self, insn: Insn, after: list[Want], taken: list[Want], through: list[Want]) -> None:
        """Append the copy of a run-time instruction with actions after it; ``taken`` and ``through`` are exits."""
        from anyprobe.splice.codegen.post_actions import (
            act_after_jump,
            act_after_return,
            branch_with_actions,
            call_with_actions,
        )

        writer, act = self._writer, partial(self._after, after)
        target = self._after_entry(insn)

        def leave() -> None:
            self._actions(taken)
            if through:
                self._exit_block(through)
            else:
                assert insn.target is not None
                writer.relative("jmp target", insn.target if target is None else target)

        if insn.flow is Flow.RET:
            act_after_return(writer, insn, act)
        elif insn.flow in (Flow.JUMP, Flow.INDIRECT_JUMP):
            act_after_jump(insn, act)
        self._copies.append((insn.address, writer.here))
        if insn.is_call:
            call_with_actions(writer, insn, act)
        elif insn.flow is Flow.JCC:
            branch_with_actions(writer, insn, act, leave)
        elif insn.flow is Flow.JUMP:
            leave()
        else:
            self._copy(insn)
            if insn.may_go_on:
                act(insn.end, None)

    def _after_entry(self, insn: Insn) -> int | None:
        """Return where a branch back to the entry goes instead."""
        return self._heads.get(insn.target) if insn.target is not None and insn.flow is not Flow.CALL else None

    def _copy(self, insn: Insn, target: int | None = None) -> None:
        """Append the displaced copy of a run-time instruction."""
        copy = displace(insn, self._writer.here, target=target)
        if isinstance(copy, Refusal):
            raise UndisplaceableError(copy)
        start = len(self._writer.out)
        self._writer.raw(copy)
        self._spans.append((insn.address, start, len(self._writer.out)))

    def _exit_block(self, wants: list[Want]) -> None:
        """Append a copy of the exit block that a branch leads to; the actions run before its last instruction."""
        block = wants[0].block
        for insn in block:
            if insn is block[-1]:
                self._actions([want.origin for want in wants if want.origin is not None])
            self._copies.append((insn.address + self._bias, self._writer.here))
            self._copy(insn.at(insn.address + self._bias))

    def _conditional_exit(self, insn: Insn, wants: list[Want]) -> None:
        """A conditional tail jump: its actions run on the taken edge only."""
        condition = _condition(insn)
        target = insn.target
        assert target is not None

        def taken() -> None:
            self._actions(wants)
            self._writer.relative("jmp target", target)

        self._writer.cold(f"j{condition} taken", taken)


def _with_stack(item: tuple[Want, Action]) -> tuple[Want, Action]:
    """Return the same for a call that the program makes, which has written to the stack."""
    want, action = item
    return want, action._replace(kind=ActionKind.COUNT) if action.kind is ActionKind.COUNT_STACKLESS else action


def _turn(item: tuple[Want, Action]) -> tuple[int, int]:
    """Return when an action's turn is: of calls that end together, the one that was jumped to last ends first."""
    return _turn_of_kind(item), item[1].jumps


def _turn_of_kind(item: tuple[Want, Action]) -> int:
    """Return when an action's turn is: a handler may send the thread elsewhere, and has no part in a call's time."""
    kind = item[1].kind
    if kind is ActionKind.VIEW:
        return -1
    if kind is ActionKind.LEAVE_SWITCH:
        return 0  # the call that ends here, if it is timed, is one of the stack that the thread is on now
    if kind is ActionKind.ENTER and item[0].internal:
        return 4  # a switch to another stack: the call that makes it may be timed itself
    if kind is ActionKind.UNWIND:
        return 5  # what leaves calls behind may be timed itself: its own call is among them
    if kind is ActionKind.ARRIVE or (kind is ActionKind.LEAVE_TAIL and item[0].kind is WantKind.ENTRY):
        return 4  # a call that is to end in its caller has begun; one that is jumped to comes above the one that jumps
    if kind in _COUNT_FIRST:
        return 1
    return 3 if kind is ActionKind.ENTER or kind in REPLACING else 2


def _condition(insn: Insn) -> str:
    if insn.condition is not None:
        return CONDITIONS[insn.condition]
    detail = f"{insn.text}: no form with handlers on its taken edge only"
    raise UndisplaceableError(Refusal(Reason.NO_DISPLACED_FORM, insn.address, detail))


def dead_springboard_bytes(splice: PlannedSplice, bias: int, target: int) -> bytes:
    """Return the jump to the run-time address ``target`` to write into the dead bytes that a short jump leads to."""
    return head("jmp target") + (target - (splice.dead_springboard + bias + 5)).to_bytes(4, "little", signed=True)


def head_bytes(splice: PlannedSplice, bias: int, target: int) -> bytes:
    """Return the bytes to write at ``splice.write_at`` so that the site leads to the run-time address ``target``.

    For a punned jump ``target`` is its springboard.
    """
    if splice.strategy is Strategy.JUMP:
        return _JUMP + (target - (splice.head + bias + 5)).to_bytes(4, "little", signed=True)
    if splice.pun is not None:
        return splice.pun.head_bytes(target - bias)
    if splice.strategy is Strategy.SHORT:
        distance = (splice.dead_springboard - (splice.head + 2)).to_bytes(1, "little", signed=True)
        return (b"\xeb" + distance)[: splice.written]
    if splice.strategy is Strategy.TRAP:
        return TRAP  # the target is the signal handler's affair
    return (target - (splice.insns[0].end + bias)).to_bytes(4, "little", signed=True)
