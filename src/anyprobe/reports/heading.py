"""What every report says above and below its rows: the target, the pauses, what was refused."""

import os
from collections import Counter

from rich.console import Console
from rich.markup import escape

from anyprobe.data.snapshot import Snapshot, TargetInfo
from anyprobe.reports.quantities import counted, duration

DETAILED_REFUSALS = 5
"""Up to so many refusals are shown one by one, more are summed up by reason."""

NAMED_TARGETS = 4
"""Of so many processes that are counted together, each is named."""


def print_heading(snapshot: Snapshot, console: Console, what: str) -> None:
    """Print one line on the targets and one on what it cost them: the longest times, where there are several."""
    targets = (snapshot.target, *snapshot.others)
    names = ", ".join(map(_named, targets[:NAMED_TARGETS]))
    if len(targets) > NAMED_TARGETS:
        names += f" and {counted(len(targets) - NAMED_TARGETS, 'other')}"
    console.print(f"{names}: {what} in {snapshot.duration_s:.2f} s", soft_wrap=True)
    pauses = [
        f"{duration(us * 1000)} to {verb} them"
        for verb, us in ((name, snapshot.pause_us.get(name, 0)) for name in ("prepare", "arm", "disarm"))
        if us
    ]
    if pauses:
        setup = duration(sum(snapshot.setup_s.values()) * 1e9)
        line = f"set up in {setup}; threads stood still for {' and '.join(pauses)}"
        console.print(line, style="dim", soft_wrap=True)


def _named(target: TargetInfo) -> str:
    name = os.path.basename(target.exe) or "process"
    state = "" if target.exited is None and target.alive else ", which has ended"
    return f"[bold]{escape(name)}[/bold] (pid {target.pid}{state})"


def print_refusals(snapshot: Snapshot, console: Console) -> None:
    """Print what was refused: each one with its reason, or many summed up by reason."""
    refused = snapshot.refused
    if not refused:
        return
    console.print()
    if len(refused) <= DETAILED_REFUSALS:
        for site in refused:
            place = f"{site.spec} at {site.address:#x}" if site.address else site.spec
            console.print(
                f"refused: {escape(place)}: {site.reason}: {escape(site.detail)}", style="yellow", soft_wrap=True
            )
        return
    reasons = Counter(site.reason for site in refused)
    summary = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    console.print(f"refused: {counted(len(refused), 'site')}: {summary}", style="yellow", soft_wrap=True)
    console.print("anyprobe explain SPEC says why; --json lists them all", style="dim", soft_wrap=True)
