"""What a USDT marker costs: counted, with its arguments in a histogram, and of Python's when nobody listens."""

import statistics
import time
import timeit
from collections.abc import Callable

from measure import call_target, pairs
from rows import Report

import anyprobe
from anyprobe import Hist, cstr, u64
from anyprobe.usdt import Provider

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
    provider_row(report, scale)


def provider_row(report: Report, scale: float) -> None:
    """Print what a probe's function costs while nobody listens, with an empty one beside it."""

    def empty(number: int, text: str, /) -> None:
        pass

    with Provider("bench_py") as provider:
        functions = {"provider": provider.probe("request", u64, cstr), "empty": empty, "nothing": None}
        times: dict[str, list[float]] = {name: [] for name in functions}
        calls = max(int(1_000_000 * scale), 20_000)
        for _ in range(PAIRS):
            for name, function in functions.items():
                text = "pass" if function is None else "function(1, 'text')"
                seconds = timeit.timeit(text, globals={"function": function}, timer=time.process_time, number=calls)
                times[name].append(seconds / calls * 1e9)
    loop = statistics.median(times["nothing"])
    own, beside = (statistics.median(times[name]) - loop for name in ("provider", "empty"))
    value = f"{own:.0f} ns; an empty Python function {beside:.0f} ns"
    report.add("USDT provider: a call from Python, nobody listening", value, "<= 120 ns", own <= 120)
