"""Exits that are too short to splice: all ways that lead to them are spliced instead.

``pop rbx; ret`` between two other blocks has no room for a jump. Where such an exit block is entered only by direct
branches and from above, each branch goes to a copy of the block with the exit's action in it, and the patch of what
stands above carries on into another copy. The block itself stays as it is; nobody but a thread that was in it already,
and so has left the function as good as before, runs it any more.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.binary.exits import ways_to
from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.planned import FunctionPlan, PlannedSplice, Strategy, Want, WantKind

if TYPE_CHECKING:
    from anyprobe.binary.function import FunctionCode
    from anyprobe.splice.plan import Planner

_LONGEST_BLOCK = 8
_IN_PLACE = (Strategy.RETARGET, Strategy.TRAP)
"""The patch of these does not carry on with what follows."""


class ExitWays:
    """Splices the ways to the refused exits of one function, after everything else of it has been placed."""

    def __init__(self, planner: "Planner", function: "FunctionCode", wants: Sequence[Want], plan: FunctionPlan) -> None:
        """Remember the plan; its splices are added to."""
        self._planner, self._plan = planner, plan
        self._parts = function.parts
        self._wanted = frozenset(want.address for want in wants)
        self._undo: list[Callable[[], None]] = []
        self._served: dict[int, Want] = {}
        """Exits that were spliced here, with the first want of each."""

    def splice(self, want: Want) -> bool:
        """Splice all ways to a refused exit, or none: return which."""
        if want.kind is not WantKind.EXIT or want.conditional:
            return False
        if want.address in self._served:
            self._serve_too(want, self._served[want.address])
            return True
        if self._join(want):
            return True
        self._undo = []
        if self._splice_all(want):
            self._served[want.address] = want
            return True
        for step in reversed(self._undo):
            step()
        return self._borrow(want)

    def _borrow(self, want: Want) -> bool:
        """Splice the exit itself by a pun at the cost of the next function: the last resort."""
        part = self._planner.code.containing(want.address)
        insn = part.insn_at(want.address) if part is not None else None
        found = self._detour(insn, borrows=True) if insn is not None else None
        if found is not None:
            self._add(found, want)
        return found is not None

    def _serve_too(self, want: Want, first: Want) -> None:
        """Let all that serves another want of the same exit serve this one."""
        for splice in self._plan.splices:
            for each in list(splice.wants):
                if each is first:
                    splice.wants.append(want)
                elif each.origin is first:
                    splice.wants.append(replace(each, tag=want.tag, origin=want))

    def _join(self, want: Want) -> bool:
        """Let a splice that displaces the exit by now, and that all come through, serve it."""
        over = self._over(want.address)
        if over is None or over.strategy in _IN_PLACE:
            return False
        over.wants.append(want)
        return True

    def _splice_all(self, want: Want) -> bool:
        if self._planner.plain_jumps_only:
            return False
        part = next((part for part in self._parts if part.start <= want.address < part.end), None)
        block = self._block(part, want) if part is not None else ()
        if part is None or not block:
            return False
        ways = ways_to(self._planner.code, self._parts, block[0].address)
        number = part.index_of(block[0].address)
        if ways is None or not number:
            return False
        for insn in ways:
            through = replace(want, address=insn.address, conditional=insn.flow is Flow.JCC, block=block, origin=want)
            if not self._splice_branch(insn, through):
                return False
        above = part.insn(number - 1)
        return not above.falls_through or self._splice_above(part, above, block, want)

    def _block(self, part: "FunctionCode", want: Want) -> tuple[Insn, ...]:
        """Return the straight line that ends in the exit; empty where it cannot be copied."""
        run = part.run_of(want.address)
        block = tuple(insn for insn in run if insn.address <= want.address)
        plain = all(insn.flow is Flow.NEXT and insn.address not in self._wanted for insn in block[:-1])
        if not plain or len(block) > _LONGEST_BLOCK or self._planner.forbidden(block) is not None:
            return ()
        return block

    # -- one way

    def _splice_branch(self, branch: Insn, through: Want) -> bool:
        if branch.flow is Flow.JCC and not (branch.raw[0] >> 4 == 7 or branch.raw[0] == 0x0F):
            return False  # loop and jrcxz, or prefixes
        over = self._over(branch.address)
        if over is not None:
            same = over.wants[0].block and over.wants[0].block[-1].address == through.block[-1].address
            if over.strategy in _IN_PLACE and not same:
                return False
            self._serve(over, through)
            return True
        found: PlannedSplice | Refusal | None = None
        if Strategy.RETARGET in self._planner.allowed:
            found = self._planner.retarget(branch, through)
        if not isinstance(found, PlannedSplice):
            found = self._detour(branch)
        if found is None:
            return False
        self._add(found, through)
        return True

    def _splice_above(self, part: "FunctionCode", above: Insn, block: tuple[Insn, ...], want: Want) -> bool:
        """Let the patch of the instruction above the block carry on into the block."""
        if above.is_call or part.insn_at(above.address) is None:
            return False
        over = self._over(above.address)
        if over is None:
            over = self._detour(above)
            if over is None or over.insns[-1].address != above.address:
                return False
            self._add(over, want)
        elif over.strategy in _IN_PLACE or over.insns[-1].address != above.address:
            return False
        else:
            self._serve(over, want)
        self._carry_on(over, block)
        return True

    def _carry_on(self, splice: PlannedSplice, block: tuple[Insn, ...]) -> None:
        """Let a patch go on with an exit block that lies right behind what it displaces."""
        claims, before = self._planner.claims, splice.insns
        splice.insns = before + block
        claims.displace(splice)

        def shrink() -> None:
            claims.displaced.difference_update(range(block[0].address, block[-1].end))
            splice.insns = before

        self._undo.append(shrink)

    # -- splices

    def _over(self, address: int) -> PlannedSplice | None:
        """Return the splice that displaces an instruction."""
        return next((splice for splice in self._plan.splices if splice.covers(address)), None)

    def _detour(self, insn: Insn, *, borrows: bool = False) -> PlannedSplice | None:
        """Return a new splice that displaces an instruction and none of another splice."""
        part = self._planner.code.containing(insn.address)
        lower = [each for each in self._plan.splices if each.head < insn.address]
        floor = max((max(each.write_at + each.written, each.end) for each in lower), default=0)
        found = self._planner.detour(part, insn.address, floor, borrows=borrows) if part is not None else None
        if not isinstance(found, PlannedSplice):
            return None
        low, high = found.head, max(found.end, found.write_at + found.written)
        apart = all(high <= each.head or each.end <= low for each in self._plan.splices)
        return found if apart else None

    def _serve(self, splice: PlannedSplice, want: Want) -> None:
        splice.wants.append(want)
        self._undo.append(lambda: splice.wants.remove(want))

    def _add(self, splice: PlannedSplice, want: Want) -> None:
        splice.wants.append(want)
        self._plan.splices.append(splice)
        self._planner.claims.claim(splice)

        def forget() -> None:
            self._plan.splices.remove(splice)
            self._planner.claims.release(splice)

        self._undo.append(forget)
