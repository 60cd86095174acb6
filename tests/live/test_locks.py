"""``anyprobe locks``: what it says of locks is what the program itself has measured, lock by lock."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import anyprobe
from anyprobe.binary.objects.elf import ElfFile
from anyprobe.core.errors import UnsupportedTarget, UsageError
from anyprobe.data.findings.waiting import LockKind, locks_of
from anyprobe.probes.waiting.locks import place_locks
from anyprobe.probes.waiting.offcpu import place_offcpu
from live.test_command_line import anyprobe as command
from live.test_command_line import start
from support.driver import build, wait_until
from support.seen_probes import is_probed

pytestmark = pytest.mark.live
LIBC = "/lib/x86_64-linux-gnu/libc.so.6"
HOLD_NS = 150_000
CONTENDED = ("contended", "4", "2000", str(HOLD_NS), "100000")
CLOCKS = 0.001
"""By which share the two clocks may differ."""
SWITCH_NS = 1_500_000
"""What may lie between the program's look at the clock and anyprobe's, for each wait without a preemption."""
KINDS = {
    "plain": "mutex",
    "checked": "mutex",
    "robust": "mutex",
    "inherits": "mutex",
    "limited": "mutex",
    "recursive": "mutex",
    "tried": "mutex",
    "orphan": "mutex",
    "written": "rwlock",
    "shared": "rwlock",
    "counted": "semaphore",
    "meeting": "barrier",
    "word": "futex",
}


@pytest.fixture(scope="module")
def program():
    return str(build("waits_for_locks.c"))


def measured(tmp_path, program, *arguments, options=(), **settings):
    """Return what the program has measured, and what anyprobe has by the names of locks, for a command after --."""
    results = tmp_path / "results.json"
    found = command("locks", "--json", "-o", str(results), *options, "--", program, *arguments, input="\n", **settings)
    assert found.returncode == 0, found.stderr
    document = json.loads(results.read_text())
    shown = {(each["symbol"] or "").rpartition(":")[2]: each for each in document["locks"]}
    return json.loads(found.stdout[found.stdout.index("{") :]), shown


@pytest.mark.parametrize("linked", ["as it is", "to a C library without names", "statically"])
def test_locks_of_each_kind_are_what_the_program_has_measured(tmp_path, program, linked):
    settings = {"env": os.environ | {"LD_LIBRARY_PATH": nameless_libc(tmp_path)}} if "without" in linked else {}
    program = str(build("waits_for_locks.c", "-static")) if linked == "statically" else program
    truth, found = measured(tmp_path, program, "kinds", **settings)
    assert truth.keys() == KINDS.keys()
    for name, own in truth.items():
        lock = found[name]
        assert lock["kind"] == KINDS[name]
        if name != "word":
            assert (name, lock["acquisitions"]) == (name, own["taken"])
        assert (name, lock["contended"]) == (name, own["waits"])
        # the program's clock is read around anyprobe's where it waits, and between where it holds
        assert lock["wait_ns"] <= (1 + CLOCKS) * own["wait"], (name, lock["wait_ns"], own["wait"])
        room = own["lost"] + own["waits"] * SWITCH_NS
        assert own["wait"] - lock["wait_ns"] <= 0.02 * own["wait"] + room, (name, own["wait"])
        if lock["kind"] in {"mutex", "rwlock"}:
            assert (name, lock["holds"]) == (name, own["holds"])
            assert lock["hold_ns"] >= (1 - CLOCKS) * own["hold"], (name, lock["hold_ns"], own["hold"])
            room = own["lost"] + own["holds"] * SWITCH_NS
            assert lock["hold_ns"] - own["hold"] <= 0.01 * own["hold"] + room, (name, own["hold"])
        else:
            assert lock["holds"] == 0
        assert sum(each["count"] for each in lock["waiters"]) == own["waits"]


def nameless_libc(folder):
    """Return a folder with a C library that has no debug file: it has another build id, and no link."""
    copy = folder / "libc.so.6"
    shutil.copy(LIBC, copy)
    content = bytearray(copy.read_bytes())
    at = content.index(bytes.fromhex(ElfFile.open(LIBC).build_id))
    content[at] ^= 0xFF
    content[:] = content.replace(b".gnu_debuglink\0", b".xxx_debuglink\0")
    copy.write_bytes(content)
    return str(folder)


def test_a_lock_that_many_threads_want_names_who_holds_and_who_waits(tmp_path, program):
    truth, found = measured(tmp_path, program, *CONTENDED)
    hot, own = found["hot"], truth["hot"]
    assert hot["acquisitions"] == own["taken"]
    assert hot["holds"] == own["holds"]
    assert 0 < hot["contended"] <= own["taken"]
    # a thread may be preempted between a look of the program at its clock and one of anyprobe
    assert abs(hot["wait_ns"] - own["wait"]) <= 0.02 * own["wait"] + own["lost"]
    assert abs(hot["hold_ns"] - own["hold"]) <= 0.01 * own["hold"] + own["lost"]
    assert abs(hot["hold_p50_ns"] - HOLD_NS) < 0.05 * HOLD_NS
    assert max(hot["wait_p50_ns"], HOLD_NS) <= hot["max_wait_ns"]
    (holder, *_) = hot["holders"]
    assert "critical+" in holder["stack"][0]
    assert holder["waited_ns"] > 0.99 * hot["wait_ns"]
    assert any("critical+" in frame for frame in hot["waiters"][0]["stack"])
    assert sum(each["waited_ns"] for each in hot["waiters"]) == hot["wait_ns"]


CONVOY = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
#define DONE __asm__ volatile("nop;nop;nop" ::: "memory")
pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;
pthread_spinlock_t turn;
static double waited, spun;
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
KEPT static void keeps(void) { usleep(30000); pthread_mutex_unlock(&door); DONE; }
KEPT static void long_one(void) { pthread_mutex_lock(&door); keeps(); DONE; }
KEPT static void short_one(void)
{
    double began = now();
    pthread_mutex_lock(&door);
    waited += now() - began;
    pthread_mutex_unlock(&door);
    DONE;
}
static void *other(void *arg)
{
    for (int n = 0; n < 10; n++) { usleep(10000); short_one(); usleep(40000); }
    return arg;
}
static void *spins(void *arg)
{
    double began = now();
    pthread_spin_lock(&turn);
    spun = now() - began;
    pthread_spin_unlock(&turn);
    return arg;
}
int main(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, other, 0);
    for (int n = 0; n < 15; n++) { long_one(); usleep(3000); }
    pthread_join(thread, 0);
    pthread_spin_init(&turn, 0);
    pthread_spin_lock(&turn);
    pthread_create(&thread, 0, spins, 0);
    usleep(50000);
    pthread_spin_unlock(&turn);
    pthread_join(thread, 0);
    printf("{\\"waited\\": %.9f, \\"spun\\": %.9f}", waited, spun);
    return 0;
}
"""


