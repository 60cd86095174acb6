"""Distributions as rows with a count, its share, the share so far and a bar. Only rows that are empty are left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console

from anyprobe.data.layouts import histogram
from anyprobe.data.layouts.histogram import Bucket, Quantile
from anyprobe.reports import quantities
from anyprobe.reports.plain import escape

BAR_WIDTH = 32
"""Columns of the longest bar, where there is room for them."""
SHORTEST_BAR = 8
"""A bar of fewer columns says less than the columns of numbers that it takes the place of."""
BAR_PARTS = " ▏▎▍▌▋▊▉█"
GAP = "⋮"
"""Stands for a run of rows that counted nothing."""
MARKS = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
OPEN_BELOW, OPEN_ABOVE = float(histogram.LOWEST), float(histogram.HIGHEST)
"""Where buckets end that hold whatever lies beyond."""
_SIGNS = {histogram.AT_LEAST: "≥ ", histogram.AT_MOST: "≤ "}


class Scale(Protocol):
    """How the values of a distribution are written."""

    def exactly(self, value: float) -> str:
        """Return a value that was seen."""
        ...

    def about(self, bucket: Bucket, value: float) -> str:
        """Return a value that was worked out, and lies in a bucket."""
        ...

    def edges(self, low: float, high: float) -> str:
        """Return the range of a row."""
        ...

    def short(self, low: float, high: float) -> str:
        """Return the range of a row in five columns at the most, by one of its ends."""
        ...

    def hides(self, low: float, high: float) -> bool:
        """Return whether what lies there cannot be told from nothing."""
        ...

    @property
    def units(self) -> str:
        """What the letters of ``short`` mean."""
        ...


@dataclass(frozen=True, slots=True)
class Durations:
    """Times in nanoseconds, by a clock that goes on by ``step`` at once (0 if that is not known)."""

    step: float = 0.0

    def exactly(self, value: float) -> str:
        """Return a duration."""
        return quantities.duration(value, self.step)

    def about(self, bucket: Bucket, value: float) -> str:  # noqa: ARG002 - as precise as three digits
        """Return a duration."""
        return quantities.duration(value, self.step)

    def edges(self, low: float, high: float) -> str:
        """Return both ends, the upper one alone of what is within a step."""
        if self.hides(low, high):
            return quantities.at_most(self.step)
        return f"{quantities.edge(low)} … {quantities.edge(high)}" if high < OPEN_ABOVE else f"≥ {quantities.edge(low)}"

    def short(self, low: float, high: float) -> str:
        """Return the lower end in whole units, the upper one of what is within a step."""
        if self.hides(low, high):
            return f"≤{quantities.edge(self.step).removesuffix(' ns')}"
        for letter, size in (("s", 1e9), ("m", 1e6), ("µ", 1e3)):
            if low >= size:
                return f"{low / size:.0f}{letter}"
        return f"{low:.0f}"

    def hides(self, low: float, high: float) -> bool:
        """Return whether nothing but 0 and one step of the clock lies there."""
        return 0 <= low <= self.step and high <= 2 * self.step

    @property
    def units(self) -> str:
        """What the letters of ``short`` mean."""
        return "ns; µ: µs, m: ms"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Whole numbers."""

    def exactly(self, value: float) -> str:
        """Return the number."""
        return quantities.number(value)

    def about(self, bucket: Bucket, value: float) -> str:
        """Return the number, with three digits where its bucket is no single one."""
        low, high, _ = bucket
        return f"{low:,.0f}" if high - low <= 1 else quantities.rounded(value)

    def edges(self, low: float, high: float) -> str:
        """Return the first and the last number of the range."""
        if low <= OPEN_BELOW:
            return f"below {high:,.0f}"
        if high >= OPEN_ABOVE:
            return f"≥ {low:,.0f}"
        return f"{low:,.0f}" if high - low == 1 else f"{low:,.0f} … {high - 1:,.0f}"

    def short(self, low: float, high: float) -> str:
        """Return the first number of the range, in multiples of 1,024 where it is one of those."""
        if low <= OPEN_BELOW:
            return f"<{_binary(high)}"
        return _binary(low)

    def hides(self, low: float, high: float) -> bool:  # noqa: ARG002 - whatever they are
        """Return False: each number can be told from all others."""
        return False

    @property
    def units(self) -> str:
        """What the letters of ``short`` mean."""
        return "K: 1,024"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Buckets of values that are shown: all that counted something, in order."""

    buckets: Sequence[Bucket]
    scale: Scale
    noun: str = "value"
    factor: int = 1
    """What the counts are divided by."""

    @property
    def total(self) -> int:
        """How many values there are."""
        return sum(count for _, _, count in self.buckets)

    def marked(self) -> list[str]:
        """Return for each bucket which percentiles lie there."""
        lying = [(name, histogram.located(self.buckets, share)[0]) for name, share in MARKS]
        return [" ".join(name for name, there in lying if there == bucket) for bucket in self.buckets]


def percentiles(buckets: Sequence[Bucket], scale: Scale, value: Callable[[float], Quantile | None]) -> list[str]:
    """Return the percentiles with their names; of those beyond the last bound, only where that is."""
    found = []
    for name, share in MARKS:
        bucket, known = histogram.located(buckets, share)[0], value(share)
        if known is None and not histogram.is_open(bucket):
            found.append(f"{name} in {scale.edges(*bucket[:2])}")
        else:
            found.append(f"{name} {shown_percentile(bucket, known, scale)}")
    return found


def shown_percentile(bucket: Bucket, known: Quantile | None, scale: Scale) -> str:
    """Return a percentile that lies in a bucket: a number, a bound of it, or where none is known the bucket."""
    if known is None:
        return scale.edges(*bucket[:2])
    return _SIGNS[known.bound] + scale.exactly(known.value) if known.bound else scale.about(bucket, known.value)


def powers_of_two(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return the rows of a log-linear histogram, whose buckets are too many for the eye."""
    # those at both ends hold all that is beyond, so they are no power of two
    below = [bucket for bucket in buckets if bucket[0] < 0]
    above = [bucket for bucket in buckets if bucket[1] >= OPEN_ABOVE]
    between = [bucket for bucket in buckets if bucket not in (*below, *above)]
    return [*below, *(row for row in histogram.by_powers_of_two(between) if row[2]), *above]


