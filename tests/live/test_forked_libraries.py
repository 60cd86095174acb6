"""What fork children load themselves: probed as what their parent loads, from constructors on, counted by process."""

import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import pytest

import anyprobe
from anyprobe import Count, Sum, i32
from support.driver import PATIENCE, build, wait_until
from support.plugins import is_gated

pytestmark = pytest.mark.live
AT_LOAD, AT_UNLOAD, CALLS = 100, 10, 1_000
LIBRARY = """
__attribute__((noinline)) int plugin_work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
__attribute__((noinline)) int plugin_other(int n) { __asm__ volatile("" : "+r"(n)); return n + 2; }
__attribute__((constructor)) static void begin(void) { for (int n = 0; n < 100; n++) plugin_work(n); }
__attribute__((destructor)) static void end(void) { for (int n = 0; n < 10; n++) plugin_work(n); }
"""
PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static const char *path;
static void *library;
__attribute__((noinline)) int own(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
static void handled(int signal) { own(signal); }
static void *work(void *unused) {
    int (*function)(int) = (int (*)(int))dlsym(library, "plugin_work");
    (void)unused;
    for (int n = 0; n < 1000; n++) function(n);
    return 0;
}
static void act(const char *letters) {
    for (; *letters; letters++) {
        pthread_t threads[4];
        switch (*letters) {
        case 'l': library = dlopen(path, RTLD_NOW); break;
        case 'm': library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW); break;
        case 'u': dlclose(library); break;
        case 'w': work(0); break;
        case 'o': own(1); break;
        case 's': raise(SIGUSR1); break;
        case 't':
            for (int n = 0; n < 4; n++) pthread_create(&threads[n], 0, work, 0);
            for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
            break;
        case 'f': if (!fork()) { act(letters + 1); _exit(0); } while (wait(0) > 0) {} return;
        case 'd': if (!fork()) { if (!fork()) { act(letters + 1); _exit(0); } _exit(0); } wait(0); return;
        case 'p': pause(); break;
        }
    }
}
int main(int argc, char **argv) {
    char letters[200];
    (void)argc;
    path = argv[1];
    signal(SIGUSR1, handled);
    puts("ready"); fflush(stdout);
    while (fgets(letters, sizeof letters, stdin)) {
        letters[strcspn(letters, "\\n")] = 0;
        act(letters);
        puts("done"); fflush(stdout);
    }
    return 0;
}
"""
ONE = AT_LOAD + CALLS
"""Calls where the library is loaded and used once."""


@pytest.fixture
def files():
    library = build("fork_loaded.c", "-shared", "-fPIC", "-O1", text=LIBRARY)
    return build("fork_loads.c", "-O1", "-pthread", "-ldl", text=PROGRAM), library


@pytest.fixture
def program(files):
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        command = [*files, f"{os.getpid()}.{time.monotonic_ns()}"]  # by which its children are known
        process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, process_group=0))
        stack.callback(os.killpg, process.pid, signal.SIGKILL)
        assert process.stdout.readline() == "ready\n"

        def do(letters):
            process.stdin.write(letters + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        do.pid = process.pid
        yield do


def by_pid(snapshot):
    """Return the hits of the library's function by process, without those that have none, in the order of numbers."""
    found = {}
    for process, hits in snapshot.by_process.items():
        there = sum(count for spec, count in hits.items() if "plugin_work" in spec)
        if there:
            assert process.pid not in found
            found[process.pid] = there
    return [found[pid] for pid in sorted(found)]


CHILDREN = {
    "loads": ("flw", [ONE]),
    "loads in a namespace": ("fmw", [ONE]),
    "loads again": ("flwulwu", [2 * (ONE + AT_UNLOAD)]),
    "threads": ("flt", [AT_LOAD + 4 * CALLS]),
    "has a child": ("flwfw", [ONE, CALLS]),
    "has a child that loads": ("ffflwu", [ONE + AT_UNLOAD]),
    "both load": ("flwfulwt", [ONE, AT_UNLOAD + ONE + 4 * CALLS]),
    "daemon": ("fdlwu", [ONE + AT_UNLOAD]),
}


@pytest.mark.parametrize("letters,expected", CHILDREN.values(), ids=CHILDREN)  # noqa: PT006 - as it is read
def test_what_a_child_loads_is_counted_by_process(program, letters, expected):
    with anyprobe.attach(program.pid) as session:
        (probe,) = session.count("fork_loaded:plugin_work", follow=True)
        program(letters)
        wait_until(lambda: session.pump() and session.snapshot().hits == sum(expected), "all hits")
        found = session.snapshot()
        assert by_pid(found) == expected
        assert found.pending == ()
        (site,) = found.sites
        assert site.hits == sum(expected)
        assert not probe.armed  # the parent has not loaded it
        program("lw")
        assert session.snapshot().hits == sum(expected) + ONE
        assert sorted(by_pid(session.snapshot())) == sorted([*expected, ONE])
    assert session.snapshot().hits == sum(expected) + ONE
    assert session.warnings == []


def test_many_children_one_after_the_other(program):
    """Of children that have ended nothing stays with the controller but their numbers."""
    before = shared_memory()
    with anyprobe.attach(program.pid) as session:
        session.count("fork_loaded:plugin_work", follow=True)
        for _ in range(20):
            program("flwu")
            session.pump()
        assert by_pid(session.snapshot()) == 20 * [ONE + AT_UNLOAD]
        wait_until(lambda: session.pump(0.05) and not memory_of_children(session, before), "the end of their sessions")
        assert by_pid(session.snapshot()) == 20 * [ONE + AT_UNLOAD]


