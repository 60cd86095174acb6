"""``anyprobe offcpu``: for what threads slept, and how long, is what the program itself has measured."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack

import pytest

import anyprobe
from anyprobe.core.errors import UsageError
from anyprobe.data.findings.offcpu import ASLEEP, KERNEL, Cause, State
from anyprobe.data.snapshots.last_results import results_at_end
from anyprobe.probes.waiting.offcpu import place_offcpu
from live.test_command_line import anyprobe as command
from live.test_command_line import start
from live.test_locks import NO_LIBRARY, nameless_libc
from support.driver import build, has_ended, wait_until
from support.seen_probes import is_probed

pytestmark = pytest.mark.live
TIMES, NAP_NS, PROCESSES = 20, 4_990_000, 4
CAUSES = {
    "naps": "timer",
    "awaits_condition": "condition",
    "awaits_semaphore": "lock",
    "awaits_mutex": "lock",
    "awaits_rwlock": "lock",
    "polls": "poll",
    "awaits_signal": "signal",
    "reads": "io",
    "receives": "socket",
    "joins": "thread",
    "waits_for_child": "child",
}
ALWAYS_WAIT = {name for name in CAUSES if name not in {"reads", "receives", "joins", "waits_for_child"}}
"""What waits for a time; for another thread it may be late."""
DOUBT_NS = 200_000
"""Time off processors between the two clocks of the program, or of anyprobe, for each wait."""


@pytest.fixture(scope="module")
def program():
    return str(build("sleeps_for_reasons.c", "-fno-inline", "-fno-optimize-sibling-calls"))


@pytest.mark.parametrize("stripped", [False, True], ids=["as it is", "a C library without names"])
def test_each_wait_has_its_cause_and_its_time(tmp_path, program, stripped):
    environment = os.environ | ({"LD_LIBRARY_PATH": nameless_libc(tmp_path)} if stripped else {})
    results = tmp_path / "results.json"
    found = command("offcpu", "--json", "-o", str(results), "--", program, input="\n", env=environment)
    assert found.returncode == 0, found.stderr
    truth = json.loads(found.stdout[found.stdout.index("{") :])
    stacks = json.loads(results.read_text())["stacks"]
    for name, cause in CAUSES.items():
        within = [each for each in stacks if any(f":{name}+" in frame for frame in each["frames"])]
        own = [each for each in within if each["cause"] == cause]
        off, count = (sum(each[part] for each in own) for part in ("off_ns", "count"))
        elsewhere = sum(each["off_ns"] for each in within) - off  # other calls, in which the thread lost its processor
        assert -0.001 * truth[name] <= truth[name] - off - elsewhere <= 0.02 * truth[name] + TIMES * DOUBT_NS, (
            name,
            off,
            truth[name],
        )
        if name in ALWAYS_WAIT:
            assert (name, count) == (name, TIMES)
            assert off >= TIMES * NAP_NS, name
        else:
            assert 0 < count <= TIMES, name
    idle = sum(each["off_ns"] for each in stacks if any(":does_not_wait+" in frame for frame in each["frames"]))
    assert idle <= truth["does_not_wait"] + TIMES * DOUBT_NS


def test_a_running_program_is_shown_by_what_it_waits_for(program):
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with start("offcpu", "-p", str(process.pid)) as shown:
            wait_until(lambda: is_probed(process.pid, "sigtimedwait"), "the probes are there")
            process.stdin.write("\n")
            process.stdin.close()
            text = shown.stdout.read()
        assert process.wait() == 0
    assert "a lock" in text
    assert "any of several descriptors" in text
    assert "sleeps_for_reasons:naps+" in text


EDGES = """
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
#define DONE __asm__ volatile("nop;nop;nop" ::: "memory")
static int ends[2], pipe_end, closed[2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER, once = PTHREAD_COND_INITIALIZER;
KEPT static void awaits(pthread_cond_t *what) { pthread_mutex_lock(&mutex); pthread_cond_wait(what, &mutex); DONE; }
static void *waiter(void *what) { awaits(what); pthread_mutex_unlock(&mutex); return what; }
KEPT static void sleeps_on(void) { sleep(1000); DONE; }
KEPT static void receives(void) { char c; recv(ends[0], &c, 1, 0); DONE; }
KEPT static void reads(void) { char c; (void)!read(pipe_end, &c, 1); DONE; }
KEPT static void reads_closed(void) { char c; (void)!read(closed[0], &c, 1); close(closed[0]); DONE; }
static void *sleeper(void *p) { sleeps_on(); return p; }
static void *receiver(void *p) { receives(); reads(); return p; }
static void *closer(void *p) { reads_closed(); sleeps_on(); return p; }
int main(int count, char **arguments)
{
    pthread_t thread;
    char line[8];
    pipe_end = open(arguments[count - 1], O_RDWR);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || pipe(closed)) return 1;
    pthread_create(&thread, 0, sleeper, 0);
    pthread_create(&thread, 0, receiver, 0);
    pthread_create(&thread, 0, waiter, &never);
    pthread_create(&thread, 0, waiter, &once);
    puts("ready");
    fflush(stdout);
    if (!fgets(line, 8, stdin)) return 1;
    pthread_create(&thread, 0, closer, 0);
    usleep(200000);
    (void)!write(closed[1], "x", 1);
    (void)!write(ends[1], "x", 1);
    pthread_cond_signal(&once);
    puts("sent");
    fflush(stdout);
    return fgets(line, 8, stdin) ? 0 : 1;
}
"""


def test_calls_that_are_open_at_the_edges_count_as_far_as_they_are_within(tmp_path):
    program = build("sleeps_over_edges.c", "-O1", "-pthread", text=EDGES)
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    arguments = [program, fifo]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        out = tmp_path / "results.json"
        with start("offcpu", "-p", str(process.pid), "--for", "2", "--json", "-o", str(out)) as shown:
            wait_until(lambda: is_probed(process.pid, "pwritev"), "the probes are there")
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "sent\n"
            assert shown.wait() == 0
        assert not has_ended(process)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait() == 0
    document = json.loads(out.read_text())
    window, stacks = document["duration_s"] * 1e9, document["stacks"]

    def those(name, clipped):
        return [
            each
            for each in stacks
            if each["clipped"] == clipped and any(f":{name}+" in frame for frame in each["frames"])
        ]

    (slept,) = (each for each in stacks if each["clipped"] == "all along" and each["cause"] == "timer")
    assert slept["count"] == 1
    assert "nanosleep" in slept["frames"][0]
    assert 1.95e9 <= slept["off_ns"] <= window  # the handlers are there for two seconds, and some before
    (received,), (read,) = those("receives", "before"), those("reads", "open")
    assert received["cause"] == "socket"
    assert received["descriptor"].startswith("unix")
    assert (read["cause"], read["descriptor"]) == ("io", fifo)
    # one thread, which was in one call until it was in the other one
    assert received["off_ns"] + read["off_ns"] == pytest.approx(slept["off_ns"], rel=0.03, abs=3e7)
    (once,) = those("awaits", "before")
    assert once["cause"] == "condition"
    assert once["off_ns"] == pytest.approx(received["off_ns"], rel=0.1, abs=5e7)
    assert [each["count"] for each in stacks if each["cause"] == "futex"] == [1]
    (closed,) = those("reads_closed", None)
    assert (closed["count"], closed["descriptor"]) == (1, "?")
    assert 0.1e9 < closed["off_ns"] < received["off_ns"] + 0.3e9
    assert document["kernel"]["run_queue_ns"] >= 0


BUSY = "while True: pass"


def test_a_program_that_sleeps_in_no_call_and_waits_for_a_processor_is_told_so():
    with ExitStack() as stack:
        others = [stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY])) for _ in range(cpus() + 1)]
        for each in others:
            stack.callback(each.kill)
        busy = command("offcpu", "-p", str(others[0].pid), "--for", "1").stdout
    assert "a thread of it waited for a processor" in busy
    assert "no thread has slept" in busy
    assert "of threads that were ready and waited for a processor" in busy


def cpus():
    return len(os.sched_getaffinity(0))


def test_what_was_kept_is_shown_as_it_was(tmp_path, program):
    kept = str(tmp_path / "kept.aprobe")
    assert command("offcpu", "-o", kept, "--", program, input="\n").returncode == 0
    shown = command("show", kept)
    assert "any of several descriptors" in shown.stdout
    assert "sleeps_for_reasons:naps+" in shown.stdout
    stacks = json.loads(command("show", kept, "--json").stdout)["stacks"]
    assert set(CAUSES.values()) <= {each["cause"] for each in stacks}


def test_a_session_that_follows_calls_to_their_callers_is_refused(program):
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with anyprobe.attach(process.pid) as session, pytest.raises(UsageError, match="exits"):
            place_offcpu(session, {})
        process.communicate()


def test_a_program_without_a_c_library_is_refused_in_one_line():
    with subprocess.Popen([build("no_library.c", "-nostdlib", "-static", text=NO_LIBRARY)]) as process:
        found = command("offcpu", "-p", str(process.pid), "--for", "1")
        assert found.returncode == 1
        (line,) = found.stderr.splitlines()
        assert "no C library" in line
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "what"), [(("libc:poll", "-p", "1"), "unexpected extra argument"), ((), "choose a target")]
)
def test_a_wrong_command_line_is_told_in_one_line(arguments, what):
    found = command("offcpu", *arguments)
    assert found.returncode == 2
    assert sum(what in line for line in found.stderr.splitlines()) == 1


def test_of_several_processes_waits_that_began_before_are_of_the_time_that_is_measured(tmp_path):
    """The first is ready long before the last: what it slept until then is in no number."""
    results = tmp_path / "results.json"
    reads = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read(1); sys.stdin.read(1)"]
    with ExitStack() as stack:
        programs = [
            stack.enter_context(subprocess.Popen(reads, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(PROCESSES)
        ]
        for each in programs:
            assert each.stdout.readline()
        named = [word for each in programs for word in ("-p", str(each.pid))]
        with start("offcpu", "--json", "-o", str(results), *named, "--for", "2") as controller:
            wait_until(lambda: all(is_probed(each.pid, "pwritev") for each in programs), "probes in all")
            time.sleep(0.5)  # as a rule within the time that is measured; what is told is right in any case
            programs[0].stdin.write(b"x")
            programs[0].stdin.flush()
            assert controller.wait(60) == 0
        for each in programs:
            each.stdin.close()
    document = json.loads(results.read_text())
    own = [each for each in document["stacks"] if each["cause"] == "io"]
    assert sum(each["off_ns"] for each in own) == pytest.approx(PROCESSES * document["window_s"] * 1e9, rel=0.02)
    assert max(each["max_off_ns"] for each in own) <= document["window_s"] * 1e9


BOUND = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static long at(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static _Atomic long off;
static _Atomic int done;
static void *burns(void *unused) {
    long wall = at(CLOCK_MONOTONIC);
    while (at(CLOCK_MONOTONIC) - wall < 500000000) ;
    off += at(CLOCK_MONOTONIC) - wall - at(CLOCK_THREAD_CPUTIME_ID);
    done++;
    for (;;) pause();
    return unused;
}
static void *writes(void *path) {
    char page[4096] = {1};
    int file = open(path, O_CREAT | O_WRONLY, 0600);
    long begun = at(CLOCK_MONOTONIC);
    for (int n = 0; at(CLOCK_MONOTONIC) - begun < 500000000; n++) {
        if (pwrite(file, page, 4096, 4096L * n) != 4096) return 0;
        long wall = at(CLOCK_MONOTONIC), own = at(CLOCK_THREAD_CPUTIME_ID);
        fsync(file);
        off += at(CLOCK_MONOTONIC) - wall - (at(CLOCK_THREAD_CPUTIME_ID) - own);
    }
    close(file);
    done++;
    for (;;) pause();
    return path;
}
int main(int count, char **words) {
    pthread_t threads[4];
    cpu_set_t one;
    char line[8];
    int waits_for_disk = !strcmp(words[1], "disk"), some = waits_for_disk ? 1 : 4;
    puts("ready");
    fflush(stdout);
    if (!fgets(line, 8, stdin)) return 1;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    for (int n = 0; n < some; n++) pthread_create(&threads[n], 0, waits_for_disk ? writes : burns, words[2]);
    while (done < some) usleep(1000);
    printf("%ld\\n", off);
    fflush(stdout);
    return !fgets(line, 8, stdin);
}
"""


