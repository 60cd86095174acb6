"""Numbers with units, in the width of a table's column, and no more precise than they are."""

import math

_EXACT = 1 << 53
"""From here on floats have no fractions."""
NS_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def duration(ns: float | None, step: float = 0.0) -> str:
    """Return a duration with three digits and its unit; ``step``: what the clock that measured it goes on by at once.

    What is not longer than a step is only known to be that short, and nothing has digits below a step.
    """
    return "-" if ns is None else _shown(ns, step, step)


def _shown(ns: float, step: float, multiples: float) -> str:
    """Return a duration with the digits that a clock's step leaves; ``multiples``: of what it is shown as one."""
    if step and ns < 1.5 * step:
        return at_most(step)
    for unit, size in NS_UNITS:
        # 999.6 µs would be shown as 1000 µs, so the unit changes where three digits end.
        if ns >= 0.9995 * size or unit == "ns":
            whole = round(ns / multiples) * multiples if multiples else ns
            decimals = min(_decimals(whole / size), (step < size) + (step < 0.1 * size))
            return f"{whole / size:.{decimals}f} {unit}"
    raise AssertionError(ns)


def mean(total: float, count: int, step: float = 0.0) -> str:
    """Return the mean of durations; ``step``: of their clock.

    Each of them is wrong by up to a step, in either direction, so the mean of many is known more precisely.
    """
    return _shown(total / count, step / math.sqrt(count), 0.0 if count > 1 else step) if count else "-"


def at_most(step: float) -> str:
    """Return what is known of a duration that the clock's step hides."""
    return f"≤ {edge(step)}"


def edge(ns: float) -> str:
    """Return the bound of a bucket: at most three digits, without trailing zeros."""
    for unit, size in NS_UNITS:
        if ns >= 0.9995 * size:
            return f"{ns / size:.0f} {unit}" if ns >= 99.95 * size else f"{float(f'{ns / size:.3g}'):g} {unit}"
    return f"{float(f'{ns:.2g}'):g} ns"


def milliseconds(us: float) -> str:
    """Return a pause, which is in milliseconds always, so that pauses can be compared at a glance."""
    ms = us / 1000
    return f"{_three_digits(ms) if ms >= 0.00995 else f'{ms:.3f}'} ms"


def rate(count: int, seconds: float) -> str:
    """Return events per second."""
    if seconds <= 0:
        return "-"
    per_second = count / seconds
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def percent(count: int, total: int) -> str:
    """Return a share in percent, which is 0 or 100 only if it is exactly that."""
    if count == total:
        return "100"
    text = f"{100 * count / total:.1f}"
    if count and text == "0.0":
        return "<0.1"
    return ">99.9" if text == "100.0" else text


def rounded(value: float) -> str:
    """Return a number that is known to about a hundredth of itself: three digits of it."""
    return f"{value:,.0f}" if abs(value) < 1000 else f"{float(f'{value:.3g}'):,.0f}"


def number(value: float) -> str:
    """Return a number, with a fraction only if it has one; whole numbers of any size are exact."""
    return f"{int(value):,}" if value == int(value) else f"{value:,.3f}"


def tenths(value: float) -> str:
    """Return a number with one digit of its fraction, unless it is too large to have one."""
    return f"{value:,}" if isinstance(value, int) and abs(value) >= _EXACT else f"{value:,.1f}"


def _three_digits(value: float) -> str:
    return f"{value:.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    """Return how many decimals a number has that is shown with three digits."""
    return (value < 99.95) + (value < 9.995)