def memory_of_children(session, before):
    """Return the mappings of the controller that are not the session's own; what is in cycles is garbage."""
    gc.collect()
    return shared_memory() - before - {str(each) for each in session.splicing.holdings.inodes()}


def shared_memory():
    """Return the memory of sessions that the controller has mapped."""
    with open("/proc/self/maps") as lines:
        return {line.split()[4] for line in lines if "memfd:" in line}


def test_times_and_handlers_are_as_in_the_parent(program):
    """Handlers write where the parent's do; what calls keep for their ends is each child's own."""
    with anyprobe.attach(program.pid) as session:
        session.time("fork_loaded:plugin_work", follow=True)
        entered, called = Count("entered", by="pid"), Sum("called")

        @session.entry("fork_loaded:plugin_work", follow=True)
        def enter(ctx, n: i32):
            entered[ctx.pid].add()

        @session.call("fork_loaded:plugin_work", retval=i32, follow=True)
        def begin(ctx, n: i32):
            ctx.data.n = n

        @begin.ret
        def end(ctx):
            called.add(ctx.retval - ctx.data.n)

        program("flt")
        program("flw")
        program("lw")
        found = session.snapshot()
        (timing,) = found.functions
        hits = [AT_LOAD + 4 * CALLS, ONE, ONE]
        assert timing.count == sum(hits)
        assert timing.nmissed == 0
        timed = sorted(each.functions[0].count for each in found.processes if each.functions)
        assert timed == sorted(hits)
        results = {each.name: each for each in found.aggregations}
        assert results["called"].total.sum == sum(hits)


def test_a_handler_of_signals_and_the_parents_probes_work_beside_it(program):
    """The child's own code has the parent's probes; it is said what its signal handlers see in the library."""
    with anyprobe.attach(program.pid) as session:
        session.count("fork_loads:own")
        session.count("fork_loaded:*", follow=True)
        program("folwsow")
        found = {site.function: site.hits for site in session.snapshot().sites}
        assert found["own"] == 3
        assert found["plugin_work"] == AT_LOAD + 2 * CALLS
        session.pump()
        session.detach()
        assert {warning for warning in session.snapshot().warnings if "fork children" in warning} <= {
            "signal handlers of fork children see pcs of probes as they are in what these have loaded themselves"
        }


def test_probes_that_are_removed_and_enabled_again_are_so_in_children(program):
    with anyprobe.attach(program.pid) as session:
        (work,) = session.count("fork_loaded:plugin_work", follow=True)
        (child,) = pausing(program, "flw")
        session.remove(work)
        assert not has_probes_at(child, session)
        session.enable(work)
        assert has_probes_at(child, session)


def has_probes_at(pid, session):
    """Return whether a function of the library has been changed in a process."""
    with open(f"/proc/{pid}/maps") as lines:
        line = next(line for line in lines if "fork_loaded" in line and "r-xp" in line)
    low, high = (int(each, 16) for each in line.split()[0].split("-"))
    path, offset = line.split()[5], int(line.split()[2], 16)
    with open(f"/proc/{pid}/mem", "rb") as memory, open(path, "rb") as file:
        memory.seek(low)
        file.seek(offset)
        content = file.read(high - low)
        return memory.read(len(content)) != content


def pausing(program, letters):
    """Have a daemon act and pause; return the processes that the program has brought up and that go on."""
    program("d" + letters.removeprefix("f") + "p")
    found = []

    def look():
        found[:] = [
            int(each) for each in os.listdir("/proc")
            if each.isdigit() and int(each) != program.pid and command_of(each) == command_of(program.pid)
            and "pause" in called_by(each)
        ]  # fmt: skip
        return found

    wait_until(look, "a child that pauses")
    return found


def command_of(pid):
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return None


def called_by(pid):
    with suppress(OSError), open(f"/proc/{pid}/syscall") as file:
        return "pause" if file.read().split()[0] == "34" else ""
    return ""


@pytest.mark.parametrize("end", ["detach", "killed"])
def test_nothing_is_left_in_children(program, end):
    """Both the inherited probes and the child's own are taken out, by the session's end or after the controller's."""
    command = [sys.executable, "-m", "anyprobe", "count", "fork_loaded:*", "fork_loads:own", "-p", str(program.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            wait_until(lambda: is_gated(program.pid), "the gate")
            (child,) = pausing(program, "lw")
            assert has_probes_at(child, None)
            if end == "detach":
                started.send_signal(signal.SIGINT)
                shown, said = started.communicate(timeout=PATIENCE)
                assert started.returncode == 130, said
                assert f"{ONE:,}" in shown
            else:
                started.kill()
                started.wait()
                detach = [sys.executable, "-m", "anyprobe", "detach", "-p", str(program.pid)]
                subprocess.run(detach, check=True, capture_output=True)
            assert not has_probes_at(child, None)
            assert mappings_of(child) == mappings_of(program.pid) == 0
        finally:
            started.kill()
    program("lw")


def mappings_of(pid):
    with open(f"/proc/{pid}/maps") as lines:
        return sum("memfd:" in line for line in lines)
