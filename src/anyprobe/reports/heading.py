"""What every report says above and below its rows: the target, the pauses, what was refused."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from anyprobe.data.findings.refused import RefusedSite
from anyprobe.data.snapshots.processes import TargetInfo, busy, place_of_death
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.reports.plain import escape
from anyprobe.reports.quantities import counted, duration, edge, milliseconds, percent

if TYPE_CHECKING:
    from rich.console import Console

DETAILED_REFUSALS = 5
"""Up to so many refusals are shown one by one, more are summed up by reason."""

GONE_NOTE = "[GONE]"
"""How tables mark what was in place until its library was unmapped: as the kernel's list marks kprobes of modules."""

NAMED_TARGETS = 4
"""Up to so many processes that are counted together are each named."""

SILENT_NAMED = 3
"""So many of the sites or functions without a hit are named where there are no more."""
_PAUSES = (("prepare", "map"), ("arm", "arm"), ("disarm", "disarm"))


def print_heading(snapshot: Snapshot, console: "Console", what: str, after: str = "") -> None:
    """Print one line on the targets and one on what it cost them: the longest times, where there are several.

    ``after`` is what else is to be known at once, after the duration. Of an interval there is the time of day alone.
    """
    if snapshot.interval is not None:
        console.print(f"\n{snapshot.interval.moment}  {what} in {snapshot.interval.seconds:.2f} s", soft_wrap=True)
        return
    targets = (snapshot.target, *snapshot.others)
    names = ", ".join(map(name_of, targets[:NAMED_TARGETS]))
    if len(targets) > NAMED_TARGETS:
        names += f" and {counted(len(targets) - NAMED_TARGETS, 'other')}"
    line = f"{names}: {what} in {snapshot.duration_s:.2f} s"
    console.print(f"{line}; {escape(after)}" if after else line, soft_wrap=True)
    for target in targets:
        _print_end(target, console, several=len(targets) > 1)
    pauses = [f"{milliseconds(us)} {word}" for name, word in _PAUSES if (us := snapshot.pause_us.get(name, 0))]
    if pauses:
        taken = sum(snapshot.setup_s.values()) * 1e9
        setup = f"; set up in {duration(taken)}" if taken else ""
        console.print(f"paused: {' · '.join(pauses)}{setup}", style="dim", soft_wrap=True)
    if snapshot.to_place:
        console.print(f"{counted(snapshot.to_place, 'site')} to be placed yet: not counted so far", soft_wrap=True)
    for text in busy(snapshot.waited, snapshot.stolen, on_processors=snapshot.on_processors):
        console.print(text, style="dim", soft_wrap=True)


def tail_clause(snapshot: Snapshot, meaning: str = "not timed") -> str:
    """Return how many calls left by a jump to another function, and so were ``meaning``; nothing if there are none."""
    left = sum(timing.tail_exits for timing in snapshot.functions) + (snapshot.tail_exits or 0)
    if not left:
        return ""
    text = f"{counted(left, 'call')} left by a tail jump and {'was' if left == 1 else 'were'} {meaning}"
    mostly = [timing.function for timing in snapshot.functions if timing.tail_exits > timing.count]
    if len(snapshot.functions) < 2 or not mostly:
        return text
    named = ", ".join(mostly[:SILENT_NAMED]) + (", …" if len(mostly) > SILENT_NAMED else "")
    return f"{text}: most of {named}"


def clauses(snapshot: Snapshot) -> str:
    """Return what is to be known at once of calls that were timed: which were not, and what probes took."""
    return "; ".join(filter(None, (tail_clause(snapshot), learning_clause(snapshot), _probes_clause(snapshot))))


def _probes_clause(snapshot: Snapshot) -> str:
    """Return what share of the measured time probes took, if any."""
    share = round(1000 * (snapshot.probe_share or 0))
    return f"probes took {percent(share, 1000)} % of this time; subtracted" * bool(share)


def learning_clause(snapshot: Snapshot, meaning: str = "not timed") -> str:
    """Return how many calls were ``meaning`` since their callers were not known yet; nothing if there are none."""
    calls = sum(timing.learning for timing in snapshot.functions) + (snapshot.learning or 0)
    return f"{counted(calls, 'call')} from callers not known yet {'was' if calls == 1 else 'were'} {meaning}" * bool(
        calls
    )


def print_left_out(rest: str, silent: Sequence[str], noun: str, event: str, console: "Console") -> None:
    """Print what has no row: ``rest``, in words, and those without a hit, by name if they are few."""
    parts = [rest] if rest else []
    if silent:
        names = f" ({', '.join(silent)})" if len(silent) <= SILENT_NAMED else ""
        parts.append(f"{counted(len(silent), noun)} without a {event}{names}")
    if parts:
        hint = "; --top 0 shows all" if rest or len(silent) > SILENT_NAMED else ""
        console.print(escape(f"… and {', '.join(parts)}{hint}"), style="dim", soft_wrap=True)


