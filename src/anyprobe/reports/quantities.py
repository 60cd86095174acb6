"""Numbers with units, in the width of a table's column."""

NS_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3))


def duration(ns: float | None) -> str:
    """Return a duration with three digits and its unit."""
    if ns is None:
        return "-"
    for unit, size in NS_UNITS:
        # 999.6 µs would be shown as 1000 µs, so the unit changes where three digits end.
        if ns >= 0.9995 * size:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{_three_digits(ns)} ns"


def rate(count: int, seconds: float) -> str:
    """Return events per second."""
    if seconds <= 0:
        return "-"
    per_second = count / seconds
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