@pytest.mark.parametrize("bound", ["processor", "disk"])
def test_what_waits_for_a_processor_is_told_from_what_waits_for_a_disk(tmp_path, bound):
    """Four threads on one processor, or one that has a file written; both by their own clocks."""
    program = build("bound.c", "-O1", "-pthread", text=BOUND)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    causes, windows = {}, {}
    with subprocess.Popen([program, bound, tmp_path / "pages"], **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        with anyprobe.attach(process.pid, returns="exits") as session:
            place_offcpu(session, causes, windows)
            process.stdin.write("\n")
            own = int(process.stdout.readline())
            session.detach()
            found = {each.name: each.entries for each in windows[process.pid].results(results_at_end(session))}
        process.stdin.write("\n")
    by_cause = Counter()
    for (cause, _, _, state), cell in found[ASLEEP].items():
        by_cause[cause] += cell.sum if state == State.WHOLE else 0
    queued = found[KERNEL]["run_queue_ns",].sum
    on_files = by_cause[Cause.FILE] + by_cause[Cause.IO]
    if bound == "processor":
        assert queued >= 0.9 * own >= 1_000_000_000
        assert on_files < 0.05 * own
    else:
        assert by_cause[Cause.FILE] == pytest.approx(own, rel=0.1)
        assert on_files > 50_000_000


LINES = """\
#include <stdio.h>
#include <unistd.h>
static inline __attribute__((always_inline)) void inner(int us) {
    usleep(us);
    __asm__ volatile("nop");
}
static inline __attribute__((always_inline)) void middle(int us) {
    inner(us);
    __asm__ volatile("nop");
}
__attribute__((noinline)) void outer(int us) {
    middle(us);
    __asm__ volatile("nop");
}
int main(void) {
    for (int n = 0; n < 20; n++)
        outer(2000);
    return 0;
}
"""


def test_stacks_have_lines_and_functions_that_were_inlined(tmp_path):
    results = tmp_path / "results.json"
    program = build("lines_inlined.c", "-O1", "-g", text=LINES)
    found = command("offcpu", "--lines", "--json", "-o", str(results), "--exit-status", "--", program)
    assert found.returncode == 0, found.stderr
    (slept,) = (each for each in json.loads(results.read_text())["stacks"] if "usleep" in each["frames"][0])
    assert slept["count"] == 20
    places = [re.sub(r"\+0x[0-9a-f]+", "", each.partition(":")[2]) for each in slept["frames"][1:5]]
    assert places == [
        "inner (lines_inlined.c:4)", "middle (lines_inlined.c:8)", "outer (lines_inlined.c:12)",
        "main (lines_inlined.c:17)",
    ]  # fmt: skip
    assert command("locks", "--kernel", "--lines", "--for", "0.1").returncode == 2
