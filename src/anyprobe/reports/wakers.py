"""Who woke the threads of a program, as a table and by places."""

from typing import TYPE_CHECKING

from anyprobe.data.findings.wakers import READY, Waker, Woken, tells_wakers, wakers_in
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.reports.plain import Rows, escape
from anyprobe.reports.quantities import counted, duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

WHAT = {Waker.TIMER: "a timer", Waker.INTERRUPT: "an interrupt: a device, or another processor"}


def print_wakers(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print who woke threads, for whom they slept longest first, then from where; ``top`` limits the rows unless 0.

    That is where handlers for wakers were placed; else nothing.
    """
    if not any(map(tells_wakers, snapshot.aggregations)):
        return
    found = wakers_in(snapshot.aggregations)
    total = sum(each.slept.sum or 0 for each in found)
    times = sum(each.slept.count for each in found)
    span = f" in {snapshot.interval.seconds:.2f} s" if snapshot.interval is not None else ""
    console.print(f"\nwoken {counted(times, 'time')}{span}, after {duration(total)} of sleep", soft_wrap=True)
    if found:
        console.print()
        _print_table(found, console, total, top)
        console.print()
    for each in found[:top] if top else found:
        text = f"{duration(each.slept.sum or 0):>8}  {counted(each.slept.count, 'time')}  {_by(each)}"
        if each.stack:
            text += f" at {' < '.join(each.stack)}"
        console.print(escape(text), soft_wrap=True)
        where = each.sleeping[0] if each.sleeping else "?"
        text = f"{'':>8}  asleep in {where}, at {' < '.join(each.sleeper) or '?'}"
        console.print(escape(text), style="dim", soft_wrap=True)
    if top and len(found) > top:
        text = f"… and {counted(len(found) - top, 'more pair')} of places; --top 0 shows all"
        console.print(text, style="dim", soft_wrap=True)
    faults = [each for each in found if each.is_page_fault]
    if faults:
        off = duration(sum(each.slept.sum or 0 for each in faults))
        count = counted(sum(each.slept.count for each in faults), "page fault")
        console.print(f"\n{off} of it in {count}", soft_wrap=True)
    for result in snapshot.aggregations:
        if result.name == READY and (cell := result.entries.get(())) is not None and cell.count:
            text = (
                f"{duration(cell.sum or 0)} ready, until a processor was free: {counted(cell.count, 'time')}, "
                f"p99 {duration(cell.percentile(0.99))}, longest {duration(cell.max)}"
            )
            console.print(f"\n{text}", soft_wrap=True)
        if tells_wakers(result) and result.dropped:
            text = f"{counted(result.dropped, 'waking')} of pairs of places for which there was no room"
            console.print(text, style="yellow", soft_wrap=True)


def _print_table(found: "Sequence[Woken]", console: "Console", total: int, top: int) -> None:
    by: dict[str, list[Woken]] = {}
    for each in found:
        by.setdefault(_by(each), []).append(each)
    rows = sorted(by.items(), key=lambda item: -sum(each.slept.sum or 0 for each in item[1]))
    table = Rows()
    for name in ("slept", "%", "times", "longest"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("until woken by", overflow="fold")
    for name, own in rows[:top] if top else rows:
        slept, times = sum(each.slept.sum or 0 for each in own), sum(each.slept.count for each in own)
        longest = duration(max(each.slept.max or 0 for each in own))
        table.add_row(duration(slept), percent(slept, total), f"{times:,}", longest, escape(name))
    console.print(table)


def _by(each: Woken) -> str:
    return WHAT.get(each.waker) or f"{each.comm} (thread {each.tid})"
