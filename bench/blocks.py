"""Every basic block of CPython: what finding, arming and counting them costs, and what a peer's counting costs."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import peers
from measure import HERE
from rows import Report

import anyprobe

PYTHON = "/usr/bin/python3.11"
MIX = HERE / "mix.py"
ROUNDS = 20
"""Of every part of the mix, for one figure."""
UNTIL_KILLED = 1_000_000
"""More rounds than anybody waits for."""
PAIRS = 12
"""Runs of one process and of another by turns."""
ONE_MODULE = """
import gc, sys, time
gc.disable()
from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.binary.liveness.module import ModuleLiveness
import iced_x86, numpy
begin = time.process_time()
text = Image.open(sys.argv[1]).text()
code_map = CodeMap(text)
code_map.survey()
functions = [f for s in text.function_starts.tolist() if isinstance(f := code_map.function_at(s), FunctionCode)]
known = sum(function.complete is None for function in functions)
blocks = sum(len(function.blocks) for function in functions)
edges = time.process_time() - begin
ModuleLiveness(code_map)
print(edges, time.process_time() - begin, blocks, known, len(functions), sum(len(r) for r in text.ranges))
"""
KEPT = """
import sys, time
from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.images.image import Image
from anyprobe.binary.liveness.site import site_scratch
import anyprobe.binary.liveness.module
begin = time.process_time()
image = Image.open(sys.argv[1])
code_map = CodeMap(image.text(), image.cold_parts)
code_map.survey()
function = code_map.function_at(image.functions.starts.tolist()[100])
site_scratch(code_map, function, function.start)
print(time.process_time() - begin)
"""
ONE_FUNCTION = """
import statistics, sys, time
from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.binary.liveness.site import SiteLiveness
text = Image.open(sys.argv[1]).text()
code_map = CodeMap(text)
begin = time.process_time()
code_map.entries.references
once = time.process_time() - begin
seconds = []
for start in text.function_starts.tolist()[500:2500:10]:
    begin = time.process_time()
    function = code_map.function_at(start)
    if isinstance(function, FunctionCode):
        function.complete, function.blocks
        SiteLiveness(code_map, function)
        seconds.append(time.process_time() - begin)
