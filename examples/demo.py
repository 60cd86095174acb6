"""Attach to programs that nobody here wrote, while they work, and show what they do and what that cost them.

Part one: CPython compressing, hashing and parsing. Every function of the executable is counted at once.
Part two: Redis under its own benchmark. A few functions are timed.
Takes about half a minute. Run by ``make demo``.
"""

import hashlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

import anyprobe
from anyprobe.reports import histogram, table

HERE = Path(__file__).parent
UNPROBED_S, PROBED_S, SETTLE_S = 1.5, 4.0, 0.3
READY_S = 20.0
REDIS_FUNCTIONS = ("a.out:processCommand", "a.out:readQueryFromClient", "a.out:dictFind", "libc:epoll_wait")

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> int:
    """Run both parts; return 0 when everything was as it should be."""
    with tempfile.TemporaryDirectory(prefix="anyprobe-demo-") as folder:
        restored = [count_everything(Path(folder))]
        if shutil.which("redis-server") and shutil.which("redis-benchmark"):
            restored.append(time_redis(Path(folder)))
        else:
            console.print("\n[dim]redis-server is not installed, so its part is left out[/dim]")
    return 0 if all(restored) else 1


def count_everything(folder: Path) -> bool:
    """Count every function of a running CPython; return whether its bytes are restored."""
    python = next((path for path in ("/usr/bin/python3.11", "/usr/bin/python3") if Path(path).exists()), sys.executable)
    rates = folder / "rates"
    with rates.open("w") as output, running([python, str(HERE / "python_workload.py")], stdout=output) as process:
        wait_until(lambda: len(rates_between(rates, 0, time.monotonic())) >= 3, "the workload to start")
        say(f"1. All functions of a running {python} (pid {process.pid}), counted at once")
        before = text_digest(process.pid)
        alone_from = time.monotonic()
        time.sleep(UNPROBED_S)
        alone_until = time.monotonic()
        with anyprobe.attach(process.pid) as session:
            session.count("a.out:*")
            first, probed_from = session.snapshot(), time.monotonic()
            time.sleep(PROBED_S)
            snapshot, probed_until = session.snapshot(), time.monotonic()
            session.detach()
            snapshot_after = session.snapshot()
        freed = time.monotonic()
        time.sleep(UNPROBED_S)
        table.print_counts(snapshot, console, 12)
        unprobed = rates_between(rates, alone_from, alone_until) + rates_between(rates, freed, time.monotonic())
        probed = rates_between(rates, probed_from, probed_until)
        report_cost(statistics.median(unprobed), statistics.median(probed), (snapshot.hits - first.hits) / PROBED_S)
        report_pauses(len(snapshot.sites), snapshot_after.pause_us)
        return report_restored(process, before)


def time_redis(folder: Path) -> bool:
    """Time a few functions of Redis under its own benchmark; return whether its bytes are restored."""
    port = free_port()
    server = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    load = ["redis-benchmark", "-p", str(port), "-t", "get,set", "-n", "100000000", "-c", "20", "-P", "4", "-q"]
    with running(server, stdout=subprocess.DEVNULL) as redis:
        wait_until(lambda: answers(port), "redis-server to answer")
        with running(load, stdout=subprocess.DEVNULL):
            time.sleep(SETTLE_S)
            say(f"2. The latency of four functions of a busy redis-server (pid {redis.pid})")
            before = text_digest(redis.pid)
            with anyprobe.attach(redis.pid) as session:
                session.time(*REDIS_FUNCTIONS)
                time.sleep(PROBED_S)
                snapshot = session.snapshot()
                session.detach()
                pauses = session.snapshot().pause_us
            histogram.print_timings(snapshot, console)
            report_pauses(len(snapshot.functions), pauses, "functions")
            return report_restored(redis, before)


def report_cost(unprobed: float, probed: float, hits_per_second: float) -> None:
    """Print the workload's own rate with and without probes, and what that makes per hit."""
    console.print()
    console.print(
        f"the workload's own rate: {unprobed:,.0f} operations/s unprobed, {probed:,.0f} probed "
        f"([bold]{probed / unprobed:.1%}[/bold]), {hits_per_second:,.0f} hits/s"
    )
    if hits_per_second:
        per_hit = (1 / probed - 1 / unprobed) * 1e9 * probed / hits_per_second
        console.print(f"so a hit costs [bold]{per_hit:.2f} ns[/bold], measured by the program itself")


def report_pauses(count: int, pause_us: dict[str, float], what: str = "sites") -> None:
    """Print how long the threads stood still."""
    arm, disarm = (pause_us.get(name, 0) / 1000 for name in ("arm", "disarm"))
    console.print(f"its threads stood still for {arm:.2f} ms to arm {count:,} {what}, {disarm:.2f} ms to disarm them")


def report_restored(process: "subprocess.Popen[bytes]", before: str) -> bool:
    """Print whether the code is what it was, and the program alive."""
    same, alive = text_digest(process.pid) == before, process.poll() is None
    verdict = "[green]every byte of code is as before[/green]" if same else "[bold red]the code has changed[/bold red]"
    console.print(f"{verdict}, and pid {process.pid} {'runs on' if alive else '[bold red]is gone[/bold red]'}")
    return same and alive


def text_digest(pid: int) -> str:
    """Return a digest of all executable bytes of files that a process has mapped."""
    digest = hashlib.sha256()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            addresses, permissions, _, _, inode, *_ = line.split(maxsplit=5)
            if "x" in permissions and inode != "0" and "memfd:" not in line:
                start, end = (int(part, 16) for part in addresses.split("-"))
                memory.seek(start)
                digest.update(memory.read(end - start))
    return digest.hexdigest()


def rates_between(path: Path, start: float, end: float) -> list[float]:
    """Return the rates that the workload printed between two moments of the monotonic clock."""
    lines = (line.split() for line in path.read_text().splitlines())
    return [float(words[1]) for words in lines if len(words) == 2 and start + 0.1 <= float(words[0]) <= end]


@contextmanager
def running(arguments: list[str], **settings: object) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a program for a scope."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL, **settings)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with a time-out."""
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.02)


def answers(port: int) -> bool:
    """Return whether somebody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """Return a port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(title: str) -> None:
    """Print the title of a part."""
    console.print()
    console.rule(title, align="left", style="dim")


if __name__ == "__main__":
    sys.exit(main())
