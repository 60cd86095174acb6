"""What it adds to follow a fork and an exec, and a ``dlopen``, and what each further process costs the controller."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rows import Report

import anyprobe
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
        if (argc > 2) usleep(atoi(argv[2]));
        else waitpid(child, 0, 0);
    }
    while (wait(0) > 0) {}
    return 0;
}
"""
FUNCTION = """
static volatile int data_%d[64];
int loaded_%d(int n) {
    int sum = 0;
    for (int at = 0; at < n; at++) sum += data_%d[at & 63] > %d ? data_%d[at + %d & 63] : at * 3;
    return sum == %d ? loaded_%d(sum - 1) : sum;
}
"""
LOADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
int main(int argc, char **argv) {
    struct timespec begin, end;
    puts("ready"), fflush(stdout), getchar();
    clock_gettime(CLOCK_MONOTONIC, &begin);
    void *library = dlopen(argv[argc - 1], RTLD_NOW);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.6f\\n", library ? end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9 : -1), fflush(stdout);
    return getchar() == 0;
}
"""
STAYS = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    char path[4096];
    for (int n = 0; n < atoi(argv[2]); n++) {
        snprintf(path, sizeof path, "%s/plug%d.so", argv[1], n);
        void *library = dlopen(path, RTLD_NOW);
        if (!library) return 1;
        ((void (*)(void))dlsym(library, "plug_work"))();
    }
    return argc != 3;
}
"""
RATED, RATES, STAYING = 200, (25, 100, 200), 100
EXECUTIONS, PROCESSES, ROUNDS = 40, 100, 5
FUNCTIONS, LOADINGS = 100, 20
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
        at_a_rate(report, str(program), max(int(RATED * scale), 25))
        whole(report)
        staying(report, Path(folder), max(int(STAYING * scale), 40))
        loaded(report, Path(folder), max(int(LOADINGS * scale), 5))
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


def at_a_rate(report: Report, program: str, count: int) -> None:
    """Print how many of programs that are executed at a rate are probed, and what each takes."""
    for rate in RATES:
        with Followed.run([program, str(count), str(round(1e6 / rate))]) as tree:
            tree.count(SPEC)
            tree.resume()
            used = time.process_time()
            while tree.wait(0.05) is None:
                tree.sweep()
            processor = (time.process_time() - used) / count * 1e3
            probed = len(tree.snapshots()) - 1
        name = f"{count} executions of a known program, {rate} a second: probed"
        notes = f"{processor:.1f} ms of a processor each"
        report.add(name, f"{probed / count * 100:.0f} %", "100 %, <= 8 ms", probed == count and processor <= 8, notes)


def whole(report: Report) -> None:
    """Print what ten short programs take of which every function is counted, or timed with self times."""
    script = "for n in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done"
    for name, options, arm, most in (
        ("counted", {}, Followed.count, 0.5),
        ("timed with self times", {"self_time": True}, Followed.time, 1.0),
    ):
        for _ in ("to be known", "to be measured"):
            with Followed.run(["sh", "-c", script], **options) as tree:
                used, before = time.process_time(), resident()
                for spec in ("a.out:*", "libc:*"):
                    arm(tree, spec)
                tree.resume()
                while tree.wait(0.05) is None:
                    tree.sweep()
                tree.snapshots()
                seconds, megabytes = time.process_time() - used, (resident() - before) / (1 << 20) / 10
        notes = f"of a processor; {megabytes:.1f} MB for each program (<= 20 MB)"
        row = f"ten /bin/true, all functions of program and libc {name}"
        report.add(row, f"{seconds:.1f} s", f"<= {most} s", seconds <= most and megabytes <= 20, notes)


