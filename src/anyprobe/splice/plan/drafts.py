"""Plans while they are made: splices that still grow, take in wants and make room for one another.

What comes of them are the values in ``splices``.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyprobe.core.refusal import Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Insn
from anyprobe.isa.lines import kept
from anyprobe.splice.plan.splices import FunctionPlan, PlannedSplice, Pun, Strategy, Want, WantKind

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode


@dataclass(slots=True, eq=False)
class SpliceDraft:
    """A splice that is being planned; see ``PlannedSplice`` for its fields."""

    strategy: Strategy
    head: int
    insns: tuple[Insn, ...]
    wants: list[Want]
    written: int
    write_at: int
    borrowed: int = 0
    pun: "Pun | None" = None
    springboard: int = 0
    dead_springboard: int = 0
    leans_on: "tuple[SpliceDraft, ...]" = ()
    ambiguous: bool = False

    @property
    def end(self) -> int:
        """End of the displaced instructions."""
        last = self.insns[-1]
        return last.address + last.length

    def covers(self, address: int) -> bool:
        """Return whether an instruction that starts at ``address`` is displaced here."""
        insns = self.insns
        within = insns[0].address <= address <= insns[-1].address  # of most it is not, and thousands are asked
        return within and any(insn.address == address for insn in insns)

    def finished(self, made: "dict[SpliceDraft, PlannedSplice]", hosts: "Mapping[SpliceDraft, int]") -> PlannedSplice:
        """Return what is planned, after all that it leans on.

        ``made``: what was returned for others; ``hosts``: those with springboards of others, and where these end.
        """
        found = made.get(self)
        if found is None:
            plain = self.strategy is Strategy.JUMP and len(self.wants) == 1 and not self.leans_on
            insns = kept(self.insns) if plain else self.insns
            found = made[self] = PlannedSplice(
                self.strategy, self.head, insns, tuple(self.wants), self.written, self.write_at, self.borrowed,
                self.pun, self.springboard, self.dead_springboard,
                tuple([each.finished(made, hosts) for each in self.leans_on]) if self.leans_on else (),
                hosts.get(self, 0), self.ambiguous,
            )  # fmt: skip
        return found


AnySplice = SpliceDraft | PlannedSplice
"""What has bytes: splices that are being planned, and planned ones."""


@dataclass(slots=True)
class PlanDraft:
    """The plan of one function that is being made; see ``FunctionPlan`` for what comes of it."""

    splices: list[SpliceDraft] = field(default_factory=list)
    refused: list[tuple[Want, Refusal]] = field(default_factory=list)
    verdicts: list[tuple[int, Strategy, Refusal | None]] = field(default_factory=list)
    """(site, strategy, why not) in the order in which they were tried; ``None``: chosen."""
    shared: set[int] = field(default_factory=set)
    """Instructions that some run as copies in a patch and others in their place: no want may rely on the copy alone."""
    scope: "tuple[FunctionCode, ...]" = ()
    """The functions whose instructions may be displaced for the sake of others."""
    vital: AbstractSet[Want] = frozenset()
    """Wants that nothing else may take the place of: they are armed already."""
    _by_head: list[SpliceDraft] = field(default_factory=list, repr=False)
    _tail: SpliceDraft | None = field(default=None, repr=False)

    @property
    def puns(self) -> int:
        """The number of punned jumps, each of which needs a place at one of a few addresses."""
        return sum(splice.strategy is Strategy.PUNNED for splice in self.splices)

    @property
    def loss(self) -> tuple[int, int, int, int]:
        """What it fails to do, the worst first.

        Without what serves the signal view all that may fault would be given up; entries and exits weigh more than any
        number of other instructions.
        """
        vital = sum(self.is_vital(want) for want, _ in self.refused)
        ends = sum(want.kind is not WantKind.OFFSET for want, _ in self.refused)
        return vital, ends, len(self.refused), self.puns

    def is_vital(self, want: Want) -> bool:
        """Return whether a want may not be refused for the sake of others."""
        return want in self.vital or want.shows_pcs

    def is_worth_more(self, most: int) -> bool:
        """Return whether to plan a function anew: not for a few instructions, which are no ends."""
        return self.loss[:2] > (0, 0) or len(self.refused) + self.puns > most

    def finished(self) -> FunctionPlan:
        """Return what is planned, which nothing changes any more."""
        made: dict[SpliceDraft, PlannedSplice] = {}
        hosts = self._hosts()
        splices = tuple([splice.finished(made, hosts) for splice in self.splices])
        return FunctionPlan(splices, tuple(self.refused), tuple(self.verdicts), scope=self.scope)

    def _hosts(self) -> dict[SpliceDraft, int]:
        """Return the splices in whose displaced bytes springboards of others stand, and where the last one ends."""
        found: dict[SpliceDraft, int] = {}
        for splice in self.splices:
            for host in splice.leans_on if splice.dead_springboard else ():
                found[host] = max(found.get(host, 0), splice.dead_springboard + JUMP_BYTES)
        return found

    def last_before(self, address: int) -> SpliceDraft | None:
        """Return the splice with the highest head at or below an address, of several the one added last."""
        known = self._ordered()
        index = bisect_right(known, address, key=_head)
        return known[index - 1] if index else None

    def headed_in(self, low: int, high: int) -> list[SpliceDraft]:
        """Return the splices whose heads lie in ``[low, high)``, ascending."""
        known = self._ordered()
        return known[bisect_left(known, low, key=_head) : bisect_left(known, high, key=_head)]

    def headed_below(self, address: int) -> Iterator[SpliceDraft]:
        """Return the splices whose heads lie below an address, descending."""
        known = self._ordered()
        return (known[index] for index in range(bisect_left(known, address, key=_head) - 1, -1, -1))

    def _ordered(self) -> list[SpliceDraft]:
        """Return all splices by their heads."""
        known = self._by_head
        if len(known) > len(self.splices) or (known and self.splices[len(known) - 1] is not self._tail):
            known[:] = sorted(self.splices, key=_head)  # some were taken out
        for splice in self.splices[len(known) :]:
            insort(known, splice, key=_head)
        self._tail = self.splices[-1] if self.splices else None
        return known


def _head(splice: SpliceDraft) -> int:
    return splice.head
