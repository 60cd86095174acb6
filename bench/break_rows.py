"""What a false condition of a breakpoint adds to a call, gdb's beside it; what tests before all stores slow down."""

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from blocks import Mix
from measure import call_target, pairs
from rows import Report

import anyprobe
from anyprobe.probes.specs.spec import parsed
from anyprobe.probes.watching.store_watcher import StoreWatcher

CALLS, PAIRS = 30_000_000, 9
_LONGEST = 30.0


def break_rows(report: Report, scale: float) -> None:
    """Print the rows."""
    calls = max(int(CALLS * scale), 1_000_000)
    for name, condition, must in (
        ("a register", lambda x: x == -(1 << 30), 1.5),
        ("memory that the function reads", lambda p: p.first == -(1 << 30), 20.0),
        ("two members of a structure", lambda p: p.first != -(1 << 30) and p.second == -(1 << 30), 20.0),
    ):
        with call_target() as target, anyprobe.attach(target.pid) as session:
            added, bare, _ = pairs(target, "member", calls, PAIRS, lambda s=session, c=condition: _placed(s, c))
        holds = added.median <= must
        report.add(
            f"false condition on {name}", f"{added!s} ns", f"<= {must:g} ns", holds, f"bare: {bare:.2f} ns a call"
        )
    _gdb(report)
    _stores(report, scale)


def _placed(session: anyprobe.Session, condition: Callable[..., object]) -> Callable[[], object]:
    placed = session.callbacks.place(parsed(("a.out:member",)), _never, timeout=_LONGEST, when=condition)
    if session.refused:
        raise RuntimeError(f"refused: {session.refused}")
    return lambda: session.remove(*placed)


def _never(hit: object) -> None:
    raise RuntimeError(f"the condition does not hold: {hit}")


def _gdb(report: Report) -> None:
    """Print what gdb's own breakpoint with the condition on memory adds."""
    if shutil.which("gdb") is None:
        report.skip("the same by gdb", "gdb is not installed")
        return
    with call_target() as target:
        commands = ["-ex", "break member if p->first == -1073741824", "-ex", "continue"]
        gdb = subprocess.Popen(
            ["gdb", "-q", "-p", str(target.pid), "-batch", *commands],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert gdb.stdout is not None
        try:
            next(line for line in gdb.stdout if line.startswith("Breakpoint 1"))
            found = _elapsed(target.run)
        finally:
            gdb.terminate()
            gdb.wait()
    report.add("the same by gdb", f"{found:,.0f} ns")


def _elapsed(run: Callable[[str, int], object]) -> float:
    """Return nanoseconds of a call by the wall: the program waits while gdb decides."""
    turns = []
    for _ in range(3):
        begin = time.monotonic_ns()
        run("member", 500)
        turns.append((time.monotonic_ns() - begin) / 500)
    return statistics.median(turns)


def _stores(report: Report, scale: float) -> None:
    """Print how much slower CPython is where each of its stores is tested for a range, against one without."""
    target, other = Mix(), Mix()
    try:

        def ratio() -> float:
            turns = range(max(int(11 * scale), 3))
            return statistics.median(sum(target.run(2)) / sum(other.run(2)) for _ in turns)

        target.run(2)
        other.run(2)
        before, begin = ratio(), time.process_time()
        maps = Path(f"/proc/{target.process.pid}/maps").read_text().splitlines()
        heap = next(line for line in maps if line.endswith("[heap]"))
        with StoreWatcher(target.process.pid, [f"0x{heap.split('-')[0]}:64"], ["a.out"]) as watcher:
            seconds = time.process_time() - begin
            target.run(2)
            slower = ratio() / before
            sites = watcher.sites
    finally:
        target.process.kill()
        other.process.kill()
    note = f"{sites:,} stores, placed in {seconds:.1f} s of processor time"
    report.add("all stores of CPython tested for a range", f"{slower:.2f} x slower", "<= 1.8", slower <= 1.8, note)
