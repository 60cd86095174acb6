"""What threads wait for: locks, with their waiters and holders, where threads sleep, and who wakes them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.data.findings.offcpu import Cause, State, asleep_in, kernel_numbers
from anyprobe.data.findings.waiting import ACQUIRED, OF_LOCKS, WAITED, Lock, LockKind, Waits, locks_of, outside
from anyprobe.data.findings.wakers import READY, Waker, Woken, tells_wakers, wakers_in
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.reports.heading import print_heading, print_refusals
from anyprobe.reports.losses import print_losses, print_unhandled
from anyprobe.reports.plain import Rows, escape
from anyprobe.reports.quantities import counted, duration, percent

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.aggregates.results import CellValue

_DETAILED = 3
"""Locks of which waiters and holders are shown, and places of each."""
CAUSES = {
    Cause.TIMER: "a time to pass",
    Cause.LOCK: "a lock",
    Cause.CONDITION: "a condition or barrier",
    Cause.THREAD: "a thread to end",
    Cause.POLL: "any of several descriptors",
    Cause.SOCKET: "a socket",
    Cause.IO: "a read or write",
    Cause.FILE: "a file system",
    Cause.CHILD: "a child process",
    Cause.SIGNAL: "a signal",
    Cause.IPC: "a message or semaphore of another process",
    Cause.CALL: "a system call by its number",
    Cause.FUTEX: "a lock or a condition",
}
"""What is waited for, in words."""
_CLIPPED = {
    State.BEFORE: "begun before",
    State.OPEN: "not ended",
    State.ALL_ALONG: "all along",
}
"""Which part of a wait is meant, where that is not all of it."""
_WAKERS = {Waker.TIMER: "a timer", Waker.INTERRUPT: "an interrupt: a device, or another processor"}
_C_LIBRARY = ("libc.so.6", "libpthread.so.0", "libstdc++.so.6")


def without_places(snapshot: Snapshot) -> Snapshot:
    """Return results without rows for places in the C library but those where hits were missed."""
    return replace(snapshot, sites=tuple(each for each in snapshot.sites if each.nmissed))


def print_locks(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print locks, those that were waited for longest first, waiters and holders; ``top`` limits the rows unless 0."""
    found = locks_of(snapshot.aggregations)
    held = [each for each in found if each.kind.is_held]
    others = [each for each in found if not each.kind.is_held]
    taken, waits = sum(each.acquisitions or 0 for each in held), sum(each.contended for each in held)
    waited = duration(sum(each.wait_ns for each in held))
    what = f"{counted(len(held), 'lock')} taken {counted(taken, 'time')}, {counted(waits, 'time')} after a wait"
    if {each.name for each in snapshot.aggregations} & {ACQUIRED, WAITED} == {WAITED}:
        what = f"{counted(len(held), 'lock')} waited for {counted(waits, 'time')}"
    print_heading(snapshot, console, f"{what}, {waited} of waiting")
    for locks, noun in ((held, "lock"), (others, "wait")):
        _print_table(locks, console, top, with_holds=locks is held, noun=noun)
    most = min(_DETAILED, top or _DETAILED)
    contended = [each for each in held if each.contended]
    as_locks = [each for each in others if each.contended and each.kind in {LockKind.SEMAPHORE, LockKind.FUTEX}]
    for lock in (*contended[:most], *as_locks[:most]):
        _print_details(lock, console)
    if found and not contended:
        console.print("\nno thread has waited for a lock that another one held", soft_wrap=True)
    _print_lost(snapshot, console)
    print_losses(snapshot, console)
    print_unhandled(snapshot, console)
    print_refusals(snapshot, console)


def _print_table(locks: Sequence[Lock], console: "Console", top: int, *, with_holds: bool, noun: str) -> None:
    shown = locks[:top] if top else locks
    if not shown:
        return
    with_holds = with_holds and any(each.hold.count for each in locks)
    table = Rows()
    names = ["waited", "p50", "p99", "max", "waits", *(["held", "p50", "p99", "max"] if with_holds else []), "taken"]
    for name in [*names, "waited %"] if with_holds else names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("lock", overflow="fold", style="cyan")
    table.add_column("kind", no_wrap=True)
    for each in shown:
        cells = [*_times(each.wait), f"{each.contended:,}", *(_times(each.hold) if with_holds else [])]
        cells.append(f"{each.acquisitions:,}" if each.acquisitions else "-")
        if with_holds:
            taken = each.acquisitions or 0
            has_share = 0 < taken >= each.contended  # one can be waited for and not taken
            cells.append(percent(each.contended, taken) if has_share else "-")
        table.add_row(*cells, escape(each.name), each.kind.name.lower())
    console.print()
    console.print(table)
    if len(locks) > len(shown):
        text = f"… and {counted(len(locks) - len(shown), f'more {noun}')}; --top 0 shows all"
        console.print(text, style="dim", soft_wrap=True)


def _times(cell: "CellValue") -> list[str]:
    """Return the sum of some times, two percentiles and the longest."""
    if not cell.count:
        return ["-"] * 4
    return [duration(cell.sum or 0), *(duration(cell.percentile(share)) for share in (0.5, 0.99)), duration(cell.max)]


