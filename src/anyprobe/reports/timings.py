"""The columns of tables of times."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot
from anyprobe.data.snapshots.sums import total
from anyprobe.reports.plain import Rows, escape
from anyprobe.reports.quantities import counted, duration, edge, mean

if TYPE_CHECKING:
    from rich.console import Console

PARTLY = "*"
"""Marks numbers of calls where more have ended than were timed."""
MEANING = "not all calls of the function were timed: times and numbers of calls are of those that were"
NAME_WIDTH = 24
"""Columns that names of functions get before others are left out."""
_MOST, _WORTH_SAYING, _WORTH_A_ROW = 0.5, 0.05, 0.01
IN_NO_ROW = "(in no row)"
_WHAT_REST = "outside of all timed functions while some waited on another stack, or in calls that are still running"
TAKEN_MARK = "†"
"""With the error of a function of whose time probes have taken the most."""
_DURATIONS: dict[str, Callable[[FunctionTiming, float], str]] = {
    "total": lambda timing, step: "≤ " * timing.open_is_bound + _within(total_ns(timing), _total_error(timing), step),
    "±": lambda timing, step: _error(
        total_ns(timing), _total_error(timing), step, is_marked=not timing.nested and _is_mostly_taken(timing)
    ),
    "cpu": lambda timing, step: duration(timing.cpu.cpu_ns, step) if timing.cpu else "-",
    "off": lambda timing, step: duration(timing.cpu.off_ns, step) if timing.cpu else "-",
    "self": lambda timing, step: (
        "≤ " * timing.open_is_bound + _within(timing.nested.self_ns, _self_error(timing), step)
        if timing.nested
        else "-"
    ),
    "self off": lambda timing, _: (
        duration(max(timing.nested.self_off_ns, 0.0))  # the clock's step is that of times on processors
        if timing.nested and timing.nested.self_off_ns is not None
        else "-"
    ),
    "± self": lambda timing, step: (
        _error(timing.nested.self_ns, _self_error(timing), step, is_marked=_is_mostly_taken(timing))
        if timing.nested
        else ""
    ),
    "mean": lambda timing, step: mean_of(timing, step),  # noqa: PLW0108 - it follows
    "min": lambda timing, step: duration(timing.min_ns, step),
    "p50": lambda timing, step: percentile(timing, 0.5, step),
    "p90": lambda timing, step: percentile(timing, 0.9, step),
    "p99": lambda timing, step: percentile(timing, 0.99, step),
    "max": lambda timing, step: duration(timing.max_ns, step),
}


def percentile(timing: FunctionTiming, share: float, step: float) -> str:
    """Return a percentile of a function's calls; of one beyond the last bucket, from where on it lies."""
    found = timing.quantile(share)
    text = duration(None if found is None else found.value, step)
    return f"≥ {text}" if found is not None and found.bound else text


def times_of(timings: Sequence[FunctionTiming], step: float) -> dict[str, list[str]]:
    """Return the columns of times, by their headings; ``step``: of the clock. Self times only if any are known.

    Errors only where any is worth saying.
    """
    found = {
        name: [text(timing, step) if _is_known(name, timing) else "-" for timing in timings]
        for name, text in _DURATIONS.items()
        if ("self" not in name or any(timing.nested for timing in timings))
        and (name not in {"cpu", "off"} or any(timing.cpu for timing in timings))
        and (name != "self off" or any(each.nested and each.nested.self_off_ns is not None for each in timings))
    }
    return {name: cells for name, cells in found.items() if "±" not in name or any(each.strip("-") for each in cells)}


def _is_known(name: str, timing: FunctionTiming) -> bool:
    """Return whether there is anything to say of a function in a column; calls that wait have time of their own."""
    if name == "total" and timing.open_ns:
        return True
    return timing.count > 0 or ("self" in name and timing.nested is not None and timing.nested.self_ns != 0)


def rest_of(snapshot: Snapshot) -> str:
    """Return the time that is in no row, as text, if it is worth saying."""
    rest = snapshot.in_no_row.self_ns if snapshot.in_no_row else 0.0
    own = sum(timing.nested.self_ns for timing in snapshot.functions if timing.nested)
    return duration(rest, snapshot.clock_step_ns) if rest > _WORTH_A_ROW * (own + rest) else ""


def add_rest(rest: str, *columns: Mapping[str, list[str]]) -> None:
    """Append a row with the time that is in no row to columns, if there is any."""
    known = {"self": rest, "function": IN_NO_ROW, "module": "", "thread": "", "±": "", "± self": ""}
    for name, cells in (each for some in columns for each in some.items()):
        if rest and cells:
            cells.append(known.get(name, "-"))


