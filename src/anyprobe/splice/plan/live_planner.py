"""Planning for changes that are made while the program runs: splices of one instruction, best of one byte."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Insn
from anyprobe.splice.plan.planner import Planner
from anyprobe.splice.plan.splices import FunctionPlan, PlannedSplice, Strategy, Want
from anyprobe.splice.plan.strategies.springboard import Springboards


@dataclass
class LivePlanner(Planner):
    """Plans splices that displace one instruction each, so that no thread can stand inside what moves.

    First comes the jump that is made of one new byte and four that are there already: a single store makes it. There
    is one place only for its springboard: that of an earlier splice of the same instruction, now ``retired``, serves
    again.
    """

    bias: int = 0
    retired: Mapping[int, int] = field(default_factory=dict)
    """The springboards that are in use no more, with the sites that led there; run-time addresses."""

    def plan(
        self,
        function: FunctionCode,
        wants: Sequence[Want],
        vital: AbstractSet[Want] = frozenset(),  # noqa: ARG002 - each has a place of its own or none
    ) -> FunctionPlan:
        """Return splices for the wants of one function, each displacing one instruction."""
        return self._attempt(function, wants, self._place_each)

    def _place_each(self, function: FunctionCode, todo: list[Want], plan: FunctionPlan) -> None:
        """Place each want at its instruction or nowhere: in a stop there are better ways."""
        for want in todo:
            self._place(function, want, plan)

    def _ladder(
        self,
        function: FunctionCode,
        insn: Insn,
        want: Want,
        last: PlannedSplice | None,  # noqa: ARG002
        plan: FunctionPlan,  # noqa: ARG002
    ) -> Iterator[tuple[Strategy, Callable[[], PlannedSplice | Refusal]]]:
        run = function.run_of(want.address, want.address)
        index = run.index(insn)
        limit = function.end + function.padding_after
        yield Strategy.PUNNED, partial(self.one_byte, insn, limit)
        yield Strategy.JUMP, partial(self.in_place, insn)
        yield Strategy.PUNNED, partial(self.punned, run, index, index, limit=limit)

    def in_place(self, insn: Insn) -> PlannedSplice | Refusal:
        """Put a jump over one instruction that is long enough for it."""
        if insn.length < JUMP_BYTES:
            return Refusal(Reason.TOO_SHORT, insn.address, "the instruction is shorter than a jump")
        return self._checked(PlannedSplice(Strategy.JUMP, insn.address, (insn,), [], JUMP_BYTES, insn.address))

    def one_byte(self, insn: Insn, limit: int) -> PlannedSplice | Refusal:
        """Turn an instruction into a jump by its first byte; the four bytes behind it say where to."""
        if insn.address + JUMP_BYTES > limit:
            detail = "the pun would borrow bytes of the next function"
            return Refusal(Reason.BORROWED_BYTES, insn.address, detail)
        pun = self._pun(insn, 0, free=0)
        if isinstance(pun, Refusal):
            return pun
        again = self._serves_again(insn, pun.base + self.bias)
        if not again and not self.reachable(pun):
            detail = "no page that the punned jump reaches can be mapped"
            return Refusal(Reason.PUN_OUT_OF_REACH, insn.address, detail)
        borrowed = JUMP_BYTES - 1
        splice = PlannedSplice(Strategy.PUNNED, insn.address, (insn,), [], 1, insn.address, borrowed, pun)
        splice.springboard = pun.base + self.bias if again else 0
        return self._checked(splice)

    def _serves_again(self, insn: Insn, place: int) -> bool:
        return self.retired.get(place) == insn.address + self.bias and Springboards.is_rewritable(place)
