"""What it adds to follow a fork and the exec of a small command, and what each further process costs the controller."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rows import Report

from anyprobe import Followed, SessionGroup
from anyprobe.probes.following.appearing import Appearing
from anyprobe.probes.following.selection import Selection
from anyprobe.probes.following.watches import Connector
from anyprobe.probes.options import SessionOptions

PROGRAM = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    for (int n = argc > 1 ? atoi(argv[1]) : 1; n > 0; n--) {
        pid_t child = fork();
        if (child == 0) execl("/bin/true", "true", (char *)0), _exit(1);
        waitpid(child, 0, 0);
    }
    return 0;
}
"""
EXECUTIONS, PROCESSES, ROUNDS = 40, 100, 5
NEWCOMERS, INTERVAL = 200, 0.01
SPEC = "libc:malloc"
SLEEPER = "sleep"


def following_rows(report: Report, scale: float) -> None:
    """Print the rows."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "executes.c"), Path(folder, "executes")
        source.write_text(PROGRAM)
        subprocess.run(["cc", "-O1", "-o", program, source], check=True)
        executed(report, str(program), max(int(EXECUTIONS * scale), 10))
    together(report)
    newcomers(report, max(int(NEWCOMERS * scale), 10))


def executed(report: Report, program: str, count: int) -> None:
    """Print what is added to each fork and exec of ``/bin/true``, known to the cache."""
    added, processor = [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        subprocess.run([program, str(count)], check=True)
        plain = time.perf_counter() - begin
        with Followed.run([program, str(count)]) as tree:
            tree.count(SPEC)
            tree.resume()
            begin, used = time.perf_counter(), time.process_time()
            while tree.wait(0.05) is None:
                tree.sweep()
            added.append((time.perf_counter() - begin - plain) / count * 1e3)
            processor.append((time.process_time() - used) / count * 1e3)
            assert len(tree.snapshots()) == count + 1
    name = "following fork + exec of a small command, added"
    notes = (
        f"{statistics.median(processor):.1f} ms of a processor in the controller; median of {ROUNDS} x {count} execs"
    )
    report.add(name, f"{statistics.median(added):.1f} ms", "<= 15 ms", statistics.median(added) <= 15, notes)


def together(report: Report) -> None:
    """Print how long it takes to arm a function in many processes of one image, and what each takes of memory."""
    with processes(PROCESSES + 1) as pids, SessionGroup.attach(pids[:1]) as first:
        first.count(SPEC)
        before, begin = resident(), time.perf_counter()
        with SessionGroup.attach(pids[1:]) as group:
            group.count(SPEC)
            seconds, memory = time.perf_counter() - begin, (resident() - before) / PROCESSES
            assert all(probe.armed for session in group for probe in session.probes)
    report.add(f"{PROCESSES} processes, one function each: armed", f"{seconds:.2f} s", "<= 5 s", seconds <= 5)
    megabytes = memory / (1 << 20)
    report.add("memory per further process of one image", f"{megabytes:.2f} MB", "<= 2 MB", megabytes <= 2)


def newcomers(report: Report, count: int) -> None:
    """Print how long it takes until processes are probed that appear one after the other, each from its start on."""
    try:
        watch = Connector()
    except OSError:
        return
    with Appearing((), SessionOptions(), Selection((SLEEPER,)), lambda each: each.count(SPEC), watch=watch) as group:
        group.begin()
        running, begin, used = [], time.perf_counter(), time.process_time()
        try:
            for number in range(count):
                running.append(subprocess.Popen([SLEEPER, "1000"]))
                time.sleep(max(begin + (number + 1) * INTERVAL - time.perf_counter(), 0))
            while len(group) + group.too_short < count:
                time.sleep(0.001)
            seconds, processor = time.perf_counter() - begin, time.process_time() - used
        finally:
            for each in running:
                each.kill()
                each.wait()
    notes = f"one every {INTERVAL * 1e3:.0f} ms; {processor / count * 1e3:.1f} ms of a processor in the controller each"
    report.add(f"{count} processes that appear: armed, each", f"{seconds / count * 1e3:.1f} ms", "", None, notes)


@contextmanager
def processes(count: int) -> Iterator[list[int]]:
    """Have so many programs of one image sleep."""
    running = [subprocess.Popen(["sleep", "1000"]) for _ in range(count)]
    try:
        for each in running:
            while os.path.basename(os.readlink(f"/proc/{each.pid}/exe")) == os.path.basename(sys.executable):
                time.sleep(0.001)
        yield [each.pid for each in running]
    finally:
        for each in running:
            each.kill()
            each.wait()


def resident() -> int:
    """Return how much memory this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
