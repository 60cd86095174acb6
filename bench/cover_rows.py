"""Coverage of CPython by probes that take themselves away: what arming costs, and what it costs later."""

import statistics
import tempfile
import time

from blocks import Mix, _printed, mix
from rows import Report

import anyprobe
from anyprobe.probes.providers.function.reading import flags_of

LOOKS = (("at once", 0.0, 1.5), ("after 10 s", 10.0, 1.05), ("after 60 s", 60.0, 1.01))
"""Seconds since arming, and by how much the mix may be slower."""
LONGEST = 90.0
BARE = 4
ROUNDS = 4
LAZILY = """
import sys, time
begin = time.process_time()
import anyprobe
with anyprobe.attach(int(sys.argv[2])) as session:
    (probe,) = session.cover("a.out", lazy=True)
    print(time.process_time() - begin, len(probe.places), len(probe.unentered), *session.engine.seconds.values())
"""
COVERING = """
import sys, time
begin = time.process_time()
import anyprobe
with anyprobe.attach(int(sys.argv[2])) as session:
    (probe,) = session.cover("a.out")
    cpu, places = time.process_time() - begin, len(probe.places)
    from bytes_of import memfd_bytes
    homes = session.splicing.holdings.code_regions
    code = sum(home.cursor - home.code.address for home in homes) + 8 * places
    print(cpu, places, code / places, memfd_bytes(int(sys.argv[2])) / places, *session.engine.seconds.values())
"""


def cover_rows(report: Report, _share: float) -> None:
    """Every block of python3.11 as a flag, and the mix of benchmarks while they take themselves away."""
    with mix() as target, tempfile.TemporaryDirectory() as cache:
        for name, limit in (("nothing in the cache", 12.0), ("once more", 5.0)):
            cpu, places, size, whole, *steps = _printed(COVERING, cache, str(target.process.pid))
            named = ", ".join(f"{each:.1f}" for each in steps)
            report.add(
                f"every block of python3.11 ({places:.0f}) as a flag, {name}",
                f"{cpu:.1f} s CPU", f"<= {limit:.0f} s", cpu <= limit, f"resolve, plan, prepare, arm: {named} s",
            )  # fmt: skip
        cpu, places, waiting, *steps = _printed(LAZILY, cache, str(target.process.pid))
        named = ", ".join(f"{each:.1f}" for each in steps)
        report.add(
            f"the same as functions are entered: gates of {waiting:.0f}, {places:.0f} blocks at once",
            f"{cpu:.1f} s CPU", "<= 4 s", cpu <= 4, f"resolve, plan, prepare, arm: {named} s",
        )  # fmt: skip
        row = "  patches and flags in the target, per block"
        report.add(row, f"{size:.0f} bytes", "<= 40 bytes", size <= 40, f"{whole:.0f} bytes with the journal")
    _as_time_goes_by(report)


def _ratio(target: Mix, other: Mix) -> float:
    turns = [mine / its for mine, its in zip(target.run(ROUNDS), other.run(ROUNDS), strict=True)]
    return statistics.geometric_mean(turns)


def _as_time_goes_by(report: Report) -> None:
    with mix() as target, mix() as other:
        bare = statistics.median([_ratio(target, other) for _ in range(BARE)])
        with anyprobe.attach(target.process.pid) as session:
            (probe,) = session.cover("a.out")
            session.pump_in_background()
            begin, found = time.monotonic(), list[tuple[float, float]]()
            while not found or found[-1][0] < LONGEST:
                at = time.monotonic() - begin
                found.append((at, _ratio(target, other) / bare))
            retirement = session.host.arming.retirement
            assert retirement is not None
            hit = sum(place.hook.was_set for place in probe.places)
            left = sum(place.hook.was_set and place.hook.armed for place in probe.places)
            unknown = sum(place.hook.refusal is not None for place in probe.places)
            (bank,) = {place.hook.bank for place in probe.places if place.hook.bank is not None}
            reads = [_read(bank) for _ in range(9)]
    ends = [*(each[1] for each in LOOKS[1:]), LONGEST + 60]
    for (name, start, limit), end in zip(LOOKS, ends, strict=True):
        ratios = [ratio for at, ratio in found if start <= at < end] if start else [found[0][1]]
        slow = statistics.median(ratios)
        report.add(
            f"  CPython, slow-down {name}", f"{slow:.3f} x", f"<= {limit} x", slow <= limit, f"{len(ratios)} runs"
        )
    report.add("  reading all flags", f"{1e3 * statistics.median(reads):.1f} ms", "<= 10 ms", max(reads) <= 0.01)
    report.add(
        f"  taking {retirement.taken_out} splices out, all looks in {found[-1][0]:.0f} s",
        f"{retirement.seconds:.2f} s CPU", "<= 0.5 s", retirement.seconds <= 0.5,
        f"{hit} blocks hit, {left} of them still in, {unknown} not known",
    )  # fmt: skip
    longest = retirement.longest_us / 1e3
    report.add("  longest pause for that", f"{longest:.1f} ms", "<= 5 ms", longest <= 5)


def _read(bank: object) -> float:
    begin = time.perf_counter()
    int((flags_of(bank) != 0).sum())  # type: ignore[arg-type]
    return time.perf_counter() - begin