def staying(report: Report, folder: Path, count: int) -> None:
    """Print what a ``dlopen`` takes when many libraries are there, and how that grows."""
    (folder / "stays.c").write_text('void plug_work(void) { __asm__ volatile("nop;nop;nop;nop;nop"); }')
    (folder / "host.c").write_text(STAYS)
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-o", folder / "plug0.so", folder / "stays.c"], check=True)
    subprocess.run(["cc", "-O1", "-o", folder / "host", folder / "host.c", "-ldl"], check=True)
    for number in range(1, 4 * count):
        shutil.copy(folder / "plug0.so", folder / f"plug{number}.so")
    each = []
    for number in (count, 4 * count):
        with anyprobe.run([str(folder / "host"), str(folder), str(number)], pending="always") as session:
            session.count("plug*:plug_work")
            used = time.process_time()
            session.wait()
            each.append((time.process_time() - used) / number * 1e3)
            assert session.snapshot().hits == number
    growth = each[1] / each[0]
    notes = f"{each[0]:.1f} and {each[1]:.1f} ms of a processor"
    report.add(f"a dlopen with {4 * count} libraries / with {count}", f"{growth:.2f}", "<= 2", growth <= 2, notes)


def loaded(report: Report, folder: Path, rounds: int) -> None:
    """Print how long a ``dlopen`` takes whose library has a hundred functions to be probed, known to the cache or not.

    Each round is a process and a session of its own; what the program waits without probes is subtracted.
    """
    numbers = ((number, max(number - 1, 0)) for number in range(FUNCTIONS))
    (folder / "loaded.c").write_text("".join(FUNCTION % (*[number] * 7, before) for number, before in numbers))
    (folder / "loads.c").write_text(LOADS)
    compiler = ["cc", "-O2", "-fPIC"]
    subprocess.run([*compiler, "-c", "-o", folder / "loaded.o", folder / "loaded.c"], check=True)
    subprocess.run(["cc", "-O1", "-o", folder / "loads", folder / "loads.c", "-ldl"], check=True)

    def linked(name: str) -> Path:
        """Return the library with a build-id of its own, by which caches know it."""
        library = folder / name
        identity = f"-Wl,--build-id=0x{os.urandom(20).hex()}"
        subprocess.run([*compiler, "-shared", identity, "-o", library, folder / "loaded.o"], check=True)
        return library

    known, plain, waited, used = linked("libloaded.so"), [], {"known": [], "unknown": []}, {"known": [], "unknown": []}
    load(folder, known, probed=True)
    for number in range(rounds):
        plain.append(load(folder, known, probed=False)[0])
        for kind, library in (("known", known), ("unknown", linked(f"libloaded{number}.so"))):
            seconds, processor = load(folder, library, probed=True)
            waited[kind].append(seconds), used[kind].append(processor)
    for kind, most in (("known", 5), ("unknown", 25)):
        added = [(each - statistics.median(plain)) * 1e3 for each in waited[kind]]
        median = statistics.median(added)
        notes = (
            f"{min(added):.1f} ms at best; {statistics.median(used[kind]) * 1e3:.1f} ms of a processor in the "
            f"controller, {min(used[kind]) * 1e3:.1f} ms at best; {rounds} sessions"
        )
        name = f"a dlopen waits for {FUNCTIONS} probes, library {kind}"
        report.add(name, f"{median:.1f} ms", f"<= {most} ms", median <= most, notes)


def load(folder: Path, library: Path, *, probed: bool) -> tuple[float, float]:
    """Return the seconds of a ``dlopen``, and those of a processor that the controller takes meanwhile."""
    pipe = subprocess.PIPE
    with subprocess.Popen([folder / "loads", library], stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout.readline() == "ready\n"
        with anyprobe.attach(program.pid) if probed else nullcontext() as session:
            probes = session.count("libloaded*:loaded_*", follow=True) if session is not None else []
            begin = time.process_time()
            program.stdin.write("\n")
            program.stdin.flush()
            seconds = float(program.stdout.readline())
            processor = time.process_time() - begin
            assert seconds >= 0
            assert sum(len(each.places) for each in probes) == FUNCTIONS * probed
        program.stdin.close()
    return seconds, processor


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
