"""What a false condition of a breakpoint adds to each call, and gdb's beside it."""

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable

from measure import call_target, pairs
from rows import Report

import anyprobe
from anyprobe.probes.specs.spec import parsed

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