print(statistics.median(seconds), sorted(seconds)[len(seconds) * 99 // 100], once)
"""

STEPS = ("resolve", "plan", "prepare", "arm")
ARMING = """
import os, sys, time
began, cpu = time.perf_counter(), time.process_time()
import anyprobe
pid = int(sys.argv[2])
with anyprobe.attach(pid) as session:
    session.count("a.out:*%block")
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    snapshot, engine = session.snapshot(), session.engine
    threads = len(os.listdir(f"/proc/{pid}/task"))
    pauses = [snapshot.pause_us[name] / 1e3 for name in ("prepare", "arm")]
    from bytes_of import memfd_bytes
    code = sum(home.cursor - home.code.address for home in session.splicing.holdings.code_regions) / 1e6
    print(seconds, cpu, len(snapshot.sites), threads, *pauses, memfd_bytes(pid) / 1e6, code, *engine.seconds.values())
"""


def analysis_rows(report: Report, _share: float) -> None:
    """Blocks, edges, jump tables and liveness of a module of 2.8 MB, in a fresh interpreter, on one core."""
    with tempfile.TemporaryDirectory() as cache:
        found = [_measured(ONE_MODULE, cache) for _ in range(3)]
        edges, seconds, blocks, known, functions, size = (statistics.median(each) for each in zip(*found, strict=True))
        report.add(
            f"analysis of python3.11 ({size / 1e6:.1f} MB), CPU time",
            f"{seconds:.2f} s",
            "<= 3 s (aim 1 s)",
            seconds <= 3,
            f"{blocks:.0f} blocks; {edges:.2f} s without liveness; {known:.0f} of {functions:.0f} functions complete",
        )
        median, slow, once = _measured(ONE_FUNCTION, cache)
        report.add(
            "  one function, the module's references known",
            f"{1e3 * median:.2f} ms (99 of 100: {1e3 * slow:.1f} ms)",
            "<= 5 ms",
            median <= 0.005,
            f"these are found once per module, in {1e3 * once:.0f} ms that the row above contains",
        )
        _kept_seconds(cache)
        kept = statistics.median(_kept_seconds(cache) for _ in range(5))
        report.add("  functions, references and liveness from the cache", f"{kept:.3f} s", "<= 0.1 s", kept <= 0.1)


def _measured(program: str, cache: str, *arguments: str) -> list[float]:
    """Return what a program prints, nothing being in the cache."""
    shutil.rmtree(os.path.join(cache, "anyprobe"), ignore_errors=True)
    return _printed(program, cache, *arguments)


def _printed(program: str, cache: str, *arguments: str) -> list[float]:
    environment = dict(os.environ, XDG_CACHE_HOME=cache, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-c", program, PYTHON, *arguments]
    outcome = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return [float(word) for word in outcome.stdout.split()]


def _kept_seconds(cache: str) -> float:
    return _printed(KEPT, cache)[0]


class Mix:
    """An interpreter that runs the mix on demand."""

    def __init__(self, *wrapper: str, beside: int = 0) -> None:
        """Start it, perhaps under another program, perhaps with threads that never rest."""
        command = [*wrapper, PYTHON, str(MIX), str(beside)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{command[0]} ended: {self.process.wait()}")

    def start(self, rounds: int) -> None:
        """Have it run, and don't wait for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{rounds}\n")
        self.process.stdin.flush()

    def run(self, rounds: int = ROUNDS) -> list[float]:
        """Return the CPU seconds of each part."""
        self.start(rounds)
        assert self.process.stdout is not None
        return [float(word) for word in self.process.stdout.readline().split()]


@contextmanager
def mix(*wrapper: str, beside: int = 0) -> Iterator[Mix]:
    """Run the mix for the length of a ``with`` block."""
    running = Mix(*wrapper, beside=beside)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def _beside(target: Mix, other: Mix) -> list[float]:
    """Return how long each part takes in one process as against another, by turns: the machine's speed changes."""
    turns = [[mine / its for mine, its in zip(target.run(), other.run(), strict=True)] for _ in range(PAIRS)]
    return [statistics.median(part) for part in zip(*turns, strict=True)]


def _slow_down(report: Report, what: str, spec: str, limit: float) -> None:
    """One row: the mix with everything counted against another process, as against that one without, before."""
    with mix() as target, mix() as other:
        bare = _beside(target, other)
        with anyprobe.attach(target.process.pid) as session:
            session.count(spec)
            for _ in range(3):  # pages of counters and patches are touched for the first time
                target.run()
            probed = _beside(target, other)
            snapshot = session.snapshot()
    parts = [slow / fast for fast, slow in zip(bare, probed, strict=True)]
    ratio = statistics.geometric_mean(parts)
    each = ", ".join(f"{part:.2f}" for part in parts)
    report.add(
        f"CPython, {what} counted, slow-down",
        f"{ratio:.2f} x",
        f"<= {limit} x",
        ratio <= limit,
        f"parts {each}; {len(snapshot.sites)} sites, {len(snapshot.refused)} refused, "
        f"{snapshot.hits / (PAIRS + 3):.3g} hits a run",
    )


def _peers(report: Report) -> None:
    """Valgrind's lackey, which counts guest instructions and edges at every block's end; no other is to be had."""
    for tool in peers.TRANSLATORS:
        report.skip(f"  the mix under {tool}", peers.why_unmeasured(tool))
    if shutil.which("valgrind") is None:
        report.skip("  the same under valgrind", "valgrind is not installed")
        return
    with mix() as target:
        target.run()
        bare = sum(target.run(2))
    for tool, options in (("none", ()), ("callgrind", ("--callgrind-out-file=/dev/null",)), ("lackey", ())):
        with mix("valgrind", "-q", f"--tool={tool}", *options) as target:
            target.run(1)
            report.add(f"  the mix under valgrind --tool={tool}", f"{sum(target.run(2)) / bare:.1f} x")


def block_rows(report: Report, share: float) -> None:
    """Arm every block of an interpreter of two threads, then see what counting costs, and what it costs peers."""
    for busy in (False, True):
        _arming(report, busy=busy)
    _slow_down(report, "every function", "a.out:*", 1.15)
    _slow_down(report, "every block", "a.out:*%block", 2.0)
    if share == 1.0:
        _peers(report)


def _arming(report: Report, *, busy: bool) -> None:
    """Rows: every block of a program of two threads armed by a fresh interpreter, nothing being in the cache."""
    with mix(beside=1) as target, tempfile.TemporaryDirectory() as cache:
        if busy:
            target.start(UNTIL_KILLED)
        found = _measured(ARMING, cache, str(target.process.pid))
    seconds, cpu, sites, threads, mapping, writing, memory, code, *steps = found
    named = ", ".join(f"{name} {value:.2f}" for name, value in zip(STEPS, steps, strict=True))
    report.add(
        f"arming {sites:.0f} blocks of python3.11, its {threads:.0f} threads {'running' if busy else 'at rest'}",
        f"{seconds:.1f} s ({cpu:.1f} s CPU)",
        "<= 15 s",
        seconds <= 15 and sites >= 100_000,
        named,
    )
    report.add(
        f"  pause of {threads:.0f} threads",
        f"{mapping:.1f} to map memory + {writing:.1f} ms to write",
        "<= 200 ms together, 2 threads",
        mapping + writing <= 200 and threads == 2,
    )
    report.add("  memory in the target", f"{memory:.1f} MB", "<= 100 MB", memory <= 100, f"{code:.1f} MB of patches")
