"""Planning: pure. Wanted sites of one function in, splices and refusals out; nothing of the target is touched.

All addresses are link-time addresses of the module. Each verdict about a strategy is kept for ``explain``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from anyprobe.binary.cfg import CodeMap, FunctionCode
from anyprobe.binary.function import FAR_ENOUGH
from anyprobe.core.address import page_floor
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.claims import Claims
from anyprobe.splice.planned import (
    AUTO,
    JUMP_BYTES,
    SHORT_BYTES,
    TRAP,
    FunctionPlan,
    PlannedSplice,
    Pun,
    Strategy,
    Want,
    WantKind,
)

_SHORT_REACH = 127


@dataclass
class Planner:
    """Plans the functions of one module.

    ``reachable(pun)`` says whether some page that a punned jump can reach may be mapped. ``allowed`` are the
    strategies that the user permits.
    """

    code: CodeMap
    claims: Claims
    reachable: Callable[[Pun], bool]
    allowed: frozenset[Strategy] = AUTO
    plain_jumps_only: bool = False
    """No several-instruction jumps (Go: goroutines parked anywhere keep their pc off the stacks)."""
    _wanted: frozenset[int] = frozenset()

    def plan(self, function: FunctionCode, wants: Sequence[Want]) -> FunctionPlan:
        """Return splices for the wants of one function (and its parts elsewhere), and claim their bytes."""
        plan = FunctionPlan()
        todo = sorted(wants, key=lambda want: want.address)
        self._wanted = frozenset(want.address for want in todo)
        entries = [want for want in todo if want.kind is WantKind.ENTRY]
        if entries:
            loops = [Want(address, WantKind.LOOP) for address in function.back_to_entry]
            todo = sorted([*todo, *loops], key=lambda want: want.address)
        for want in todo:
            part = function if function.start <= want.address < function.end else self.code.containing(want.address)
            if part is None:
                plan.refused.append((want, Refusal(Reason.NOT_CODE, want.address, "no function is known here")))
            else:
                self._place(part, want, plan)
        self._splice_ways(function, todo, plan)
        self._refuse_open_loops(plan, entries)
        return plan

    def _splice_ways(self, function: FunctionCode, wants: list[Want], plan: FunctionPlan) -> None:
        """Splice the ways to exits that are too short to be spliced themselves."""
        if not any(want.kind is WantKind.EXIT for want, _ in plan.refused):
            return
        from anyprobe.splice.exitways import ExitWays

        ways = ExitWays(self, function, wants, plan)
        plan.refused = [(want, why) for want, why in plan.refused if not ways.splice(want)]

    def _refuse_open_loops(self, plan: FunctionPlan, entries: list[Want]) -> None:
        """Refuse the entry where a branch back to it could not be spliced: it would count iterations."""
        open_loops = [(want, why) for want, why in plan.refused if want.kind is WantKind.LOOP]
        entry_refused = any(want.kind is WantKind.ENTRY for want, _ in plan.refused)
        if not open_loops and not entry_refused:
            return
        plan.refused = [(want, why) for want, why in plan.refused if want.kind is not WantKind.LOOP]
        if open_loops and not entry_refused:
            address = open_loops[0][0].address
            for want in entries:
                detail = f"the branch at {address:#x} loops back to the entry and cannot be spliced"
                plan.refused.append((want, Refusal(Reason.ENTRY_IS_LOOP_HEAD, want.address, detail)))
        refused = {id(want) for want, _ in plan.refused}
        for splice in list(plan.splices):
            splice.wants = [w for w in splice.wants if w.kind is not WantKind.LOOP and id(w) not in refused]
            if not splice.wants:
                plan.splices.remove(splice)
                self.claims.release(splice)

    def _place(self, function: FunctionCode, want: Want, plan: FunctionPlan) -> None:
        last = plan.splices[-1] if plan.splices else None
        if last is not None and last.covers(want.address) and self._may_join(last, want):
            last.wants.append(want)
            return
        found = self._find(function, want, last, plan)
        if isinstance(found, Refusal):
            plan.refused.append((want, found))
        elif found is last:
            last.wants.append(want)
            self.claims.displace(last)
        else:
            plan.splices.append(found)
            self.claims.claim(found)

    @staticmethod
    def _may_join(splice: PlannedSplice, want: Want) -> bool:
        """Return whether the splice's patch can serve the want.

        A retargeted branch serves only its taken edge. What follows a trap's instruction stays in place, and a thread
        may be on its way there.
        """
        if splice.strategy is Strategy.TRAP:
            return splice.head == want.address
        return splice.strategy is not Strategy.RETARGET or splice.wants[0].kind is want.kind

    def _find(
        self, function: FunctionCode, want: Want, last: PlannedSplice | None, plan: FunctionPlan
    ) -> PlannedSplice | Refusal:
        """Walk the ladder: retarget, jump here or earlier, grow the last splice, pun, short jump.

        A pun that would borrow bytes of another function, whose entry could not be spliced any more, comes last.
        """
        insn = function.insn_at(want.address)
        if insn is None:
            return Refusal(Reason.NOT_A_BOUNDARY, want.address, "not an instruction boundary")
        if want.kind is WantKind.LOOP and insn.target is None:
            return Refusal(Reason.ENTRY_IS_LOOP_HEAD, want.address, "a jump table leads back to the entry")
        first: Refusal | None = None
        for strategy, attempt in self._ladder(function, insn, want, last, plan):
            if strategy not in self.allowed:
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
        yield Strategy.RETARGET, partial(self.retarget, insn, want)
        near = want.address - (0 if want.kind is WantKind.ENTRY else FAR_ENOUGH)
        run = function.run_of(want.address, near if last is None else min(near, last.head))
        index = next(i for i, candidate in enumerate(run) if candidate.address == want.address)
        yield Strategy.JUMP, partial(self._jump, function, run, index, index)
        # nothing in front of where the last patch comes back to may be overwritten
        floor = near if last is None else max(last.write_at + last.written, last.end, near)
        earlier = [i for i in range(index - 1, -1, -1) if run[i].address >= floor]
        for i in earlier:
            yield Strategy.JUMP, partial(self._jump, function, run, i, index)
        if last is not None and last.insns[0] in run:
            if last.strategy is Strategy.RETARGET:
                yield Strategy.JUMP, partial(self._absorb, function, run, last, index, plan)
            elif last.strategy is not Strategy.TRAP:
                yield last.strategy, partial(self._grow, last, run, index)
        for i in [index, *earlier]:
            yield Strategy.PUNNED, partial(self._punned, run, i, index, limit=function.end)
        for i in [index, *earlier]:
            yield Strategy.SHORT, partial(self._short, run, i, index)
        # the ways to an exit are tried before it takes bytes of the next function
        for i in [index, *earlier] if want.kind is not WantKind.EXIT or want.conditional else ():
            yield Strategy.PUNNED, partial(self._punned, run, i, index)
        yield Strategy.TRAP, partial(self._trap, insn, run[index + 1 : index + 2])

    def detour(
        self, function: FunctionCode, address: int, floor: int, *, borrows: bool = False
    ) -> PlannedSplice | Refusal:
        """Return a splice of its own, from ``floor`` on, that displaces one instruction.

        ``borrows``: only a pun that borrows bytes of the next function, which could not be spliced there any more.
        """
        run = function.run_of(address, max(floor, address - FAR_ENOUGH))
        index = next((i for i, candidate in enumerate(run) if candidate.address == address), None)
        if index is None:
            return Refusal(Reason.NOT_A_BOUNDARY, address, "not an instruction boundary")
        heads = [i for i in range(index, -1, -1) if i == index or run[i].address >= floor]
        attempts = [(Strategy.JUMP, partial(self._jump, function, run, i, index)) for i in heads]
        attempts += [(Strategy.PUNNED, partial(self._punned, run, i, index, limit=function.end)) for i in heads]
        attempts += [(Strategy.SHORT, partial(self._short, run, i, index)) for i in heads]
        if borrows:
            attempts = [(Strategy.PUNNED, partial(self._punned, run, i, index)) for i in heads]
        outcomes = (attempt() for strategy, attempt in attempts if strategy in self.allowed)
        found = next((outcome for outcome in outcomes if not isinstance(outcome, Refusal)), None)
        return found or Refusal(Reason.TOO_SHORT, address, "no jump has room here")

    def retarget(self, insn: Insn, want: Want) -> PlannedSplice | Refusal:
        """Return a splice that changes the destination of the wanted branch."""
        direct = insn.flow in (Flow.JUMP, Flow.JCC, Flow.CALL) and insn.target is not None
        wide = (insn.length >= JUMP_BYTES and insn.raw[-5] in (0xE8, 0xE9)) or (
            insn.length >= 6 and insn.raw[-6] == 0x0F
        )
        if insn.flow is Flow.CALL and want.kind is WantKind.ENTRY:
            return Refusal(Reason.NOT_A_BRANCH, insn.address, "the entry's handlers must run before the call")
        taken_edge_only = insn.flow is Flow.JCC and not (want.conditional or want.kind is WantKind.LOOP)
        if not direct or not wide or taken_edge_only:
            return Refusal(Reason.NOT_A_BRANCH, insn.address, "not a direct branch with a 32-bit displacement")
        return self._checked(PlannedSplice(Strategy.RETARGET, insn.address, (insn,), [], 4, insn.end - 4))

    def _jump(self, function: FunctionCode, run: tuple[Insn, ...], start: int, index: int) -> PlannedSplice | Refusal:
        """Jump at ``run[start]`` that displaces at least up to ``run[index]``."""
        head = run[start]
        if start == index and head.length >= JUMP_BYTES:
            return self._checked(PlannedSplice(Strategy.JUMP, head.address, (head,), [], JUMP_BYTES, head.address))
        if self.plain_jumps_only:
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, head.address, "Go code allows no several-instruction jump")
        stop = index
        while stop + 1 < len(run) and run[stop].end - head.address < JUMP_BYTES:
            stop += 1
        insns = run[start : stop + 1]
        if insns[-1].end - head.address < JUMP_BYTES:
            dead = self._dead_bytes(function, insns[-1])
            if insns[-1].end + dead - head.address < JUMP_BYTES:
                return self._why_short(function, insns[-1].end, head)
        return self._checked(PlannedSplice(Strategy.JUMP, head.address, insns, [], JUMP_BYTES, head.address))

    def _why_short(self, function: FunctionCode, end: int, head: Insn) -> Refusal:
        if function.complete is not None:
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, head.address, function.complete.detail)
        entering = self.code.enterable(end, head.address + JUMP_BYTES)
        if entering:
            address, why = entering[0]
            return Refusal(Reason.JUMP_TARGET_IN_JTPR, address, why)
        return Refusal(Reason.TOO_SHORT, head.address, f"only {end - head.address} bytes before other code")

    def _dead_bytes(self, function: FunctionCode, last: Insn) -> int:
        """Return how many bytes behind ``last`` can never run."""
        return 0 if last.falls_through else function.dead_bytes_behind(last.end)

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
        found = self._jump(function, run, run.index(last.insns[0]), index)
        if isinstance(found, Refusal):
            self.claims.claim(last)
            return found
        found.wants = last.wants
        plan.splices.remove(last)
        return found

    def _short(self, run: tuple[Insn, ...], start: int, index: int) -> PlannedSplice | Refusal:
        """Two bytes that jump to dead bytes nearby, which hold a jump on to the patch."""
        head = run[start]
        stop = index
        while stop + 1 < len(run) and run[stop].end - head.address < SHORT_BYTES:
            stop += 1
        insns = run[start : stop + 1]
        if insns[-1].end - head.address < SHORT_BYTES or (self.plain_jumps_only and head.length < SHORT_BYTES):
            return Refusal(Reason.TOO_SHORT, head.address, "one byte, and the next one may be entered")
        dead = self._dead_nearby(head.address)
        if dead is None:
            return Refusal(Reason.NO_ROOM_NEARBY, head.address, "no five dead bytes within reach of a short jump")
        splice = PlannedSplice(
            Strategy.SHORT, head.address, insns, [], SHORT_BYTES, head.address, dead_springboard=dead
        )
        return self._checked(splice)

    def _dead_nearby(self, address: int) -> int | None:
        """Return the nearest address of five bytes that never run, are nobody's, and lie within reach."""
        low, high = address + SHORT_BYTES - _SHORT_REACH - 1, address + SHORT_BYTES + _SHORT_REACH
        best: int | None = None
        for start in self.code.starts_between(low - _SHORT_REACH, high):
            function = self.code.function_at(start)
            if isinstance(function, Refusal):
                continue
            # from the far end: a jump at the function's last instruction may want the bytes right behind it
            for place in range(function.end + function.padding_after - JUMP_BYTES, function.end - 1, -1):
                # on one page with the head: pages are written one after the other
                near = low <= place < high and page_floor(place) == page_floor(place + JUMP_BYTES - 1) == page_floor(
                    address
                )
                if near and self.claims.conflict(place, JUMP_BYTES, 0) is None:
                    if best is None or abs(place - address) < abs(best - address):
                        best = place
                    break
        return best

    def _punned(
        self, run: tuple[Insn, ...], start: int, index: int, limit: int | None = None
    ) -> PlannedSplice | Refusal:
        head = run[start]
        insns = run[start : index + 1]
        length = min(head.length, JUMP_BYTES)
        refusal = Refusal(Reason.PUN_OUT_OF_REACH, head.address, "no page that the punned jump reaches can be mapped")
        for prefixes in range(length):
            pun = self._pun(head, prefixes)
            if isinstance(pun, Refusal):
                return pun
            written = prefixes + 1 + pun.free
            if limit is not None and head.address + prefixes + JUMP_BYTES > limit:
                refusal = Refusal(
                    Reason.BORROWED_BYTES, head.address, "the pun would borrow bytes of the next function"
                )
                continue
            if not self.reachable(pun):
                continue
            splice = PlannedSplice(
                Strategy.PUNNED, head.address, insns, [], written, head.address, prefixes + JUMP_BYTES - written, pun
            )
            checked = self._checked(splice)
            if not isinstance(checked, Refusal):
                return checked
            refusal = checked
        return refusal

    def _pun(self, head: Insn, prefixes: int) -> Pun | Refusal:
        free = min(head.length - 1 - prefixes, 4)
        fixed_at = head.address + prefixes + 1 + free
        try:
            fixed = self.code.text.memory.read(fixed_at, 4 - free)
        except LookupError:
            return Refusal(Reason.TOO_SHORT, head.address, "the module's text ends here")
        displacement = int.from_bytes(bytes(free) + fixed, "little", signed=True)
        return Pun(prefixes, free, head.address + prefixes + JUMP_BYTES + displacement)

    def _trap(self, insn: Insn, follower: tuple[Insn, ...]) -> PlannedSplice | Refusal:
        """One byte that traps: nothing else changes, whoever stands or comes where.

        If the instruction has no other byte, its patch takes the next one along where it can, so that a thread with
        its pc behind the trap has met it.
        """
        if self.plain_jumps_only:
            detail = "Go's runtime runs code with all signals blocked and takes SIGTRAP for itself"
            return Refusal(Reason.TRAP_UNSAFE, insn.address, detail)
        if insn.raw[:1] == TRAP:
            return Refusal(Reason.TRAP_UNSAFE, insn.address, "this is an int3 of the program's own")
        splice = PlannedSplice(Strategy.TRAP, insn.address, (insn,), [], len(TRAP), insn.address)
        if insn.length > len(TRAP):
            return self._checked(splice)
        if insn.falls_through and any(each.flow is Flow.NEXT and each.address not in self._wanted for each in follower):
            length = follower[0].length
            both = PlannedSplice(Strategy.TRAP, insn.address, (insn, *follower), [], len(TRAP), insn.address, length)
            if not isinstance(self._checked(both), Refusal):
                return both
        splice.ambiguous = insn.falls_through or bool(self.code.enterable(insn.end, insn.end + 1))
        return self._checked(splice)

    def _checked(self, splice: PlannedSplice) -> PlannedSplice | Refusal:
        """Return the splice if its bytes may be written and its instructions displaced."""
        start, end = splice.write_at, splice.write_at + splice.written
        if page_floor(start) != page_floor(end - 1):
            return Refusal(Reason.PAGE_BOUNDARY, start, "the bytes to write cross a page boundary")
        taken = self.claims.conflict(start, splice.written, splice.borrowed) or self.claims.overwritten(splice)
        return self.forbidden(splice.insns) or taken or splice

    def forbidden(self, insns: tuple[Insn, ...]) -> Refusal | None:
        """Return why some instructions must stay where they are."""
        low, high = insns[0].address, insns[-1].end
        for area, reason in self.code.text.forbidden:
            if area.start < high and low < area.end:
                return Refusal(Reason(reason), low, "this code must never be displaced")
        return None
