"""A wanted instruction in its straight line, as strategies see it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Insn
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import PlanDraft, SpliceDraft
from anyprobe.splice.plan.splices import Strategy, Want


class Manner(NamedTuple):
    """How wants are placed that are placed in the same round."""

    whole_lines: bool = False
    """Let a patch rather carry on with what follows than have a second one there."""
    puns: bool = True
    chained: bool = False
    """Choose the bytes of puns so that what stands in front can lean on them."""


PLAINLY = Manner()


@dataclass(slots=True, eq=False)
class Site:
    """An instruction to be displaced, and where in its straight line a jump to the patch would begin."""

    context: PlanContext
    function: FunctionCode
    run: tuple[Insn, ...]
    index: int
    """Which instruction of the line is wanted."""
    start: int
    """Which one the jump replaces: the same one, or one before it."""
    floor: int
    """No jump may begin below this address, unless at the wanted instruction itself."""
    want: Want | None = None
    last: SpliceDraft | None = None
    """The splice of the plan before the wanted instruction."""
    manner: Manner = PLAINLY
    _earlier: list[int] | None = field(default=None, repr=False)

    @property
    def plan(self) -> PlanDraft:
        """The plan that is being made."""
        return self.context.plan

    @property
    def head(self) -> Insn:
        """The instruction that the jump replaces."""
        return self.run[self.start]

    @property
    def insn(self) -> Insn:
        """The wanted instruction."""
        return self.run[self.index]

    @property
    def earlier(self) -> Sequence[int]:
        """The instructions before the wanted one that a jump may begin at, the nearest first."""
        if self._earlier is None:
            self._earlier = [i for i in range(self.index - 1, -1, -1) if self.run[i].address >= self.floor]
        return self._earlier

    def beginning_at(self, start: int) -> "Site":
        """Return the same with a jump that begins elsewhere."""
        return self if start == self.start else replace(self, start=start)

    def short_run(self) -> tuple[Insn, ...] | Refusal:
        """Return the rest of the line from the jump on, as far as it may move, if that is shorter than a jump."""
        return self.context.short_run(self.run, self.start, self.index)


class SiteStrategy(Protocol):
    """A way of getting the hits of a site into a patch."""

    @property
    def kind(self) -> Strategy | None:
        """How the patch is reached; ``None``: as it was by the splice in front."""
        ...

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the splice, or why it does not apply; only looks at claims and the plan."""
        ...
