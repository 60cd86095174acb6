"""What a USDT marker costs when it is hit: counted, and with its arguments in a histogram."""

from collections.abc import Callable

from measure import call_target, pairs
from rows import Report

import anyprobe
from anyprobe import Hist

CALLS, PAIRS = 50_000_000, 11
SPEC = "usdt:bench:marked"


def usdt_rows(report: Report, scale: float) -> None:
    """Print the rows."""
    calls = max(int(CALLS * scale), 100_000)
    with call_target(1) as target, anyprobe.attach(target.pid) as session:
        probes: list[anyprobe.Probe] = []

        def counted() -> Callable[[], object]:
            if probes:
                session.enable(*probes)
            else:
                probes.extend(session.count(SPEC))
            return lambda: session.remove(*probes)

        cost = pairs(target, "marked", calls, PAIRS, counted)[0]
    report.add("USDT marker: counted", f"{cost!s} ns", "<= 1 ns", cost.median <= 1)
    values = Hist("values")

    def on_marked(arg0, arg1):  # type: ignore[no-untyped-def] # the note says what they are
        values.add((arg0 ^ arg1) & 0xFFFF)

    with call_target(1) as target, anyprobe.attach(target.pid) as session:

        def collected() -> Callable[[], object]:
            known = session.probes_of(on_marked)
            if known:
                session.enable(*known)
            else:
                session.entry(SPEC)(on_marked)
            return lambda: session.remove(*session.probes_of(on_marked))

        cost = pairs(target, "marked", calls, PAIRS, collected)[0]
    report.add("USDT marker: two arguments in a histogram", f"{cost!s} ns", "<= 5 ns", cost.median <= 5)