def joined(distributions: Sequence[Sequence[Bucket]], scale: Scale) -> list[list[Bucket]]:
    """Return the rows of distributions, with those as one that cannot be told apart: the same range for all of them."""
    hidden = {(low, high) for rows in distributions for low, high, _ in rows if scale.hides(low, high)}
    if not hidden:
        return [list(rows) for rows in distributions]
    lowest, highest = min(low for low, _ in hidden), max(high for _, high in hidden)
    found = []
    for rows in distributions:
        count = sum(count for low, high, count in rows if (low, high) in hidden)
        others = [row for row in rows if row[:2] not in hidden]
        found.append(sorted([*([(lowest, highest, count)] if count else []), *others]))
    return found


def print_facts(facts: Sequence[str], console: Console) -> None:
    """Print what is known of a distribution as a whole, in as many lines as the console needs."""
    line = " "
    for at, fact in enumerate(facts):
        text = fact + ("," if at < len(facts) - 1 else "")
        if len(line) > 1 and len(line) + 1 + len(text) > console.width:
            _print_line(escape(line), console, style="dim")
            line = "   "
        line += f" {text}"
    _print_line(escape(line), console, style="dim")


def print_rows(shown: Distribution, console: Console) -> None:
    """Print a row for each bucket, none wider than the console."""
    labels = [shown.scale.edges(low, high) for low, high, _ in shown.buckets]
    counts = [quantities.number(count / shown.factor) for _, _, count in shown.buckets]
    noun, marks, columns = shown.noun + "s", shown.marked(), _columns(shown)
    if max(map(len, labels)) + max(map(len, counts)) + 3 > console.width:
        labels = [shown.scale.short(low, high) for low, high, _ in shown.buckets]
    widths = [max(map(len, labels)), *(max(len(head), *map(len, cells)) for head, cells in ((noun, counts), *columns))]
    bar_room = console.width - _used(widths) - 1 - max(len(f" {mark}") if mark else 0 for mark in marks)
    while columns and bar_room < SHORTEST_BAR:
        columns.pop()
        bar_room += 1 + widths.pop()
    longest = max(min(bar_room, BAR_WIDTH), 0)
    heads = ["", noun, *(head for head, _ in columns)]
    _print_line(_row(heads, widths), console, style="dim")
    highest, end = max(count for _, _, count in shown.buckets), None
    for at, (low, high, count) in enumerate(shown.buckets):
        if end is not None and low != end:
            _print_line(f"  {GAP:>{widths[0]}}", console, style="dim")
        end = high
        row = _row([labels[at], counts[at], *(cells[at] for _, cells in columns)], widths)
        drawn = f" [green]{bar(count / highest, longest)}[/green]" if longest else ""
        mark = f" [bold]{marks[at]}[/bold]" if marks[at] and bar_room >= 0 else ""
        _print_line(f"{escape(row)}{drawn}{mark}", console)


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """Return a bar of ``share`` (0 to 1) of the width, in eighths of a column."""
    eighths = round(share * width * 8)
    if share > 0 and not eighths and width:
        eighths = 1
    return "█" * (eighths // 8) + (BAR_PARTS[eighths % 8] if eighths % 8 else "")


def _columns(shown: Distribution) -> list[tuple[str, list[str]]]:
    """Return the shares of the rows and their sums, with headings."""
    total, so_far = shown.total, 0
    shares, sums = [], []
    for _, _, count in shown.buckets:
        so_far += count
        shares.append(quantities.percent(count, total))
        sums.append(quantities.percent(so_far, total))
    return [("%", shares), ("cum %", sums)]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  " + " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _used(widths: Sequence[int]) -> int:
    return 2 + sum(widths) + len(widths) - 1


def _print_line(text: str, console: Console, style: str = "") -> None:
    console.print(text, style=style, soft_wrap=True)


def _binary(value: float) -> str:
    """Return a whole number in five columns, if it can be had so."""
    for power, unit in ((60, "E"), (50, "P"), (40, "T"), (30, "G"), (20, "M"), (10, "K")):
        if abs(value) >= 1 << power and value % (1 << power) == 0:
            return f"{value / (1 << power):.0f}{unit}"
    return f"{value:.0f}"
