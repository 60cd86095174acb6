"""Many functions at once: a working interpreter, and a program of five thousand functions."""

import collections
import queue
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from bytes_of import changed_pages, resident_kb, text_bytes
from latency import python_target
from measure import BUILD, Stopwatch, call_target, estimate
from rows import Report

import anyprobe

ROOT = Path(__file__).parent.parent
FUNCTIONS = 5000
THREADS = 8
WORKLOAD_PAIRS = 6
TIMED_PAIRS = 4


class Rates:
    """Operations per second of the workload, as it prints them."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Read on a thread of our own."""
        self._process = process
        self._rates: queue.Queue[tuple[float, float]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            start, rate = line.split()
            self._rates.put((float(start), float(rate)))

    def window(self, samples: int = 4) -> float:
        """Return the median of the next samples that began after now."""
        begin, found = time.monotonic(), []
        while len(found) < samples:
            if self._process.poll() is not None:
                raise RuntimeError("the workload died")
            start, rate = self._rates.get(timeout=30)
            if start >= begin:
                found.append(rate)
        return statistics.median(found)


def python_rows(report: Report) -> None:
    """Every function of a running interpreter, counted and timed."""
    interpreter_row(report)
    timed_interpreter_rows(report)


def interpreter_row(report: Report) -> None:
    """Every function of a running interpreter counted."""
    with python_target() as process:
        subprocess.run(["taskset", "-acp", "1", str(process.pid)], check=False, capture_output=True)
        rates = Rates(process)
        rates.window()
        bare, probed, ratios, setups, removals = [], [], [], [], []
        chosen: dict[str, int] = {}
        for _ in range(WORKLOAD_PAIRS):
            bare.append(rates.window())
            with Stopwatch() as setup:
                session = anyprobe.attach(process.pid)
                session.count("a.out:*")
            probed.append(rates.window())
            snapshot = session.snapshot()
            chosen = dict(collections.Counter(str(site.strategy) for site in snapshot.sites))
            with Stopwatch() as removal:
                session.detach()
            ratios.append(probed[-1] / bare[-1])
            setups.append(setup.seconds)
            removals.append(removal.seconds)
        share = estimate(ratios)
        report.add(
            "all functions of python3.11 counted, rate",
            f"{100 * share.median:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]",
            ">= 85 % of unprobed",
            share.median >= 0.85,
            f"{statistics.median(bare):.0f} -> {statistics.median(probed):.0f} operations/s; sites {chosen}; "
            f"{len(snapshot.refused)} refused",
        )
        first, later = setups[0], statistics.median(setups[1:])
        report.add("  set-up", f"{later:.2f} s (first {first:.2f})", "<= 2 s", max(first, later) <= 2)
        slowest = statistics.median(removals)
        report.add("  removal", f"{slowest:.3f} s", "<= 0.2 s", slowest <= 0.2)


def timed_interpreter_rows(report: Report) -> None:
    """Every function of a running interpreter timed, beside what two readings of the clock per call would leave."""
    with call_target() as target:
        clock = min(target.run("rdtsc", 10_000_000)[0] for _ in range(5))
    with python_target() as process:
        subprocess.run(["taskset", "-acp", "1", str(process.pid)], check=False, capture_output=True)
        rates = Rates(process)
        rates.window()
        for self_time in (False, True):
            _timed_interpreter(report, process.pid, rates, clock, self_time=self_time)


def _timed_interpreter(report: Report, pid: int, rates: Rates, clock: float, *, self_time: bool) -> None:
    shares, rows, setups = [], [], []
    for _ in range(TIMED_PAIRS):
        bare = rates.window()
        with anyprobe.attach(pid, self_time=self_time) as session:
            begin = time.process_time()
            session.time("a.out:*")
            setups.append(time.process_time() - begin)
            before, started = session.snapshot(), time.monotonic()
            timed = rates.window()
            calls = sum(each.count for each in session.snapshot().functions) - sum(
                each.count for each in before.functions
            )
            each = calls / ((time.monotonic() - started) * timed)
        left = 1 / (1 / bare + each * 2 * clock * 1e-9)
        shares.append(timed / left)
        rows.append((bare, timed, left, each))
    share = estimate(shares)
    bare, timed, left, each = (statistics.median(column) for column in zip(*rows, strict=True))
    report.add(
        "  the same with self times" if self_time else "all functions of python3.11 timed, rate",
        f"{100 * share.median:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}] of {left:.0f} operations/s",
        ">= 85 % of what two rdtsc per call leave",
        share.median >= 0.85,
        f"{bare:.0f} -> {timed:.0f} operations/s, {each:.0f} calls each; 2 rdtsc of {clock:.1f} ns",
    )
    first, later = setups[0], statistics.median(setups[1:])
    report.add("  set-up, of a processor", f"{later:.2f} s (first {first:.2f})", "<= 5 s", later <= 5)


def big_program() -> Path:
    """Build the program of five thousand functions."""
    targets = ROOT / "tests" / "live" / "targets"
    source = BUILD / "many.c"
    command = [sys.executable, str(targets / "many_functions.py"), str(FUNCTIONS)]
    source.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    program = BUILD / "many"
    subprocess.run(["gcc", "-O2", "-pthread", "-I", str(targets), str(source), "-o", str(program)], check=True)
    return program


def arming_rows(report: Report) -> None:
    """Five thousand functions of a busy process of eight threads."""
    with subprocess.Popen(
        [str(big_program()), str(THREADS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            _arming(report, process.pid)
        finally:
            process.kill()


def _arming(report: Report, pid: int) -> None:
    armed_s, pauses, preparing, disarmed_s, pages, sites, memory = [], [], [], [], 0, 0, 0
    before = text_bytes(pid)
    for _ in range(5):
        with anyprobe.attach(pid) as session:
            with Stopwatch() as arming:
                probes = session.count("a.out:busy_*")
            sites = len(session.snapshot().sites)
            pauses.append(session.snapshot().pause_us["arm"])
            preparing.append(session.snapshot().pause_us["prepare"])
            pages = changed_pages(before, text_bytes(pid))
            memory = resident_kb(pid, ("/memfd:",)) * 1024
            with Stopwatch() as disarming:
                session.remove(*probes)
            armed_s.append(arming.seconds)
            disarmed_s.append(disarming.seconds)
    arm, disarm, pause, prepare = (statistics.median(v) for v in (armed_s, disarmed_s, pauses, preparing))
    budget = 500 + 25 * (THREADS + 1) + 5 * pages
    report.add(f"arming {sites} functions", f"{arm:.2f} s", "<= 2 s", arm <= 2 and sites == FUNCTIONS)
    report.add("  pause", f"{pause:.0f} us", f"<= {budget} us ({THREADS + 1} threads, {pages} pages)", pause <= budget)
    report.add("  another, before it, in which memory is mapped", f"{prepare:.0f} us")
    report.add("disarming them", f"{disarm:.3f} s", "<= 0.3 s", disarm <= 0.3)
    each = memory / sites
    report.add("memory in the target, per site", f"{each:.0f} bytes of patch", "<= 200 bytes", each <= 200)
