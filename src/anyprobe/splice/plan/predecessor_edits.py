"""Splices that are added to a finished plan for what has no room of its own, and taken out again where that fails."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.splices import IN_PLACE, Strategy, Want
from anyprobe.splice.plan.strategies.ladder import detour
from anyprobe.splice.plan.strategies.retarget import retarget

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.splice.plan.context import PlanContext


class PredecessorEdits:
    """Adds to the plan of one function; each step can be undone."""

    def __init__(self, context: "PlanContext", function: "FunctionCode") -> None:
        """Add splices to the plan that is being made."""
        self._context, self._plan = context, context.plan
        self._parts = tuple(part for member in context.plan.scope or (function,) for part in member.parts)
        self._undo: list[Callable[[], None]] = []
        self._displacing: dict[int, list[SpliceDraft]] = {}
        """By the address of an instruction: splices that displace it, or did; what they displace changes only here."""
        self._longest = 0
        """No splice reaches further from its head."""
        for splice in context.plan.splices:
            self._note(splice)

    def undo(self) -> None:
        """Take back every step since the list of them was last emptied."""
        for step in reversed(self._undo):
            step()
        self._undo = []

    def over(self, address: int) -> SpliceDraft | None:
        """Return the splice that displaces an instruction, of several the one that was planned first."""
        found = [splice for splice in self._displacing.get(address, ()) if splice.covers(address)]
        if len(found) > 1:
            return next(splice for splice in self._plan.splices if splice in found)
        return found[0] if found else None

    def _note(self, splice: SpliceDraft) -> None:
        self._longest = max(self._longest, _reach(splice) - splice.head)
        for insn in splice.insns:
            known = self._displacing.setdefault(insn.address, [])
            if splice not in known:
                known.append(splice)

    def detour(self, insn: Insn, *, borrows: bool = False) -> SpliceDraft | None:
        """Return a new splice that displaces an instruction and none of another splice."""
        part = self._context.code.containing(insn.address)
        if part is None:
            return None
        found = detour(self._context, part, insn.address, self._floor(insn.address), borrows=borrows)
        if not isinstance(found, SpliceDraft):
            return None
        low, high = found.head, max(found.end, found.write_at + found.written)
        near = self._plan.headed_in(low - self._longest, high)
        return found if all(high <= each.head or each.end <= low for each in near) else None

    def _floor(self, address: int) -> int:
        """Return where all splices end that begin below an address."""
        floor = 0
        for each in self._plan.headed_below(address):
            if each.head + self._longest <= floor:
                break  # nor do those below it reach further
            floor = max(floor, _reach(each))
        return floor

    def redirect(self, branch: Insn, through: Want) -> SpliceDraft | None:
        """Return a new splice of a branch that nothing displaces yet: its displacement changed, or a detour."""
        if Strategy.RETARGET in self._context.allowed:
            found = retarget(self._context, branch, through)
            if isinstance(found, SpliceDraft):
                return found
        return self.detour(branch)

    @staticmethod
    def is_resumed(above: Insn, ways: Sequence[Insn]) -> bool:
        """Return whether only a signal handler can lead to what no branch does: after ``ud2`` or ``hlt``."""
        return above.flow is Flow.TRAP and not above.falls_through and not ways

    def from_above(self, part: "FunctionCode", above: Insn, line: tuple[Insn, ...], wants: Sequence[Want]) -> bool:
        """Let the patch of the instruction right above a line serve the wants and carry on into the line."""
        if above.is_call or part.insn_at(above.address) is None:
            return False
        known, rest = self.over(above.address), list(wants)
        over = known or self.detour(above)
        if over is None or over.insns[-1].address != above.address or over.strategy in IN_PLACE:
            return False
        if self._context.forbidden((*over.insns, *line)) is not None:
            return False
        if known is None:
            self.add(over, rest.pop(0))
        for want in rest:
            self.serve(over, want)
        if any(self.over(insn.address) is not None for insn in line):
            return False  # what the new splice leans on: the patch would come back into its middle
        self.carry_on(over, line)
        return True

    def serve(self, splice: SpliceDraft, want: Want) -> None:
        """Let a splice serve a want."""
        splice.wants.append(want)
        self._undo.append(lambda: splice.wants.remove(want))

    def add(self, splice: SpliceDraft, want: Want) -> None:
        """Add a new splice for a want."""
        splice.wants.append(want)
        added = self._context.adopt(splice)
        for each in added:
            self._note(each)

        def forget() -> None:
            for each in reversed(added):
                for insn in each.insns:
                    self._displacing[insn.address].remove(each)
                self._plan.splices.remove(each)
                self._context.claims.release(each)

        self._undo.append(forget)

    def carry_on(self, splice: SpliceDraft, line: tuple[Insn, ...]) -> None:
        """Let a patch go on with instructions right after what it displaces, which others run in their place."""
        claims, before, shared = self._context.claims, splice.insns, {insn.address for insn in line}
        splice.insns = before + line
        self._note(splice)
        claims.displace(splice)
        self._plan.shared |= shared

        def shrink() -> None:
            claims.displaced.discard_range(line[0].address, line[-1].end)
            splice.insns = before
            self._plan.shared -= shared

        self._undo.append(shrink)


def _reach(splice: SpliceDraft) -> int:
    """Return the end of what a splice displaces or writes."""
    return max(splice.write_at + splice.written, splice.end)