def print_rest(rest: str, console: "Console") -> None:
    """Print what the row of time in no row means, if there is one."""
    if rest:
        console.print(f"{IN_NO_ROW}: {_WHAT_REST}", style="dim", soft_wrap=True)


def _is_mostly_taken(timing: FunctionTiming) -> bool:
    """Return whether probes have taken most of what was measured."""
    if timing.taken is None or not timing.count:
        return False
    left, own = timing.sum_ns, timing.taken.sum_ns
    if timing.nested:
        left, own = timing.nested.self_ns, timing.taken.self_ns
    return own > _MOST * (own + max(left, 0.0))


def print_taken(shown: Sequence[FunctionTiming], console: "Console") -> None:
    """Print what the mark of errors means, if a row has it."""
    if any(map(_is_mostly_taken, shown)):
        text = f"{TAKEN_MARK} probes took most of the time that was measured; shown is what the program took"
        console.print(text, style="dim", soft_wrap=True)


def _within(ns: float, error: float, step: float) -> str:
    """Return a time; of one below its error only what it is less than."""
    return f"< {edge(max(ns, 0.0) + error)}" if ns < error else duration(ns, step)


def _error(ns: float, error: float, step: float, *, is_marked: bool) -> str:
    """Return the error of a time, if it is worth saying, and a mark where probes have taken most."""
    text = duration(error, step) if ns >= error > _WORTH_SAYING * ns else ""
    return f"{text} {TAKEN_MARK}".strip() if is_marked else text


def mean_of(timing: FunctionTiming, step: float) -> str:
    """Return the mean of a function's calls; of one below its error only what it is less than."""
    error = timing.taken.error_ns if timing.taken else 0.0
    if timing.sum_ns < error:
        return _within(timing.sum_ns / timing.count, error / timing.count, step)
    return mean(timing.sum_ns, timing.count, step)


def _total_error(timing: FunctionTiming) -> float:
    if timing.taken is None:
        return 0.0
    return timing.taken.outermost_error_ns if timing.nested else timing.taken.error_ns


def _self_error(timing: FunctionTiming) -> float:
    return timing.taken.self_error_ns if timing.taken else 0.0


def calls_of(timings: Sequence[FunctionTiming]) -> list[str]:
    """Return the column of calls, in which rows are marked of which not all calls were timed."""
    return marked([(timing.count, timing.complete) for timing in timings])


def marked(counts: Sequence[tuple[int, bool]]) -> list[str]:
    """Return numbers of calls as text, one below the other; each says whether all calls were timed."""
    some = not all(complete for _, complete in counts)
    return [f"{count:,}{('' if complete else PARTLY).ljust(some)}" for count, complete in counts]


def what_was_timed(timings: Sequence[FunctionTiming]) -> str:
    """Return how many calls of how many functions were timed, each once under whatever names."""
    calls = total((timing, timing.count) for timing in timings)
    functions = total((timing, 1) for timing in timings)
    return f"{counted(calls, 'call')} of {counted(functions, 'function')} timed"


def print_mark(complete: bool, console: "Console") -> None:
    """Print what the mark means, where a row has it."""
    if not complete:
        console.print(f"{PARTLY} {MEANING}", style="dim", soft_wrap=True)


def fitting(columns: Mapping[str, list[str]], width: int, left_out_first: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns for which there is room: some are left out, in an order that is given."""
    wide = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    wide["function"] = min(wide["function"], NAME_WIDTH)
    for name in left_out_first:
        if sum(wide.values()) + 2 * (len(wide) - 1) > width:
            wide.pop(name, None)
    return {name: columns[name] for name in wide}


def print_times(table: Rows, timings: Sequence[FunctionTiming], rest: str, console: "Console") -> None:
    """Print a table of times, and what its marks mean; ``rest``: what is in no row."""
    console.print()
    console.print(table)
    print_mark(all(timing.complete for timing in timings), console)
    print_taken(timings, console)
    print_rest(rest, console)


def table_of(numbers: Iterable[str], cells: Mapping[str, list[str]]) -> Rows:
    """Return a table of columns with these cells; ``numbers`` names the columns that have their cells at the right."""
    table = Rows()
    for name in cells:
        if name in numbers:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            style = {"overflow": "fold", "style": "cyan"} if name == "function" else {"no_wrap": True}
            table.add_column(name, **style)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(escape, row))
    return table


def total_ns(timing: FunctionTiming) -> float:
    """Return the time of all calls of a function, with recursion once where that is known.

    That of calls which the program has ended in is in it, up to its end.
    """
    return timing.open_ns + (timing.nested.outermost_ns if timing.nested else timing.sum_ns)


def weight_ns(timing: FunctionTiming) -> float:
    """Return the time by which functions are ordered: their own, where that is known."""
    return timing.nested.self_ns if timing.nested else timing.sum_ns
