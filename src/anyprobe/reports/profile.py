"""Where the time goes: the functions that samples have met, or the tree of their stacks."""

from typing import TYPE_CHECKING

from anyprobe.data.findings.calltree import CallNode, folded, time_of
from anyprobe.data.snapshots.profile import Profile
from anyprobe.reports.heading import NAMED_TARGETS, name_of, print_deaths
from anyprobe.reports.plain import Rows, escape
from anyprobe.reports.quantities import counted, duration, percent

if TYPE_CHECKING:
    from rich.console import Console

_LEAST_SHARE = 0.005
"""Branches with a smaller share of the samples are left out, unless all are wanted."""
_WORTH_SAYING = 0.05
_HEADINGS = {"pid": "pid", "tid": "tid", "comm": "thread"}


def print_profile(profile: Profile, console: "Console", top: int = 0) -> None:
    """Print the functions in which threads were most often; ``top`` limits the rows unless 0."""
    _print_heading(profile, console)
    found = profile.functions
    shown = found[:top] if top else found
    if shown:
        table = Rows()
        if profile.by is not None:
            table.add_column(_HEADINGS[profile.by], justify="right", no_wrap=True)
        for name in ("self %", "total %", "samples" if profile.waits is None else "off"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("function", overflow="fold", style="cyan")
        table.add_column("module", no_wrap=True)
        for each in shown:
            cells = [] if profile.by is None else [escape(str(each.key))]
            shares = (percent(samples, profile.samples) for samples in (each.self_samples, each.total_samples))
            table.add_row(
                *cells, *shares, _amount(profile, each.total_samples), escape(each.function), escape(each.shown_module)
            )
        console.print()
        console.print(table)
    if len(found) > len(shown):
        text = f"… and {counted(len(found) - len(shown), 'more row')}; --top 0 shows all"
        console.print(text, style="dim", soft_wrap=True)
    _print_next(profile, console)


def print_profile_tree(profile: Profile, console: "Console", top: int = 0) -> None:
    """Print which functions called which, by the stacks; of each process or thread, where these are told apart."""
    _print_heading(profile, console)
    for key in profile.keys:
        one = profile.of(key)
        if profile.by is not None:
            amount = counted(one.samples, "sample") if profile.waits is None else _amount(profile, one.samples)
            text = f"\n[bold]{_HEADINGS[profile.by]} {escape(str(key))}[/bold]: {amount}"
            console.print(text, soft_wrap=True)
        _print_tree(list(map(folded, one.tree)), one.samples, console, top)
    _print_next(profile, console)


def _print_tree(roots: list[CallNode], samples: int, console: "Console", top: int) -> None:
    from rich.table import Table

    from anyprobe.core.printable import printable
    from anyprobe.reports.calltree import Branch, branches

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("total %", "self %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("function", overflow="fold", style="cyan")
    table.add_column("module", no_wrap=True)
    least = _LEAST_SHARE * sum(map(time_of, roots)) if top else 0.0
    lines = list(branches(roots))
    shown = [each for each in lines if time_of(each[-1]) >= least]
    ns = sum(node.sum_ns for node in roots) / samples if samples else 1.0
    for prefix, below, node in shown:
        shares = (percent(round(each / ns), samples) for each in (node.sum_ns, node.self_ns))
        table.add_row(*shares, Branch(prefix, below, printable(node.function)), escape(node.shown_module))
    console.print()
    console.print(table)
    if len(lines) > len(shown):
        text = f"{counted(len(lines) - len(shown), 'branch', 'branches')} below 0.5 % left out; --top 0 shows all"
        console.print(text, style="dim", soft_wrap=True)


def _amount(profile: Profile, count: int) -> str:
    """Return a number of samples, or the time that it is."""
    return f"{count:,}" if profile.waits is None else duration(count)


def _print_heading(profile: Profile, console: "Console") -> None:
    """Print what was sampled, and what was not."""
    names = ", ".join(map(name_of, profile.targets[:NAMED_TARGETS]))
    if len(profile.targets) > NAMED_TARGETS:
        names += f" and {counted(len(profile.targets) - NAMED_TARGETS, 'other')}"
    started = len(profile.processes) - len(profile.targets)
    if started > 0:
        names += f" and {counted(started, 'process', 'processes')} that it started"
    what = f"{counted(profile.samples, 'sample')} in {profile.duration_s:.2f} s at {profile.hz} Hz"
    what = f"{what}; {profile.processor_s:.2f} s on processors"
    if profile.waits is not None:
        what = f"{duration(profile.samples)} off processors in {counted(profile.waits, 'wait')}"
        what += f" in {profile.duration_s:.2f} s"
    console.print(f"{names}: {what}", soft_wrap=True)
    kernel = "with time in the kernel" if profile.kernel else "without time in the kernel, which this user may not see"
    truncated = f"{counted(profile.truncated, 'stack')} truncated"
    if profile.waits is not None:
        truncated = f"{_amount(profile, profile.truncated)} with stacks truncated"
    parts = [kernel, f"{profile.lost:,} lost", truncated]
    console.print("; ".join(parts), style="dim", soft_wrap=True)
    print_deaths(profile.targets, console)
    share = profile.unsampled_share
    if share > _WORTH_SAYING:
        where = f"in threads that run for less than {1000 / profile.hz:.3g} ms, of which a higher --hz has more"
        if not profile.kernel:
            where = f"in the kernel, or {where}"
        text = f"{100 * share:.0f} % of the time on processors is in no sample: it was {where}"
        console.print(text, style="yellow", soft_wrap=True)
    if not profile.samples:
        text = "nothing that was sampled ran for long enough; it slept, or waited"
        if profile.waits is not None:
            text = "no thread gave its processor up; what slept all along is not seen"
        console.print(f"no samples: {text}", soft_wrap=True)


def _print_next(profile: Profile, console: "Console") -> None:
    if profile.next:
        console.print(f"\nnext: {escape(profile.next)}", soft_wrap=True)