def test_the_stack_of_the_thread_that_made_another_one_wait_is_told_and_spin_locks_are(tmp_path):
    truth, found = measured(tmp_path, str(build("convoy.c", "-O1", "-pthread", text=CONVOY)))
    door, turn = found["door"], found["turn"]
    (first, *others) = door["blockers"]
    names = ["keeps", "long_one", "main"]
    assert [frame.partition("+")[0].rpartition(":")[2] for frame in first["stack"][1:4]] == names
    assert first["waited_ns"] == pytest.approx(1e9 * truth["waited"], rel=0.1, abs=2e6)
    assert first["waited_ns"] <= door["hold_ns"] * (1 + CLOCKS)
    assert sum(each["waited_ns"] for each in others) <= 0.05 * first["waited_ns"] + 2e6
    assert (turn["kind"], turn["acquisitions"], turn["contended"], turn["holds"]) == ("spinlock", 2, 1, 2)
    assert turn["wait_ns"] == pytest.approx(1e9 * truth["spun"], rel=0.02, abs=SWITCH_NS)
    assert turn["hold_ns"] >= 0.05e9
    assert "main+" in turn["holders"][0]["stack"][0]


SHARED = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline))
static pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;
static volatile long kept;
static volatile int on = 1;
static double waited;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
KEPT void rebuild(void) { pthread_rwlock_wrlock(&table); usleep(20000); pthread_rwlock_unlock(&table); kept++; }
KEPT void touch(void) { pthread_rwlock_wrlock(&table); kept++; pthread_rwlock_unlock(&table); kept++; }
KEPT void lookup(void)
{
    double began = now();
    pthread_rwlock_rdlock(&table);
    waited += now() - began;
    kept++;
    pthread_rwlock_unlock(&table);
    kept++;
}
static void *reads(void *arg) { while (on) { lookup(); usleep(500); } return arg; }
int main(void)
{
    pthread_t reader;
    pthread_create(&reader, 0, reads, 0);
    for (int n = 0; n < 15; n++) { rebuild(); usleep(4000); touch(); }
    on = 0;
    pthread_join(reader, 0);
    printf("{\\"waited\\": %.9f}", waited);
    return 0;
}
"""


def test_who_held_a_read_write_lock_while_others_waited_is_told_by_its_stack(tmp_path):
    truth, found = measured(tmp_path, str(build("shared_table.c", "-O1", "-pthread", text=SHARED)))
    table = found["table"]
    assert table["kind"] == "rwlock"
    (first, *others) = table["blockers"]
    assert [frame.partition("+")[0].rpartition(":")[2] for frame in first["stack"][1:3]] == ["rebuild", "main"]
    assert first["waited_ns"] == pytest.approx(1e9 * truth["waited"], rel=0.1, abs=2e6)
    assert first["waited_ns"] <= table["hold_ns"] * (1 + CLOCKS)
    assert sum(each["waited_ns"] for each in others) <= 0.05 * first["waited_ns"] + 2e6


def test_a_mutex_is_not_held_while_its_owner_waits_for_a_condition(tmp_path, program):
    truth, found = measured(tmp_path, program, *CONTENDED)
    waits, mutex = found["changed"], found["guard"]
    assert waits["kind"] == "condition"
    own = truth["changed"]
    assert waits["contended"] == own["taken"]
    # anyprobe's clock is read between the program's, and the thread may be preempted between the two
    assert waits["wait_ns"] <= (1 + CLOCKS) * own["wait"]
    assert own["wait"] - waits["wait_ns"] <= 0.02 * own["wait"] + own["lost"]
    assert mutex["acquisitions"] == 2 * own["taken"]  # each wait takes it again
    # a thread may lose its processor while it holds the mutex, so that sums say little of a busy machine
    assert mutex["hold_p50_ns"] < 0.05 * waits["wait_p50_ns"]


def test_without_hold_times_waits_are_told_all_the_same(tmp_path, program):
    truth, found = measured(tmp_path, program, *CONTENDED, options=("--no-hold",))
    hot = found["hot"]
    assert hot["acquisitions"] == truth["hot"]["taken"]
    assert abs(hot["wait_ns"] - truth["hot"]["wait"]) <= 0.02 * truth["hot"]["wait"] + truth["hot"]["lost"]
    assert (hot["holds"], hot["hold_ns"], hot["holders"]) == (0, 0, [])


def test_of_a_running_program_the_table_says_who_waits_for_whom(program):
    arguments = [program, "contended", "4", "3000", "100000", "100000"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with start("locks", "-p", str(process.pid)) as shown:
            wait_until(lambda: is_probed(process.pid, "pthread_barrier_wait"), "the probes are there")
            process.stdin.write("\n")
            process.stdin.close()
            text = shown.stdout.read()
        assert process.wait() == 0
    assert "waits_for_locks:hot" in text
    assert "held when a wait began, taken at waits_for_locks:critical+" in text


def test_what_was_written_is_gone_after_the_session(program):
    with subprocess.Popen([program, "kinds"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        before = executable(process.pid)
        with anyprobe.attach(process.pid, returns="exits") as session:
            place_locks(session)
            assert not session.refused
        assert executable(process.pid) == before
        out, _ = process.communicate("\n")
        assert process.returncode == 0
        assert json.loads(out)["plain"]["taken"] == 6


@pytest.mark.parametrize("place", [place_locks, lambda session: place_offcpu(session, {})], ids=["locks", "offcpu"])
def test_threads_that_are_asleep_when_probes_come_and_go_wake_as_they_would(place):
    target = str(build("asleep_in_locks.c"))
    with subprocess.Popen([target], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def says(word):
            assert process.stdout.readline() == f"{word}\n"

        def next_step(word):
            process.stdin.write("\n")
            process.stdin.flush()
            says(word)

        says("ready")
        for asleep_before, asleep_after in ((False, True), (True, False), (True, True)):
            if asleep_before:
                next_step("asleep")
            with anyprobe.attach(process.pid, returns="exits") as session:
                place(session)
                if not asleep_before:
                    next_step("asleep")
                if not asleep_after:
                    next_step("ready")
            if asleep_after:
                next_step("ready")
        process.stdin.close()
        assert process.wait() == 0


def executable(pid):
    """Return the bytes of the C library's code in a process."""
    text = {}
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in lines:
            if "x" in line.split()[1] and "libc.so" in line:
                low, high = (int(each, 16) for each in line.split()[0].split("-"))
                memory.seek(low)
                text[low] = memory.read(high - low)
    return text


