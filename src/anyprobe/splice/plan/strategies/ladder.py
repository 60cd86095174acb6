"""The ladders: strategies in the order in which they are tried, best first."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.flow.straight_lines import FAR_ENOUGH
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site, SiteStrategy
from anyprobe.splice.plan.splices import IN_PLACE, Strategy, WantKind
from anyprobe.splice.plan.strategies.chained_puns import ChainedPun, KnownBytes
from anyprobe.splice.plan.strategies.eviction import Eviction, Nesting
from anyprobe.splice.plan.strategies.growth import Absorption, Growth
from anyprobe.splice.plan.strategies.jump import InPlace, Jump
from anyprobe.splice.plan.strategies.pun_rows import PunRow
from anyprobe.splice.plan.strategies.punned import OneByte, Punned, end_of_function, end_of_padding
from anyprobe.splice.plan.strategies.retarget import Retarget
from anyprobe.splice.plan.strategies.short import Short
from anyprobe.splice.plan.strategies.successor import Successor
from anyprobe.splice.plan.strategies.trap import Trap
from anyprobe.splice.plan.strategies.wedge import Wedge

_FEW = 2
"""Up to how many wanted instructions displace a row of others for one at once; more do once all else has failed."""

# -- where the jump begins


def _here(site: Site) -> Iterable[int]:
    return (site.index,)


def _earlier(site: Site) -> Iterable[int]:
    return site.earlier


def _anywhere(site: Site) -> Iterable[int]:
    return (site.index, *site.earlier)


def _from_the_top(site: Site) -> Iterable[int]:
    return reversed((site.index, *site.earlier)) if site.manner.chained else ()


def _after_a_branch(site: Site) -> Iterable[int]:
    last = site.last
    retargeted = last is not None and last.strategy is Strategy.RETARGET and last.insns[0] in site.run
    return (site.index,) if retargeted else ()


def _after_a_patch(site: Site) -> Iterable[int]:
    last = site.last
    grows = last is not None and last.strategy not in IN_PLACE and last.insns[0] in site.run
    return (site.index,) if grows else ()


def _of_whole_lines(site: Site) -> Iterable[int]:
    return _after_a_patch(site) if site.manner.whole_lines else ()


def _of_few(site: Site) -> Iterable[int]:
    context, want = site.context, site.want
    ends = context.plain_jumps_only and want is not None and want.kind is not WantKind.OFFSET
    return _anywhere(site) if ends or site.manner.chained or len(context.wanted) <= _FEW else ()


def _of_no_plain_exit(site: Site) -> Iterable[int]:
    """Let what leads to an exit be tried before it takes bytes of the next function."""
    want = site.want
    return () if want is not None and want.kind is WantKind.EXIT and not want.conditional else _anywhere(site)


class Rung(NamedTuple):
    """Strategies that are tried together, at each head in turn."""

    heads: Callable[[Site], Iterable[int]]
    strategies: tuple[SiteStrategy, ...]


def _rung(heads: Callable[[Site], Iterable[int]], *strategies: SiteStrategy) -> Rung:
    return Rung(heads, strategies)


_NARROW = (
    _rung(_anywhere, Punned(end_of_function)),
    _rung(_anywhere, Short()),
    _rung(_anywhere, Nesting()),
    _rung(_anywhere, Eviction()),
    _rung(_here, Wedge()),
    _rung(_anywhere, Successor()),
)
"""Where a plain jump has no room, in both of the ladders for stops."""

PLAIN = (_rung(_here, Retarget()), _rung(_here, Jump()))
"""What comes first, wherever nothing is wanted in front."""

LADDER = (
    _rung(_of_whole_lines, Growth()),
    *PLAIN,
    _rung(_earlier, Jump()),
    _rung(_after_a_branch, Absorption()),
    _rung(_after_a_patch, Growth()),
    _rung(_from_the_top, KnownBytes()),
    *_NARROW,
    _rung(_anywhere, KnownBytes(), ChainedPun()),
    _rung(_of_few, PunRow()),
    _rung(_of_no_plain_exit, Punned()),
    _rung(_here, Trap()),
)
"""For a wanted instruction, in a stop."""

LIVE = (
    _rung(_here, OneByte()),
    _rung(_here, InPlace()),
    _rung(_here, Punned(end_of_padding)),
)
"""For a change that is made while the program runs: one instruction each; no thread can stand inside what moves.

First comes the jump that is made of one new byte and four that are there already: a single store makes it.
"""

_DETOUR = (
    _rung(_anywhere, Jump()),
    *_NARROW,
    _rung(_anywhere, KnownBytes()),
    _rung(_anywhere, ChainedPun()),
)
_BORROWING = (_rung(_anywhere, Punned()),)


def tries(site: Site, ladder: tuple[Rung, ...]) -> Iterator[tuple[Strategy, SiteStrategy, Site]]:
    """Yield what is tried at a site: how the patch would be reached, by which strategy, from which head."""
    for rung in ladder:
        for start in rung.heads(site):
            for strategy in rung.strategies:
                kind = strategy.kind
                if kind is None:
                    assert site.last is not None
                    kind = site.last.strategy
                yield kind, strategy, site.beginning_at(start)


def detour(
    context: PlanContext, function: FunctionCode, address: int, floor: int, *, borrows: bool = False
) -> SpliceDraft | Refusal:
    """Return a splice of its own, from ``floor`` on, that displaces one instruction.

    ``borrows``: only a pun that borrows bytes of the next function, which could not be spliced there any more.
    """
    run = function.lines.around(address, max(floor, address - FAR_ENOUGH))
    index = next((i for i, candidate in enumerate(run) if candidate.address == address), None)
    if index is None:
        return Refusal(Reason.NOT_A_BOUNDARY, address, "not an instruction boundary")
    site = Site(context, function, run, index, index, floor)
    for kind, strategy, at in tries(site, _BORROWING if borrows else _DETOUR):
        found = strategy.try_at(at) if kind in context.allowed else None
        if isinstance(found, SpliceDraft):
            return found
    return Refusal(Reason.TOO_SHORT, address, "no jump has room here")
