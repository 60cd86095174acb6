"""Planning: pure. Wanted sites of one function in, splices and refusals out; nothing of the target is touched.

All addresses are link-time addresses of the module. Each verdict about a strategy is kept for ``explain``.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.flow.straight_lines import FAR_ENOUGH
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.plan.splices import AUTO, FunctionPlan, PlannedSplice, Strategy, Want, WantKind
from anyprobe.splice.plan.straight_lines import LEAST_WANTS, Lines
from anyprobe.splice.plan.strategies.pun_rows import Rows
from anyprobe.splice.plan.together import all_of, member_at

_MANY = 128
"""Where as many instructions are wanted together, one more or less is not worth another look at all of them."""
_FEW = 2
"""Of how many wanted instructions a row of others is displaced for one at once; of more, once all else has failed."""


@dataclass
class Planner(Rows):
    """Plans the functions of one module."""

    _vital: AbstractSet[Want] = frozenset()
    _whole_lines: bool = False
    """Let a patch rather carry on with what follows than have a second one there."""
    _puns: bool = True
    _chained: bool = False
    """Choose the bytes of puns so that what stands in front can lean on them."""

    def plan(
        self, function: FunctionCode, wants: Sequence[Want], vital: AbstractSet[Want] = frozenset()
    ) -> FunctionPlan:
        """Return splices for the wants of one function (and its parts elsewhere); nothing is claimed by that.

        Where instructions take the room of one another, those with the least room are placed last, if that serves more,
        or as many with fewer puns: each of these needs a place at one of a few addresses. What is ``vital``, or serves
        the signal view, is placed first where it would be refused otherwise.
        """
        self._vital = vital
        plan = self._attempt(function, wants, self._place_in_order)
        if len(wants) < 2 or not plan.is_worth_more(len(wants) // _MANY):
            return plan
        plan = self._better(plan, function, wants, partial(self._place_cramped_last, from_behind=True))
        if plan.refused:
            plan = self._better(plan, function, wants, partial(self._place_cramped_last, from_behind=False))
        if plan.loss[:2] > (0, 0) or (plan.refused and len(wants) < _MANY):
            plan = self._better(plan, function, wants, self._place_chained)
        if plan.loss[0] and not all(map(plan.is_vital, wants)):
            plan = self._better(plan, function, wants, self._place_vital_first)
        return plan

    def _better(
        self,
        plan: FunctionPlan,
        function: FunctionCode,
        wants: Sequence[Want],
        place: Callable[[FunctionCode, list[Want], FunctionPlan], None],
    ) -> FunctionPlan:
        """Return another plan if it serves more, else the one that there is."""
        other = self._attempt(function, wants, place)
        return other if other.loss < plan.loss else plan

    def _attempt(
        self,
        function: FunctionCode,
        wants: Sequence[Want],
        place: Callable[[FunctionCode, list[Want], FunctionPlan], None],
    ) -> FunctionPlan:
        plan = FunctionPlan(scope=self._scope(function, wants), vital=self._vital)
        todo = sorted(wants, key=lambda want: want.address)
        self._wanted = frozenset(want.address for want in todo)
        plan.refused = self._without_behind(function, todo)
        hopeless = {want for want, _ in plan.refused}
        todo = [want for want in todo if want not in hopeless] if hopeless else todo
        entries = [want for want in todo if want.kind is WantKind.ENTRY]
        if entries:
            homes = dict.fromkeys(member_at(plan.scope, want.address) for want in entries)
            asked = {want.address for want in entries if not want.internal}
            loops = [
                Want(at, WantKind.LOOP, tag=home.entry, internal=home.entry not in asked)
                for home in homes
                for at in home.back_to_entry
            ]
            todo = sorted([*todo, *loops], key=lambda want: want.address)
        claims = self.claims
        with claims.trial() as trial:
            try:
                self.claims = trial
                place(function, todo, plan)
                self._refuse_open_loops(plan, entries)
                self._drop_idle(plan)
            finally:
                self.claims = claims
        plan.note_hosts()
        return plan

    def _without_behind(self, function: FunctionCode, wants: Sequence[Want]) -> list[tuple[Want, Refusal]]:
        """Return the wants behind instructions behind which nothing can be done, whatever displaces them, and why."""
        refused: list[tuple[Want, Refusal]] = []
        asked = [want for want in wants if want.after]
        if not asked:
            return refused
        from anyprobe.splice.codegen.post_actions import no_behind

        for want in asked:
            part = self._part(function, want.address)
            insn = part.insn_at(want.address) if part is not None else None
            if insn is not None and (why := no_behind(insn)) is not None:
                refused.append((want, why))
        return refused

    def _scope(self, function: FunctionCode, wants: Sequence[Want]) -> tuple[FunctionCode, ...]:
        """Return the functions that are planned together because of some wants."""
        homes = {function: None}
        start, end = function.start, function.end
        for want in wants:
            if not start <= want.address < end and not any(home.start <= want.address < home.end for home in homes):
                home = self.code.containing(want.address)
                if home is not None:
                    homes[home] = None
        return tuple(dict.fromkeys(each for home in homes for each in all_of(self.code, home)))

    def _place_in_order(self, function: FunctionCode, todo: list[Want], plan: FunctionPlan) -> None:
        for want in self._place_lines(function, todo, plan):
            self._place(function, want, plan)
        self._splice_ways(function, todo, plan)
        self._serve_arrivals(function, plan)

    def _place_lines(self, function: FunctionCode, todo: list[Want], plan: FunctionPlan) -> list[Want]:
        """Place the straight lines of a function of which much is wanted; return what is left."""
        known = function.complete is None and not function.overlapped and not self.plain_jumps_only
        if len(todo) < LEAST_WANTS or not known or Strategy.JUMP not in self.allowed:
            return todo
        return Lines(self, function, plan).place(todo, whole=self._whole_lines)

    def _place_cramped_last(
        self, function: FunctionCode, todo: list[Want], plan: FunctionPlan, *, from_behind: bool
    ) -> None:
        """Place straight lines with room for a jump first, as a whole; puns, which lock bytes, come last of all."""
        cramped = self._place_roomy(function, todo, plan)
        cramped = self._from_behind(function, cramped) if from_behind else cramped
        self._puns = False
        for want in cramped:
            self._place(function, want, plan)
        self._puns = True
        self._splice_ways(function, todo, plan)
        self._serve_arrivals(function, plan)
        self._place_again(function, plan, frozenset(cramped))

    def _place_vital_first(self, function: FunctionCode, todo: list[Want], plan: FunctionPlan) -> None:
        """Place what must not be refused as if nothing else were wanted; then the rest, where there is room for it."""
        first = {want for want in todo if plan.is_vital(want)}
        wanted, vital = self._wanted, self._vital
        alone = self.plan(function, [want for want in todo if want in first])
        self._wanted, self._vital = wanted, vital
        plan.splices += alone.splices
        for splice in alone.splices:
            self.claims.claim(splice)
        plan.refused += alone.refused
        plan.verdicts += alone.verdicts
        plan.shared |= alone.shared
        entries = {want.address for want in first if want.kind is WantKind.ENTRY}
        rest = [want for want in todo if want not in first]
        for want in rest:
            if want.kind is not WantKind.LOOP or want.tag not in entries:  # the others came with the entries
                self._place(function, want, plan)
        self._splice_ways(function, rest, plan)
        self._serve_arrivals(function, plan)

    def _place_chained(self, function: FunctionCode, todo: list[Want], plan: FunctionPlan) -> None:
        """Place lines with room for a jump first, then from behind what has none: each pun on the bytes of the next."""
        cramped = self._from_behind(function, self._place_roomy(function, todo, plan))
        self._chained = True
        for want in cramped:
            self._place(function, want, plan)
        self._chained = False
        self._splice_ways(function, todo, plan)
        self._serve_arrivals(function, plan)
        self._place_again(function, plan, frozenset(cramped))

    def _place_roomy(self, function: FunctionCode, todo: list[Want], plan: FunctionPlan) -> list[Want]:
        """Place the lines with room for a jump, as a whole; return the wants in others."""
        cramped = [want for want in todo if self._is_cramped(function, want)]
        later = frozenset(cramped)
        self._whole_lines = True
        for want in self._place_lines(function, [want for want in todo if want not in later], plan):
            self._place(function, want, plan)
        self._whole_lines = False
        return cramped

    def _place_again(self, function: FunctionCode, plan: FunctionPlan, later: frozenset[Want]) -> None:
        """Try once more what was refused, now that everything else has its place."""
        again = [want for want, _ in plan.refused if want in later]
        plan.refused = [(want, why) for want, why in plan.refused if want not in later]
        for want in again:
            self._place(function, want, plan)

    def _from_behind(self, function: FunctionCode, wants: list[Want]) -> list[Want]:
        """Order wants by straight line, the last line first: what stands in front may lean on what is behind."""
        lines = {}
        for want in wants:
            part = self._part(function, want.address)
            run = part.run_of(want.address, want.address - FAR_ENOUGH) if part is not None else ()
            lines[want] = run[0].address if run else want.address
        return sorted(wants, key=lambda want: (-lines[want], want.address))

    def _part(self, function: FunctionCode, address: int) -> FunctionCode | None:
        return function if function.start <= address < function.end else self.code.containing(address)

    def _is_cramped(self, function: FunctionCode, want: Want) -> bool:
        """Return whether the straight line that an instruction lies in has no room for a jump."""
        part = self._part(function, want.address)
        run = part.run_of(want.address, want.address - FAR_ENOUGH) if part is not None else ()
        if part is None or not run or want.kind is WantKind.LOOP:
            return False
        run = self._moving_around(run, want.address)
        return run[-1].end + self.dead_bytes(part, run[-1]) - run[0].address < JUMP_BYTES

    def _moving_around(self, run: tuple[Insn, ...], address: int) -> tuple[Insn, ...]:
        """Return what may move together of a line with the instruction at an address."""
        if not self.faults_handled:
            return run
        first = last = next(i for i, insn in enumerate(run) if insn.address == address)
        while first > 0 and not self.faults_part(run[first - 1], run[first]):
            first -= 1
        while last + 1 < len(run) and not self.faults_part(run[last], run[last + 1]):
            last += 1
        return run[first : last + 1]

    def _serve_arrivals(self, function: FunctionCode, plan: FunctionPlan) -> None:
        """Count what has no room where control comes from."""
        if not any(want.kind is WantKind.OFFSET for want, _ in plan.refused):
            return
        from anyprobe.splice.plan.predecessors import Arrivals

        served = Arrivals(self, function, plan).splice([want for want, _ in plan.refused])
        plan.refused = [(want, why) for want, why in plan.refused if want not in served]

    def _splice_ways(self, function: FunctionCode, wants: list[Want], plan: FunctionPlan) -> None:
        """Splice the ways to exits that are too short to be spliced themselves."""
        if not any(want.kind is WantKind.EXIT for want, _ in plan.refused):
            return
        from anyprobe.splice.plan.exit_predecessors import ExitWays

        ways = ExitWays(self, function, wants, plan)
        plan.refused = [(want, why) for want, why in plan.refused if not ways.splice(want)]

    def _refuse_open_loops(self, plan: FunctionPlan, entries: list[Want]) -> None:
        """Refuse an entry where a branch back to it could not be spliced: it would count iterations."""
        lost = {want.address for want, _ in plan.refused if want.kind is WantKind.ENTRY}
        open_loops = {want.tag: want for want, _ in plan.refused if want.kind is WantKind.LOOP}
        if not open_loops and not lost:
            return
        plan.refused = [(want, why) for want, why in plan.refused if want.kind is not WantKind.LOOP]
        for want in entries:
            if want.address in open_loops and want.address not in lost:
                branch = open_loops[want.address].address
                detail = f"the branch at {branch:#x} loops back to the entry and cannot be spliced"
                plan.refused.append((want, Refusal(Reason.ENTRY_IS_LOOP_HEAD, want.address, detail)))
        refused = {id(want) for want, _ in plan.refused}
        lost.update(address for address in open_loops if isinstance(address, int))
        for splice in plan.splices:
            splice.wants = [
                want for want in splice.wants
                if id(want) not in refused and (want.kind is not WantKind.LOOP or want.tag not in lost)
            ]  # fmt: skip

    def _place(self, function: FunctionCode, want: Want, plan: FunctionPlan) -> None:
        part = self._part(function, want.address)
        if part is None:
            plan.refused.append((want, Refusal(Reason.NOT_CODE, want.address, "no function is known here")))
            return
        if want.address in plan.shared:
            detail = "runs in its place and as a copy in the patch of what stands above"
            plan.refused.append((want, Refusal(Reason.OVERLAP, want.address, detail)))
            return
        last = plan.last_before(want.address)
        if last is not None and last.covers(want.address) and self._may_join(last, want):
            last.wants.append(want)
            return
        found = self._find(part, want, last, plan)
        if isinstance(found, Refusal):
            plan.refused.append((want, found))
        elif found is last:
            last.wants.append(want)
            self.claims.displace(last)
        else:
            self.adopt(found, plan)

    def adopt(self, splice: PlannedSplice, plan: FunctionPlan) -> list[PlannedSplice]:
        """Add a splice to a plan, with what it leans on and is not there yet; return all that was added."""
        below = [added for each in splice.leans_on if each not in plan.splices for added in self.adopt(each, plan)]
        plan.splices.append(splice)
        self.claims.claim(splice)
        return [*below, splice]

    def _drop_idle(self, plan: FunctionPlan) -> None:
        """Take out what serves nothing: no want, and no splice that leans on it."""
        while any(not splice.wants for splice in plan.splices):
            needed = [each for splice in plan.splices for each in splice.leans_on]
            idle = [splice for splice in plan.splices if not splice.wants and splice not in needed]
            if not idle:
                return
            for splice in idle:
                plan.splices.remove(splice)
                self.claims.release(splice)

    @staticmethod
    def _may_join(splice: PlannedSplice, want: Want) -> bool:
        """Return whether the splice's patch can serve the want.

        A retargeted branch serves only its taken edge. What follows a trap's instruction stays in place, and a thread
        may be on its way there.
        """
        if splice.strategy is Strategy.TRAP:
            return splice.head == want.address and not want.internal
        if want.after and splice.insns[0].flow is Flow.JCC and splice.strategy is Strategy.RETARGET:
            return False
        return splice.strategy is not Strategy.RETARGET or splice.wants[0].kind is want.kind

    def _find(
        self, function: FunctionCode, want: Want, last: PlannedSplice | None, plan: FunctionPlan
    ) -> PlannedSplice | Refusal:
        """Walk the ladder: retarget, jump here or earlier, grow the last splice, pun, short jump.

        A pun that would borrow bytes of another function, whose entry could not be spliced any more, comes last.
        """
        insn = function.insn_at(want.address)
        if insn is None:
            return _nothing_at(function, want.address)
        refusal = self.forbidden((insn,))
        if refusal is not None:
            return refusal
        if want.kind is WantKind.LOOP and insn.target is None:
            return Refusal(Reason.ENTRY_IS_LOOP_HEAD, want.address, "a jump table leads back to the entry")
        first: Refusal | None = None
        for strategy, attempt in self._ladder(function, insn, want, last, plan):
            allowed = AUTO if want.internal else self.allowed
            if strategy not in allowed or (strategy is Strategy.PUNNED and not self._puns):
                continue
            outcome = attempt()
            plan.verdicts.append((want.address, strategy, outcome if isinstance(outcome, Refusal) else None))
            if not isinstance(outcome, Refusal):
                if outcome is not last:
                    outcome.wants.append(want)
                return outcome
            if first is None and outcome.reason is not Reason.NOT_A_BRANCH:
                first = outcome
        if insn.flow is Flow.RET and len(function.insns) == 1:
            return Refusal(Reason.LONE_RET, want.address, "the function is a lone ret with no room behind it")
        return first or Refusal(Reason.STRATEGY_NOT_ASKED, want.address, "no permitted strategy applies")

    def _ladder(
        self, function: FunctionCode, insn: Insn, want: Want, last: PlannedSplice | None, plan: FunctionPlan
    ) -> Iterator[tuple[Strategy, Callable[[], PlannedSplice | Refusal]]]:
        """Yield the attempts, best first."""
        near = want.address - (0 if want.kind is WantKind.ENTRY else FAR_ENOUGH)
        run = function.run_of(want.address, near if last is None else min(near, last.head))
        index = next(i for i, candidate in enumerate(run) if candidate.address == want.address)
        grows = last is not None and last.insns[0] in run and last.strategy not in (Strategy.RETARGET, Strategy.TRAP)
        if self._whole_lines and last is not None and grows:
            yield last.strategy, partial(self._grow, last, run, index)
        yield Strategy.RETARGET, partial(self.retarget, insn, want)
        yield Strategy.JUMP, partial(self.jump, function, run, index, index)
        # nothing in front of where the last patch comes back to may be overwritten
        floor = near if last is None else max(last.write_at + last.written, last.end, near)
        earlier = [i for i in range(index - 1, -1, -1) if run[i].address >= floor]
        for i in earlier:
            yield Strategy.JUMP, partial(self.jump, function, run, i, index)
        if last is not None and last.insns[0] in run:
            if last.strategy is Strategy.RETARGET:
                yield Strategy.JUMP, partial(self._absorb, function, run, last, index, plan)
            elif grows:
                yield last.strategy, partial(self._grow, last, run, index)
        for i in reversed([index, *earlier]) if self._chained else ():
            yield Strategy.PUNNED, partial(self.over_known, function, run, i, index, plan)
        for i in [index, *earlier]:
            yield Strategy.PUNNED, partial(self.punned, run, i, index, limit=function.end)
        for i in [index, *earlier]:
            yield Strategy.SHORT, partial(self.short, run, i, index)
        for i in [index, *earlier]:
            yield Strategy.SHORT, partial(self.nested, run, i, index, plan)
        for i in [index, *earlier]:
            yield Strategy.SHORT, partial(self.evicting, function, run, i, index, plan)
        yield Strategy.SHORT, partial(self.wedged, function, run, index, index, plan)
        for over in ((self.over_successor,), (self.over_known, self.over_pun), (self.over_row,)):
            ends = self.plain_jumps_only and want.kind is not WantKind.OFFSET
            few = ends or self._chained or len(self._wanted) <= _FEW or over[0] != self.over_row
            for i in [index, *earlier] if few else ():
                yield from ((Strategy.PUNNED, partial(one, function, run, i, index, plan)) for one in over)
        # the ways to an exit are tried before it takes bytes of the next function
        for i in [index, *earlier] if want.kind is not WantKind.EXIT or want.conditional else ():
            yield Strategy.PUNNED, partial(self.punned, run, i, index)
        yield Strategy.TRAP, partial(self.trap, insn, run[index + 1 : index + 2])

    def detour(
        self, function: FunctionCode, address: int, floor: int, plan: FunctionPlan, *, borrows: bool = False
    ) -> PlannedSplice | Refusal:
        """Return a splice of its own, from ``floor`` on, that displaces one instruction.

        ``borrows``: only a pun that borrows bytes of the next function, which could not be spliced there any more.
        """
        run = function.run_of(address, max(floor, address - FAR_ENOUGH))
        index = next((i for i, candidate in enumerate(run) if candidate.address == address), None)
        if index is None:
            return Refusal(Reason.NOT_A_BOUNDARY, address, "not an instruction boundary")
        heads = [i for i in range(index, -1, -1) if i == index or run[i].address >= floor]
        attempts = [(Strategy.JUMP, partial(self.jump, function, run, i, index)) for i in heads]
        attempts += [(Strategy.PUNNED, partial(self.punned, run, i, index, limit=function.end)) for i in heads]
        attempts += [(Strategy.SHORT, partial(self.short, run, i, index)) for i in heads]
        attempts += [(Strategy.SHORT, partial(self.nested, run, i, index, plan)) for i in heads]
        attempts += [(Strategy.SHORT, partial(self.evicting, function, run, i, index, plan)) for i in heads]
        attempts += [(Strategy.SHORT, partial(self.wedged, function, run, index, index, plan))]
        for over in (self.over_successor, self.over_known, self.over_pun):
            attempts += [(Strategy.PUNNED, partial(over, function, run, i, index, plan)) for i in heads]
        if borrows:
            attempts = [(Strategy.PUNNED, partial(self.punned, run, i, index)) for i in heads]
        outcomes = (attempt() for strategy, attempt in attempts if strategy in self.allowed)
        found = next((outcome for outcome in outcomes if not isinstance(outcome, Refusal)), None)
        return found or Refusal(Reason.TOO_SHORT, address, "no jump has room here")

    def _grow(self, last: PlannedSplice, run: tuple[Insn, ...], index: int) -> PlannedSplice | Refusal:
        """Let the patch of the splice before carry on up to ``run[index]``: nothing can enter between."""
        start = run.index(last.insns[0])
        insns = run[start : index + 1]
        refusal = self.forbidden(insns)
        if refusal is not None:
            return refusal
        last.insns = insns
        return last

    def _absorb(
        self, function: FunctionCode, run: tuple[Insn, ...], last: PlannedSplice, index: int, plan: FunctionPlan
    ) -> PlannedSplice | Refusal:
        """Replace the retargeted branch before by a jump in its place whose patch carries on up to ``run[index]``."""
        self.claims.release(last)
        found = self.jump(function, run, run.index(last.insns[0]), index)
        if isinstance(found, Refusal):
            self.claims.claim(last)
            return found
        found.wants = last.wants
        plan.splices.remove(last)
        return found


def _nothing_at(function: FunctionCode, address: int) -> Refusal:
    """Return why an address is not where an instruction can be spliced."""
    if address in function.overlapped:
        return Refusal(Reason.JUMP_TARGET_IN_JTPR, address, "a jump enters the instruction behind its lock prefix")
    if function.is_boundary(address):
        return Refusal(Reason.NOT_CODE, address, "nothing that is known leads here; it may be data")
    return Refusal(Reason.NOT_A_BOUNDARY, address, "not an instruction boundary")
