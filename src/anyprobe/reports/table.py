"""Hits per site, the busiest first."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from anyprobe.data.snapshots.snapshot import SiteResult, Snapshot
from anyprobe.data.snapshots.sums import total
from anyprobe.reports.heading import GONE_NOTE, print_heading, print_left_out, print_refusals, tail_clause
from anyprobe.reports.losses import print_losses
from anyprobe.reports.plain import Rows, escape
from anyprobe.reports.quantities import counted, rate

if TYPE_CHECKING:
    from rich.console import Console

_IFUNC = " is an IFUNC, "


def print_counts(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print the table of ``count``; ``top`` limits its rows unless 0."""
    sites = total((site, max(site.folded_sites, 1)) for site in snapshot.sites)
    what = f"{counted(snapshot.hits, 'hit')} at {counted(sites, 'site')}"
    print_heading(snapshot, console, what, tail_clause(snapshot, "not asked the condition"))
    print_sites(snapshot, console, top)
    print_losses(snapshot, console)
    print_refusals(snapshot, console)


def print_sites(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print the sites that were hit, the busiest first; without a limit the others, too."""
    hit = sorted(filter(_tells, snapshot.sites), key=_busiest)
    silent = [site for site in snapshot.sites if not _tells(site)]
    shown = hit[:top] if top else hit + silent
    if shown:
        console.print()
        console.print(_table(shown, snapshot))
    noun = _row_noun(snapshot.sites)
    rest = hit[len(shown) :] if top else []
    more = f"{counted(len(rest), f'more {noun}')} with {counted(sum(site.hits for site in rest), 'hit')}"
    print_left_out(more if rest else "", list(map(site_name, silent)) if top else [], noun, "hit", console)
    if snapshot.interval is None:
        _print_strategies(snapshot.sites, noun, console)


def site_name(site: SiteResult) -> str:
    """Return function, offset and kind as the user would write them."""
    function = site.label or site.function
    if site.kind == "usdt":
        return function
    if site.folded_sites:
        return f"{function}%{site.kind}"
    if site.kind in ("offset", "insn", "block", "run", "call", "store", "taken", "undecided"):
        return f"{function}+{site.offset:#x}"
    if site.kind == "return":
        exit_kind = f" ({site.exit_kind})" if site.exit_kind else ""
        return f"{function}%return{exit_kind}"
    return function


def _tells(site: SiteResult) -> bool:
    """Return whether there is more to say than that it was not hit."""
    return bool(site.hits or site.nmissed or not site.armed)


def _busiest(site: SiteResult) -> tuple[int, str, str, int]:
    return -site.hits, site.module, site.function, site.offset


def _table(sites: list[SiteResult], snapshot: Snapshot) -> Rows:
    missed = any(site.nmissed for site in sites)
    gone = {each.spec for each in snapshot.refused if each.is_gone}
    notes = [_notes(site, gone) for site in sites]
    noted = any(notes)
    table = Rows()
    table.add_column("hits", justify="right", no_wrap=True)
    table.add_column("hits/s", justify="right", no_wrap=True)
    if snapshot.interval is not None:
        table.add_column("in all", justify="right", no_wrap=True)
    if missed:
        table.add_column("missed", justify="right", no_wrap=True, style="red")
    table.add_column("function", overflow="fold", style="cyan")
    table.add_column("module", no_wrap=True)
    table.add_column("strategy", no_wrap=True)
    if noted:
        table.add_column("notes", overflow="fold", style="yellow")
    exits = Counter(name for name, _ in {(site_name(site), site.offset) for site in sites})
    for site, own in zip(sites, notes, strict=True):
        cells = [f"{site.hits:,}", rate(site.hits, snapshot.duration_s - site.since)]
        cells += [f"{snapshot.interval.total(site):,}"] if snapshot.interval is not None else []
        cells += [f"{site.nmissed:,}"] if missed else []
        which = f" +{site.offset:#x}" if site.kind == "return" and exits[site_name(site)] > 1 else ""
        cells += map(escape, (site_name(site) + which, site.shown_module, site.strategy))
        cells += [escape(", ".join(own))] if noted else []
        table.add_row(*cells)
    return table


def _notes(site: SiteResult, gone: Collection[str]) -> list[str]:
    """Return the notes that the name does not say already; ``gone``: the specs of what was unloaded."""
    notes = [note for note in site.notes if not (site.label and _IFUNC in note)]
    return notes if site.armed else [*notes, GONE_NOTE if site.spec in gone else "disarmed"]


def _row_noun(sites: Sequence[SiteResult]) -> str:
    """Return what a row is: a site, a function of which sites were folded, or one of either."""
    if sites and all(site.kind == "usdt" for site in sites):
        return "marker"
    folded = [site.folded_sites > 0 for site in sites]
    return "site" if not any(folded) else "function" if all(folded) else "row"


def _print_strategies(sites: Sequence[SiteResult], noun: str, console: "Console") -> None:
    strategies = Counter(site.strategy for site in sites)
    if len(sites) > 1:
        shares = ", ".join(f"{count:,} {strategy}" for strategy, count in strategies.most_common())
        console.print(escape(f"{noun}s by strategy: {shares}"), style="dim", soft_wrap=True)
