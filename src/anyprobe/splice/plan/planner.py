"""Planning: pure. Wanted sites of one function in, splices and refusals out; nothing is touched, nothing claimed.

All addresses are link-time addresses of the module. Each verdict about a strategy is kept for ``explain``.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.flow.straight_lines import FAR_ENOUGH
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import PlanDraft, SpliceDraft
from anyprobe.splice.plan.site import PLAINLY, Manner, Site
from anyprobe.splice.plan.splices import AUTO, HEADS, FunctionPlan, Strategy, Want, WantKind
from anyprobe.splice.plan.straight_lines import LEAST_WANTS, Lines
from anyprobe.splice.plan.strategies.ladder import LADDER, LIVE, PLAIN, Rung, tries
from anyprobe.splice.plan.together import all_of, member_at

_MANY = 128
"""Where as many instructions are wanted together, one more or less is not worth another look at all of them."""
_WHOLE = Manner(whole_lines=True)
_WITHOUT_PUNS = Manner(puns=False)
_CHAINED = Manner(chained=True)

Placing = Callable[["Attempt", list[Want]], None]


class Planner:
    """Plans the functions of one module."""

    __slots__ = ("context",)

    def __init__(self, context: PlanContext) -> None:
        """Plan with what is known of a module."""
        self.context = context

    def plan(
        self, function: FunctionCode, wants: Sequence[Want], vital: AbstractSet[Want] = frozenset()
    ) -> FunctionPlan:
        """Return splices for the wants of one function (and its parts elsewhere); nothing is claimed by that."""
        return self.draft(function, wants, vital).finished()

    def draft(self, function: FunctionCode, wants: Sequence[Want], vital: AbstractSet[Want] = frozenset()) -> PlanDraft:
        """Return the best of several plans.

        Where instructions take the room of one another, those with the least room are placed last, if that serves more,
        or as many with fewer puns: each of these needs a place at one of a few addresses. What is ``vital``, or serves
        the signal view, is placed first where it would be refused otherwise.
        """

        def better(plan: PlanDraft, place: Placing) -> PlanDraft:
            other = attempt(self.context, function, wants, vital, place)
            return other if other.loss < plan.loss else plan

        plan = attempt(self.context, function, wants, vital, Attempt.in_order)
        if len(wants) < 2 or not plan.is_worth_more(len(wants) // _MANY):
            return plan
        plan = better(plan, Attempt.cramped_last_from_after)
        if plan.refused:
            plan = better(plan, Attempt.cramped_last)
        if plan.loss[:2] > (0, 0) or (plan.refused and len(wants) < _MANY):
            plan = better(plan, Attempt.chained)
        if plan.loss[0] and not all(map(plan.is_vital, wants)):
            plan = better(plan, Attempt.vital_first)
        return plan


def plan_live(context: PlanContext, function: FunctionCode, wants: Sequence[Want]) -> FunctionPlan:
    """Return splices of one instruction each, best of one byte, for a change that is made while the program runs."""
    return attempt(context, function, wants, frozenset(), Attempt.each_alone).finished()


def plain_plan(context: PlanContext, function: FunctionCode, want: Want) -> FunctionPlan | None:
    """Return the plan for the one thing that is wanted of a function, if that is a plain jump at its place."""
    found = _alone(context, function, want)
    return None if found is None else found.finished()


def _alone(context: PlanContext, function: FunctionCode, want: Want) -> PlanDraft | None:
    plan = PlanDraft()
    made = Attempt(context.attempt(context.claims, plan, frozenset((want.address,))), function)
    return plan if made.plainly(want) else None


def attempt(
    context: PlanContext, function: FunctionCode, wants: Sequence[Want], vital: AbstractSet[Want], place: Placing
) -> PlanDraft:
    """Return one plan, made on claims of its own, which are thrown away."""
    todo = sorted(wants, key=lambda want: want.address)
    if len(todo) == 1 and place is Attempt.in_order:  # few of these need more than that, and a copy costs more
        alone = _alone(context, function, todo[0])
        if alone is not None:
            return alone
    plan = PlanDraft(scope=_scope(context, function, wants), vital=vital)
    wanted = frozenset(want.address for want in todo)
    with context.claims.trial() as claims:
        Attempt(context.attempt(claims, plan, wanted), function).run(todo, place)
    return plan


def _scope(context: PlanContext, function: FunctionCode, wants: Sequence[Want]) -> tuple[FunctionCode, ...]:
    """Return the functions that are planned together because of some wants."""
    homes = {function: None}
    start, end = function.start, function.end
    for want in wants:
        if not start <= want.address < end and not any(home.start <= want.address < home.end for home in homes):
            home = context.code.containing(want.address)
            if home is not None:
                homes[home] = None
    return tuple(dict.fromkeys(each for home in homes for each in all_of(context.code, home)))


class Attempt:
    """One way of placing what is wanted of a function."""

    def __init__(self, context: PlanContext, function: FunctionCode) -> None:
        """Add to the plan of ``context``, and claim what the plan takes."""
        self._context, self._function, self._plan = context, function, context.plan

    def run(self, todo: list[Want], place: Placing) -> None:
        """Place wants, ascending, in some way, with the branches that lead back to entries among them."""
        plan = self._plan
        plan.refused = self._without_after(todo)
        hopeless = {want for want, _ in plan.refused}
        todo = [want for want in todo if want not in hopeless] if hopeless else todo
        heads = [want for want in todo if want.kind in HEADS]
        if heads:
            asked = {want.address for want in heads if not want.internal}
            loops = [
                Want(at, WantKind.LOOP, tag=head[0], internal=head[0] not in asked)
                for head in dict.fromkeys(map(self._head, heads))
                for at in _back_to(*head)
            ]
            todo = sorted([*todo, *loops], key=lambda want: want.address)
        place(self, todo)
        self._refuse_open_loops(heads)
        self._drop_idle()

    def plainly(self, want: Want) -> bool:
        """Plan the one thing that is wanted by a plain jump, for which nothing is claimed; return whether that can be.

        It is what ``in_order`` would come to: nothing is placed after it that had to regard what it takes.
        """
        part, is_entry, address = self._context.part_of(self._function, want.address), False, want.address
        if want.kind is WantKind.ENTRY and part is not None:
            is_entry = address == part.entry
        if part is None or want.after or not (is_entry or part is self._function):
            return False
        if want.kind in HEADS and _back_to(address, part, is_entry):
            return False
        site = self._site(part, want, None, PLAINLY, JUMP_BYTES)
        found = self._climb(site, PLAIN) if isinstance(site, Site) else None
        if not isinstance(found, SpliceDraft) or found.strategy is not Strategy.JUMP:
            return False
        found.wants.append(want)
        self._plan.splices.append(found)
        return True

    def _head(self, want: Want) -> tuple[int, FunctionCode, bool]:
        """Return the address by which branches to a head are known, its function, and whether it is the entry."""
        home, is_entry = member_at(self._plan.scope, want.address), want.kind is WantKind.ENTRY
        return home.entry if is_entry else want.address, home, is_entry

    # -- ways of placing

    def in_order(self, todo: list[Want]) -> None:
        """Place wants as they come."""
        self._place_all(self._place_lines(todo))
        self._serve_from_elsewhere(todo)

    def each_alone(self, todo: list[Want]) -> None:
        """Place each want at its instruction or nowhere: in a stop there are better ways."""
        self._place_all(todo, ladder=LIVE)

    def cramped_last_from_after(self, todo: list[Want]) -> None:
        """Place what has room first, then the rest, the last line first."""
        self._place_cramped(todo, self._from_after(self._place_roomy(todo)), _WITHOUT_PUNS)

    def cramped_last(self, todo: list[Want]) -> None:
        """Place straight lines with room for a jump first, as a whole; puns, which lock bytes, come last of all."""
        self._place_cramped(todo, self._place_roomy(todo), _WITHOUT_PUNS)

    def chained(self, todo: list[Want]) -> None:
        """Place lines with room for a jump first, then from after what has none: each pun on the bytes of the next."""
        self._place_cramped(todo, self._from_after(self._place_roomy(todo)), _CHAINED)

    def vital_first(self, todo: list[Want]) -> None:
        """Place what must not be refused as if nothing else were wanted; then the rest, where there is room for it."""
        plan = self._plan
        first = {want for want in todo if plan.is_vital(want)}
        alone = Planner(self._context).draft(self._function, [want for want in todo if want in first])
        for splice in alone.splices:
            self._context.claims.claim(splice)
        plan.splices += alone.splices
        plan.refused += alone.refused
        plan.verdicts += alone.verdicts
        plan.shared |= alone.shared
        heads = {want.address for want in first if want.kind in HEADS}
        rest = [want for want in todo if want not in first]
        # the other branches back came with what they lead to
        self._place_all(want for want in rest if want.kind is not WantKind.LOOP or want.tag not in heads)
        self._serve_from_elsewhere(rest)

    def _place_cramped(self, todo: list[Want], cramped: list[Want], manner: Manner) -> None:
        """Place what has no room, then try once more what was refused of it, when everything else has its place."""
        plan, later = self._plan, frozenset(cramped)
        self._place_all(cramped, manner)
        self._serve_from_elsewhere(todo)
        again = [want for want, _ in plan.refused if want in later]
        plan.refused = [(want, why) for want, why in plan.refused if want not in later]
        self._place_all(again)

    def _place_roomy(self, todo: list[Want]) -> list[Want]:
        """Place the lines with room for a jump, as a whole; return the wants in others."""
        cramped = [want for want in todo if self._is_cramped(want)]
        later = frozenset(cramped)
        self._place_all(self._place_lines([want for want in todo if want not in later], _WHOLE), _WHOLE)
        return cramped

    def _place_lines(self, todo: list[Want], manner: Manner = PLAINLY) -> list[Want]:
        """Place the straight lines of a function of which much is wanted; return what is left."""
        context, function = self._context, self._function
        if len(todo) < LEAST_WANTS or context.plain_jumps_only or Strategy.JUMP not in context.allowed:
            return todo
        if function.complete is not None or function.overlapped:
            return todo
        return Lines(context, function).place(todo, whole=manner.whole_lines)

    def _from_after(self, wants: list[Want]) -> list[Want]:
        """Order wants by straight line, the last line first: what stands in front may lean on what is after."""
        lines = {want: run[0].address if (run := self._line_of(want)) else want.address for want in wants}
        return sorted(wants, key=lambda want: (-lines[want], want.address))

    def _line_of(self, want: Want) -> tuple[Insn, ...]:
        part = self._context.part_of(self._function, want.address)
        return part.lines.around(want.address, want.address - FAR_ENOUGH) if part is not None else ()

    def _is_cramped(self, want: Want) -> bool:
        """Return whether the straight line that an instruction lies in has no room for a jump."""
        part, run = self._context.part_of(self._function, want.address), self._line_of(want)
        if part is None or not run or want.kind is WantKind.LOOP:
            return False
        run = self._moving_around(run, want.address)
        return run[-1].end + self._context.dead_bytes(part, run[-1]) - run[0].address < JUMP_BYTES

    def _moving_around(self, run: tuple[Insn, ...], address: int) -> tuple[Insn, ...]:
        """Return what may move together of a line with the instruction at an address."""
        if not self._context.faults_handled:
            return run
        parted = self._context.faults_part
        first = last = next(i for i, insn in enumerate(run) if insn.address == address)
        while first > 0 and not parted(run[first - 1], run[first]):
            first -= 1
        while last + 1 < len(run) and not parted(run[last], run[last + 1]):
            last += 1
        return run[first : last + 1]

    # -- one want

    def _place_all(self, wants: Iterable[Want], manner: Manner = PLAINLY, ladder: tuple[Rung, ...] = LADDER) -> None:
        for want in wants:
            refusal = self._place(want, manner, ladder)
            if refusal is not None:
                self._plan.refused.append((want, refusal))

    def _place(self, want: Want, manner: Manner, ladder: tuple[Rung, ...]) -> Refusal | None:
        context, plan = self._context, self._plan
        part = context.part_of(self._function, want.address)
        if part is None:
            return Refusal(Reason.NOT_CODE, want.address, "no function is known here")
        if want.address in plan.shared:
            detail = "runs in its place and as a copy in the patch of what stands above"
            return Refusal(Reason.OVERLAP, want.address, detail)
        last = plan.last_before(want.address)
        if last is not None and last.covers(want.address) and _may_join(last, want):
            last.wants.append(want)
            return None
        site = self._site(part, want, last, manner)
        found = site if isinstance(site, Refusal) else self._climb(site, ladder)
        if isinstance(found, Refusal):
            return found
        found.wants.append(want)
        if found is last:
            context.claims.displace(last)
        else:
            context.adopt(found)
        return None

    def _site(
        self, part: FunctionCode, want: Want, last: SpliceDraft | None, manner: Manner, reach: int = FAR_ENOUGH
    ) -> Site | Refusal:
        """Return a wanted instruction in its line, or why nothing can be done there, whatever the strategy.

        ``reach``: so many bytes after it are enough.
        """
        insn = part.insn_at(want.address)
        if insn is None:
            return _nothing_at(part, want.address)
        refusal = self._context.forbidden((insn,))
        if refusal is not None:
            return refusal
        if want.kind is WantKind.LOOP and insn.target is None:
            return Refusal(Reason.ENTRY_IS_LOOP_HEAD, want.address, "a jump table leads back to the entry")
        near = want.address - (0 if want.kind in HEADS else FAR_ENOUGH)
        run = part.lines.around(want.address, near if last is None else min(near, last.head), reach)
        index = next(i for i, candidate in enumerate(run) if candidate.address == want.address)
        # nothing before where the last patch comes back to may be overwritten
        floor = near if last is None else max(last.write_at + last.written, last.end, near)
        return Site(self._context, part, run, index, index, floor, want, last, manner)

    def _climb(self, site: Site, ladder: tuple[Rung, ...]) -> SpliceDraft | Refusal:
        """Return what the first strategy makes of a site that applies; else why the first that came near does not."""
        want, puns = site.want, site.manner.puns
        assert want is not None
        allowed = AUTO if want.internal else self._context.allowed
        if want.in_place:
            allowed &= {Strategy.RETARGET}
        first: Refusal | None = None
        for kind, strategy, at in tries(site, ladder):
            if kind not in allowed or (kind is Strategy.PUNNED and not puns):
                continue
            found = strategy.try_at(at)
            refusal = found if isinstance(found, Refusal) else None
            self._plan.verdicts.append((want.address, kind, refusal))
            if not isinstance(found, Refusal):
                return found
            if first is None and found.reason is not Reason.NOT_A_BRANCH:
                first = found
        if site.insn.flow is Flow.RET and len(site.function.insns) == 1:
            return Refusal(Reason.LONE_RET, want.address, "the function is a lone ret with no room after it")
        return first or Refusal(Reason.STRATEGY_NOT_ASKED, want.address, "no permitted strategy applies")

    # -- what has no room, and what is left

    def _without_after(self, wants: Sequence[Want]) -> list[tuple[Want, Refusal]]:
        """Return the wants after instructions after which nothing can be done, whatever displaces them, and why."""
        refused: list[tuple[Want, Refusal]] = []
        asked = [want for want in wants if want.after]
        if not asked:
            return refused
        from anyprobe.splice.plan.post_actions import no_after

        for want in asked:
            part = self._context.part_of(self._function, want.address)
            insn = part.insn_at(want.address) if part is not None else None
            if insn is not None and (why := no_after(insn)) is not None:
                refused.append((want, why))
        return refused

    def _serve_from_elsewhere(self, wants: list[Want]) -> None:
        """Splice the ways to exits that are too short, and count what else has no room where control comes from."""
        plan = self._plan
        if any(want.kind is WantKind.EXIT for want, _ in plan.refused):
            from anyprobe.splice.plan.exit_predecessors import ExitPredecessors

            ways = ExitPredecessors(self._context, self._function, wants)
            plan.refused = [(want, why) for want, why in plan.refused if not ways.splice(want)]
        if any(want.kind is WantKind.OFFSET and not want.in_place for want, _ in plan.refused):
            from anyprobe.splice.plan.predecessors import Predecessors

            above = Predecessors(self._context, self._function)
            served = above.splice([want for want, _ in plan.refused if not want.in_place])
            plan.refused = [(want, why) for want, why in plan.refused if want not in served]

    def _refuse_open_loops(self, heads: list[Want]) -> None:
        """Refuse an entry where a branch back to it could not be spliced: it would count iterations.

        A return point likewise: a branch to it is no return.
        """
        plan = self._plan
        lost = {want.address for want, _ in plan.refused if want.kind in HEADS}
        open_loops = {want.tag: want for want, _ in plan.refused if want.kind is WantKind.LOOP}
        if not open_loops and not lost:
            return
        plan.refused = [(want, why) for want, why in plan.refused if want.kind is not WantKind.LOOP]
        for want in heads:
            if want.address in open_loops and want.address not in lost:
                branch = open_loops[want.address].address
                if want.kind is WantKind.ENTRY:
                    reason, what = Reason.ENTRY_IS_LOOP_HEAD, "loops back to the entry"
                else:
                    reason, what = Reason.RETURN_POINT_JOINED, "joins here without a return"
                detail = f"the branch at {branch:#x} {what} and cannot be spliced"
                plan.refused.append((want, Refusal(reason, want.address, detail)))
        refused = {id(want) for want, _ in plan.refused}
        lost.update(address for address in open_loops if isinstance(address, int))
        for splice in plan.splices:
            splice.wants = [
                want for want in splice.wants
                if id(want) not in refused and (want.kind is not WantKind.LOOP or want.tag not in lost)
            ]  # fmt: skip

    def _drop_idle(self) -> None:
        """Take out what serves nothing: no want, and no splice that leans on it."""
        plan = self._plan
        while any(not splice.wants for splice in plan.splices):
            needed = [each for splice in plan.splices for each in splice.leans_on]
            idle = [splice for splice in plan.splices if not splice.wants and splice not in needed]
            if not idle:
                return
            for splice in idle:
                plan.splices.remove(splice)
                self._context.claims.release(splice)


def _back_to(head: int, home: FunctionCode, is_entry: bool) -> Sequence[int]:
    """Return the branches of a function that lead back to one of its heads."""
    return home.back_to_entry if is_entry else home.back_to(frozenset({head}))


def _may_join(splice: SpliceDraft, want: Want) -> bool:
    """Return whether the splice's patch can serve the want.

    A retargeted branch serves only its taken edge. What follows a trap's instruction stays in place, and a thread may
    be on its way there. Branches go after what runs at one place of a patch only.
    """
    if want.kind in HEADS and any(each.kind in HEADS and each.address != want.address for each in splice.wants):
        return False
    if splice.strategy is Strategy.TRAP:
        return splice.head == want.address and not want.internal
    if want.after and splice.insns[0].flow is Flow.JCC and splice.strategy is Strategy.RETARGET:
        return False
    if splice.strategy is not Strategy.RETARGET:
        return True
    first = splice.wants[0]
    return first.kind is want.kind and first.conditional == want.conditional


def _nothing_at(function: FunctionCode, address: int) -> Refusal:
    """Return why an address is not where an instruction can be spliced."""
    if address in function.overlapped:
        return Refusal(Reason.JUMP_TARGET_IN_JTPR, address, "a jump enters the instruction after its lock prefix")
    if function.is_boundary(address):
        return Refusal(Reason.NOT_CODE, address, "nothing that is known leads here; it may be data")
    return Refusal(Reason.NOT_A_BOUNDARY, address, "not an instruction boundary")