def print_step(step: float, console: "Console") -> None:
    """Print why some times are only known to be short; ``step``: by how many nanoseconds the clock goes on at once."""
    console.print(f"the clock steps by {edge(step)}: shorter times cannot be told apart", style="dim", soft_wrap=True)


def name_of(target: TargetInfo) -> str:
    """Return what a heading calls a target."""
    if target.kernel:
        only = f" in pid {', '.join(map(str, target.pids))}" if target.pids else ""
        only += " and what it starts" * target.children
        only += " without anyprobe's own" * bool(target.without)
        return f"[bold]{escape(target.shown_name)}[/bold]{only}"
    if not target.pid:  # processes were waited for, and none has come
        return f"[bold]{escape(target.shown_name)}[/bold]"
    state = "" if target.exited is None and target.alive else ", which has ended"
    return f"[bold]{escape(target.shown_name)}[/bold] (pid {target.pid}{state})"


def _print_end(target: TargetInfo, console: "Console", *, several: bool) -> None:
    """Print by which signal a process was ended, and where it was; or that it has ended, and it is not known how."""
    if target.kernel or not target.pid or (target.alive and target.exited is None):
        return
    who = f"pid {target.pid}: " * several
    if target.exited is None:
        console.print(f"{who}how it has ended is not known", style="yellow", soft_wrap=True)
    elif target.killed_by:
        console.print(escape(f"{who}{_death(target)}"), style="red", soft_wrap=True)


def print_deaths(targets: Iterable[TargetInfo], console: "Console") -> None:
    """Print which processes signals have ended, where no heading has named them."""
    for text in deaths(targets):
        console.print(escape(text), style="red", soft_wrap=True)


def deaths(targets: Iterable[TargetInfo]) -> list[str]:
    """Return in words which processes were ended by signals, and where they were."""
    killed = (each for each in targets if each.pid and each.killed_by)
    return [f"{each.shown_name} (pid {each.pid}): {_death(each)}" for each in killed]


def _death(target: TargetInfo) -> str:
    where = "" if target.died_at is None else place_of_death(target.died_at, target.died_place, target.died_in)
    return f"killed by {target.killed_by}{where}"


def print_refusals(snapshot: Snapshot, console: "Console") -> None:
    """Print what was refused, and what has gone with its library: each with its reason, or many summed up by reason."""
    if snapshot.interval is not None:
        return
    gone = [each for each in snapshot.refused if each.is_gone]
    refused = [each for each in snapshot.refused if not each.is_gone]
    if gone or refused:
        console.print()
    for each in gone if len(gone) <= DETAILED_REFUSALS else ():
        console.print(escape(f"{GONE_NOTE} {_place(each)}: {each.detail}"), style="yellow", soft_wrap=True)
    if len(gone) > DETAILED_REFUSALS:
        text = f"{GONE_NOTE} {counted(len(gone), 'site')}, the first: {gone[0].detail}"
        console.print(escape(text), style="yellow", soft_wrap=True)
    if not refused:
        return
    if len(refused) <= DETAILED_REFUSALS:
        for each in refused:
            text = f"refused: {_place(each)}: {each.reason}: {each.detail}"
            console.print(escape(text), style="yellow", soft_wrap=True)
    else:
        reasons = Counter(each.reason for each in refused)
        summary = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        console.print(f"refused: {counted(len(refused), 'site')}: {summary}", style="yellow", soft_wrap=True)
    _print_advice(snapshot, refused, console)


def _place(site: RefusedSite) -> str:
    return f"{site.spec} at {site.address:#x}" if site.address else site.spec


def _print_advice(snapshot: Snapshot, all_refused: Sequence[RefusedSite], console: "Console") -> None:
    """Print the command that explains the first refusal: exactly what was refused, in a process that is still there.

    Of what is in the kernel all is said, but where it was summed up.
    """
    listed = "--json lists them all"
    refused = [each for each in all_refused if not each.in_kernel and not each.is_left_out]
    if not refused:
        if len(all_refused) > DETAILED_REFUSALS:
            why = f"{all_refused[0].spec}: {all_refused[0].detail}"
            console.print(f"the first: {escape(why)}; {listed}", style="dim", soft_wrap=True)
        return
    first = refused[0]
    several = f" says why of the first of {counted(len(refused), 'site')}; {listed}"
    targets = [each for each in (snapshot.target, *snapshot.others) if not each.kernel]
    alive = [each.pid for each in targets if each.alive and each.exited is None]
    command = ["anyprobe", "explain", *(("--for", "time") if first.timed else ()), first.spec]
    pid = str(alive[0]) if alive else "PID"
    more = several if len(refused) > 1 else " says more"
    console.print(f"{escape(shlex.join([*command, '-p', pid]))}{more}", style="dim", soft_wrap=True)
