"""How long it takes to get in, from the shell and from Python."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bytes_of import text_bytes
from measure import HERE, call_target
from rows import Report

REPEATS = 7
ONE_ATTACH = """
import sys, time
import anyprobe
anyprobe.attach  # imported by now
start = time.perf_counter()
session = anyprobe.attach(int(sys.argv[1]))
probes = session.count(sys.argv[2])
print((time.perf_counter() - start) * 1e3)
assert len(probes) >= 1, session.refused
session.detach()
"""


def attach_ms(pid: int, spec: str, cache: str) -> float:
    """Return milliseconds from the call of attach to the armed probe, in a fresh interpreter, after the import."""
    outcome = subprocess.run(
        [sys.executable, "-c", ONE_ATTACH, str(pid), spec],
        check=False,
        capture_output=True,
        text=True,
        env=dict(os.environ, XDG_CACHE_HOME=cache),
    )
    if outcome.returncode:
        raise RuntimeError(outcome.stderr.strip().splitlines()[-1])
    return float(outcome.stdout)


def cold_and_warm(pid: int, spec: str, repeats: int) -> tuple[float, float]:
    """Return the medians with an empty cache and with a filled one."""
    cold, warm = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(attach_ms(pid, spec, cache))
            warm.append(attach_ms(pid, spec, cache))
    return statistics.median(cold), statistics.median(warm)


def attach_rows(report: Report) -> None:
    """A small program with libc, and the interpreter."""
    with call_target() as target:
        cold, warm = cold_and_warm(target.pid, "libc:getenv", REPEATS)
    report.add("attach to first armed probe, libc, warm cache", f"{warm:.0f} ms", "<= 60 ms", warm <= 60)
    report.add("attach to first armed probe, libc, cold cache", f"{cold:.0f} ms", "<= 150 ms", cold <= 150)
    with python_target() as interpreter:
        cold, warm = cold_and_warm(interpreter.pid, "a.out:PyObject_Malloc", 3)
    report.add(
        "the same in /usr/bin/python3.11, cold cache",
        f"{cold:.0f} ms",
        "<= 1000 ms",
        cold <= 1000,
        f"warm {warm:.0f} ms",
    )


@contextmanager
def python_target() -> Iterator["subprocess.Popen[str]"]:
    """Run an interpreter that works, for the length of a ``with`` block."""
    command = ["/usr/bin/python3.11", str(HERE / "workload.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as interpreter:
        assert interpreter.stdout is not None
        interpreter.stdout.readline()
        try:
            yield interpreter
        finally:
            interpreter.kill()


def timed(action: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median seconds of an action."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def shell_rows(report: Report) -> None:
    """The command line: --help, and one function counted."""
    command = str(Path(sys.executable).with_name("anyprobe"))
    seconds = timed(lambda: subprocess.run([command, "--help"], capture_output=True, check=True))
    report.add("anyprobe --help", f"{seconds:.3f} s", "<= 0.2 s", seconds <= 0.2)
    seconds = timed(lambda: ready_from_shell(command))
    report.add("count of one function ready, from the shell", f"{seconds:.3f} s", "<= 0.6 s", seconds <= 0.6)
    with call_target() as target:
        count = [command, "count", "-p", str(target.pid), "a.out:work", "--for", "0"]
        seconds = timed(lambda: subprocess.run(count, capture_output=True, check=True))
    report.add("count of one function, from the shell and back", f"{seconds:.3f} s", "<= 0.35 s", seconds <= 0.35)


def ready_from_shell(command: str) -> None:
    """Return when the probe's bytes are in the target."""
    with call_target() as target:
        before = text_bytes(target.pid)
        arguments = [command, "count", "-p", str(target.pid), "--quiet", "a.out:work"]
        with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as controller:
            while text_bytes(target.pid) == before:
                if controller.poll() is not None:
                    assert controller.stderr is not None
                    raise RuntimeError(controller.stderr.read().decode().strip())
            controller.terminate()