def test_locks_in_python_are_those_of_its_c_library(program):
    with subprocess.Popen([program, "kinds"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with anyprobe.attach(process.pid, returns="exits") as session:
            place_locks(session, holds=False)
            process.stdin.write("\n")
            process.stdin.flush()
            truth = json.loads(process.stdout.readline())
            found = {each.symbol.rpartition(":")[2]: each for each in locks_of(session.snapshot().aggregations)}
        process.communicate()
    assert found["plain"].kind is LockKind.MUTEX
    assert found["plain"].acquisitions == truth["plain"]["taken"]
    assert found["plain"].contended == truth["plain"]["waits"]


def test_a_session_that_follows_calls_to_their_callers_is_refused(program):
    with subprocess.Popen([program, "kinds"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with anyprobe.attach(process.pid) as session, pytest.raises(UsageError, match="exits"):
            place_locks(session)
        process.communicate()


NO_LIBRARY = """
static struct { long s, ns; } t = {1, 0};
void _start(void) {
    for (;;) {
        long result;
        __asm__ volatile("syscall" : "=a"(result) : "a"(35), "D"(&t), "S"(0) : "rcx", "r11", "memory");
    }
}
"""


def fail_before_it_runs(out):
    words = ["/bin/sh", "-c", "echo ran"]
    with open(out, "w") as stream, anyprobe.run(words, stdout=stream, returns="exits") as session:
        place_locks(session)  # it waits for libraries, which come after the session
        raise ZeroDivisionError


def test_what_goes_wrong_before_the_program_runs_is_what_is_told_and_the_program_runs(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError):
        fail_before_it_runs(out)
    wait_until(lambda: out.read_text() == "ran\n", "the program's end")


def test_a_program_without_a_c_library_is_refused_in_one_line():
    program = build("no_library.c", "-nostdlib", "-static", text=NO_LIBRARY)
    with subprocess.Popen([program]) as process:
        found = command("locks", "-p", str(process.pid), "--for", "1")
        assert found.returncode == 1
        (line,) = found.stderr.splitlines()
        assert "no C library" in line
        with anyprobe.attach(process.pid, returns="exits") as session, pytest.raises(UnsupportedTarget):
            place_locks(session)
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("a.out:main", "-p", "1"), "unexpected extra argument"),
        (("-p", "0"), "is not in the range"),
        (("-p", "1", "--every"), "requires an argument"),
        ((), "choose a target"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(arguments, what):
    found = command("locks", *arguments)
    assert found.returncode == 2
    assert sum(what in line for line in found.stderr.splitlines()) == 1