def _print_details(lock: Lock, console: "Console") -> None:
    console.print(f"\n[bold]{escape(lock.name)}[/bold]: {duration(lock.wait_ns)} waited", soft_wrap=True)
    for title, places in (
        ("held while others waited, given back at", lock.blockers),
        ("held when a wait began, taken at", lock.holders),
        ("waited for at", lock.waiters),
    ):
        whole = sum(each.waited_ns for each in places)
        for each in places[:_DETAILED]:
            frames = [outside(each.stack, _C_LIBRARY), *_callers(each)]
            share = percent(each.waited_ns, whole)
            noun = "time" if places is lock.blockers else "wait"
            text = f"  {share:>5} %  {counted(each.count, noun)}  {title} {' < '.join(frames)}"
            console.print(escape(text), soft_wrap=True)
        if len(places) > _DETAILED:
            console.print(f"  … and {counted(len(places) - _DETAILED, 'more place')}", style="dim", soft_wrap=True)


def _callers(waits: Waits) -> Sequence[str]:
    """Return the frames after the one that is shown, as far as they are the program's."""
    at = waits.stack.index(outside(waits.stack, _C_LIBRARY))
    return [each for each in waits.stack[at + 1 : at + 4] if not each.startswith("libc.so.6:")]


def print_offcpu(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print what threads slept for, then where, the longest first; ``top`` limits the places unless 0."""
    found = asleep_in(snapshot.aggregations)
    total = sum(each.off_ns for each in found)
    print_heading(snapshot, console, f"{duration(total)} off processors in {counted(len(found), 'place')}")
    if found:
        parts = [(CAUSES[each.cause], each.off_ns, each.count, each.longest_ns) for each in found]
        _print_shares(("off", "waits", "for"), parts, console)
    for each in found[:top] if top else found:
        on = f"  on {each.descriptor}" if each.descriptor else ""
        clipped = f" ({_CLIPPED[each.state]})" if each.state else ""
        frames = " < ".join(each.frames)
        text = f"{duration(each.off_ns):>8}  {counted(each.count, 'wait')}{clipped}{on}  {frames}"
        console.print(escape(text), soft_wrap=True)
    if top and len(found) > top:
        console.print(
            f"… and {counted(len(found) - top, 'more place')}; --top 0 shows all", style="dim", soft_wrap=True
        )
    if not found:
        console.print("\nno thread has slept in a call in this time", soft_wrap=True)
    kernel = kernel_numbers(snapshot.aggregations)
    if kernel.get("run_queue_ns"):
        queued = duration(kernel["run_queue_ns"])
        text = f"{queued} of threads that were ready and waited for a processor, in these calls or not"
        console.print(f"\n{text}", soft_wrap=True)
    if kernel.get("major_faults"):
        console.print(
            f"{counted(kernel['major_faults'], 'page fault')} that read from a disk, in no call", soft_wrap=True
        )
    for result in snapshot.aggregations:
        if result.dropped and not tells_wakers(result):
            text = f"{counted(result.dropped, 'wait')} in places for which there was no room"
            console.print(text, style="yellow", soft_wrap=True)
    print_losses(snapshot, console)
    print_unhandled(snapshot, console)
    print_refusals(snapshot, console)


def _print_shares(
    names: tuple[str, str, str], parts: Iterable[tuple[str, int, int, int]], console: "Console", top: int = 0
) -> None:
    """Print what time was spent for, most first; ``top`` limits the rows unless 0.

    Args:
        names: of the columns of times, of counts, and of what it was for.
        parts: of each what it was for, the nanoseconds, how many times, and the longest.
        console: where to.
        top: how many rows.
    """
    sums: dict[str, tuple[int, int, int]] = {}
    for what, ns, count, longest in parts:
        before = sums.get(what, (0, 0, 0))
        sums[what] = before[0] + ns, before[1] + count, max(before[2], longest)
    total = sum(ns for ns, _, _ in sums.values())
    table = Rows()
    for name in (names[0], "%", names[1], "longest"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(names[2], overflow="fold")
    for what, (ns, count, longest) in sorted(sums.items(), key=lambda row: -row[1][0])[: top or None]:
        table.add_row(duration(ns), percent(ns, total), f"{count:,}", duration(longest), escape(what))
    console.print()
    console.print(table)
    console.print()


def _print_lost(snapshot: Snapshot, console: "Console") -> None:
    for each in snapshot.aggregations:
        if each.name in OF_LOCKS and each.dropped:
            text = f"{each.name}: {counted(each.dropped, 'value')} of locks for which there was no room"
            console.print(text, style="yellow", soft_wrap=True)


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
        parts = [(_by(each), each.slept.sum or 0, each.slept.count, each.slept.max or 0) for each in found]
        _print_shares(("slept", "times", "until woken by"), parts, console, top)
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


def _by(each: Woken) -> str:
    return _WAKERS.get(each.waker) or f"{each.comm} (thread {each.tid})"
