"""Recorded calls line by line, as uftrace shows them: indented by their depth, with their durations."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anyprobe.core.printable import printable
from anyprobe.data.calls.matching import UNKNOWN
from anyprobe.data.calls.recorded import lost_text
from anyprobe.data.calls.recording import Recording
from anyprobe.data.calls.timeline import FAR, LOST, Calls, Gap
from anyprobe.data.calls.values import Instant
from anyprobe.reports.quantities import counted, duration
from anyprobe.reports.trace import value

if TYPE_CHECKING:
    import numpy as np
else:
    from anyprobe.core.later import np

HEADING = f"{'seconds':>12} {'duration':>10} {'tid':>8} call"
DEEPEST = 48
"""Calls that are shown further in than those around them; recursion may be endless."""


def lines(
    recording: Recording, calls: Calls, gaps: Sequence[Gap], zero: int, instants: Sequence[Instant] = ()
) -> Iterator[str]:
    """Yield a line for each call that makes none of those that are shown, else one for its beginning and its end.

    ``zero``: the time from which times count.
    """
    if recording.overwritten:
        yield f"{0:12.6f} {'':>10} {'':>8} --- {counted(recording.overwritten, 'event')} overwritten before this ---"
    lost = [(each.time, _lost(each, recording.threads[each.thread].tid, zero)) for each in gaps]
    between = [(each.time, _instant(each, recording.threads[each.thread].tid, zero)) for each in instants]
    for _, text in heapq.merge(lost, _events(recording, calls, zero), between, key=lambda each: each[0]):
        yield text


def _lost(gap: Gap, tid: int, zero: int) -> str:
    text = f"--- {lost_text(gap.events)} before this ---"
    return f"{(gap.time - zero) / 1e9:12.6f} {'':>10} {tid:>8} {text}"


def _instant(instant: Instant, tid: int, zero: int) -> str:
    shown = f"{printable(instant.name)}({_shown(instant.values)})"
    return f"{(instant.time - zero) / 1e9:12.6f} {'':>10} {tid:>8} -- {shown}"


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{printable(label)}={value(each)}" for label, each in values.items())


def _events(recording: Recording, calls: Calls, zero: int) -> Iterator[tuple[int, str]]:
    """Yield the time of each line, and the line."""
    names = [printable(each.name) for each in recording.functions]
    tids = [each.tid for each in recording.threads]
    has_end = calls.last < FAR
    rows = np.arange(len(calls))
    opens = calls.first % 2 == 1
    places = np.concatenate([calls.first[opens], calls.last[has_end]])
    whose = np.concatenate([rows[opens], rows[has_end]])
    is_end = np.concatenate([np.zeros(int(opens.sum()), np.bool_), np.ones(int(has_end.sum()), np.bool_)])
    # of what has ended by one event, the innermost first: those that began last
    order = np.lexsort((np.where(is_end, -whose, whose), places))
    whose, is_end = whose[order], is_end[order]
    leaves = _leaves(calls.threads[whose], whose, is_end)
    columns = [each.tolist() for each in (calls.threads, calls.functions, calls.begins, calls.ends, calls.gone)]
    open_calls: dict[int, int] = {}
    at_entry, at_return = recording.at_entry, recording.at_return
    firsts, lasts = calls.first.tolist(), calls.last.tolist()
    for call, ends, leaf in zip(whose.tolist(), is_end.tolist(), leaves.tolist(), strict=True):
        if leaf and ends:
            continue  # it has been shown
        thread, function, began, ended, gone = (column[call] for column in columns)
        depth = open_calls.get(thread, 0)
        if ends and began != UNKNOWN:
            depth = open_calls[thread] = max(depth - 1, 0)
        elif not leaf and not ends:
            open_calls[thread] = depth + 1
        indent, name = "  " * min(depth, DEEPEST), names[function]
        took, note = _took(began, ended, gone)
        given = _shown(at_entry.at(firsts[call] // 2)) if recording.has_values and firsts[call] % 2 else ""
        results = _shown(at_return.at(lasts[call] // 2)) if recording.has_values and lasts[call] % 2 else ""
        if not ends:
            time, text = began, f"{name}({given});" if leaf else f"{name}({given}) {{"
            text += f"  {results}" if leaf and results else ""
            took, note = (took, note) if leaf or (ended == UNKNOWN and gone in {UNKNOWN, LOST}) else ("", "")
        elif gone == LOST:
            continue
        else:
            time, text = ended if ended != UNKNOWN else gone, f"}} /* {name} */" + (results and "  " + results)
        yield time, f"{(time - zero) / 1e9:12.6f} {took:>10} {tids[thread]:>8} {indent}{text}{note and '  ' + note}"


def _leaves(threads: Any, whose: Any, is_end: Any) -> Any:  # noqa: ANN401 - arrays
    """Return which lines are of calls that begin and end without another line of their thread in between."""
    order = np.argsort(threads, kind="stable")
    calls, ends = whose[order], is_end[order]
    pair = np.zeros(len(order), np.bool_)
    both = np.flatnonzero((calls[:-1] == calls[1:]) & ~ends[:-1] & ends[1:])
    pair[both], pair[both + 1] = True, True
    found = np.empty(len(order), np.bool_)
    found[order] = pair
    return found


def _took(began: int, ended: int, gone: int) -> tuple[str, str]:
    """Return how long a call took, and what is to be said of that."""
    if began == UNKNOWN:
        return "?", "it was not seen to begin"
    if ended != UNKNOWN:
        return duration(ended - began), ""
    if gone == LOST:
        return "?", "its end may be among lost events"
    if gone != UNKNOWN:
        return f"≤ {duration(gone - began)}", "left without a return"
    return "", "open at the end"
