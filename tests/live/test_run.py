"""``run``: probes in place before the first instruction, in the executable and the loader."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import anyprobe
from anyprobe import SpecError, Sum, i32
from anyprobe.probes.parts.modules import ModuleReconciler
from anyprobe.target.remote import calls as remote
from support.independent import fixed_addresses
from support.results import hits, missed, timing


def test_every_function_of_the_loader_from_the_first_instruction(compiled):
    """All of ld.so counted before the thread pointer exists; the program's result is the same."""
    with anyprobe.run([str(compiled("run_alone.c"))]) as session:
        session.count("ld-linux-x86-64:*", "a.out:plain", "a.out:main")
        session.resume()
        assert os.waitstatus_to_exitcode(session.wait(180)) == 42
        snapshot = session.snapshot()
    assert hits(snapshot, "_dl_start") == 1
    assert hits(snapshot, "plain") == 7
    assert hits(snapshot, "main") == 1
    assert missed(snapshot) == 0


def test_loader_exits_and_timing(compiled):
    """The same with all exits of the loader, and with timing."""
    with anyprobe.run([str(compiled("run_alone.c"))]) as session:
        session.count("ld-linux-x86-64:*%return")
        session.time("a.out:plain", "ld-linux-x86-64:_dl_*")
        session.resume()
        assert os.waitstatus_to_exitcode(session.wait(180)) == 42
        assert timing(session.snapshot(), "plain").count == 7


@pytest.mark.parametrize("how", ["trace", "time", "hist"])
def test_what_the_loader_cannot_have_is_refused_by_name(how, tmp_path):
    """Handlers and timing need what the loader has yet to make; what is beside them works."""
    more = {"trace": ["libc:exit"], "time": ["libc:getenv"], "hist": ["libc:getenv", "--of", "latency_ns"]}[how]
    results = tmp_path / "results"
    command = [sys.executable, "-m", "anyprobe", how, "ld-linux*:_dl_fini", *more, "-o", results]
    outcome = subprocess.run([*command, "--json", "--", "/bin/true"], capture_output=True, text=True, timeout=180)
    assert outcome.returncode == 0
    assert "no-thread-slot" in (outcome.stderr if how == "trace" else results.read_text())
    assert ("exit" if how == "trace" else "getenv") in results.read_text()


def test_handlers_in_the_loader_are_refused_with_the_reason():
    with anyprobe.run(["/bin/true"]) as session:

        @session.entry("ld-linux*:_dl_*")
        def entered(ctx):
            pass

        (counted,) = session.count("ld-linux*:_dl_fini")
        session.resume()
        assert session.wait(180) == 0
        snapshot = session.snapshot()
    assert {site.reason for site in snapshot.refused} == {"no-thread-slot"}
    assert all("not there yet where a started program begins" in site.detail for site in snapshot.refused)
    assert [site.hits for site in snapshot.sites if site.spec == counted.spec or site.function == "_dl_fini"] == [1]


def test_the_loader_is_counted_alike_every_time():
    """The entry of a function is its first instruction, but where a loop goes back to it."""
    found = []
    with fixed_addresses():
        for specs in (["ld-linux*:_dl_*"], ["ld-linux*:_dl_*%insn"], ["ld-linux*:_dl_*", "ld-linux*:_dl_*%return"]):
            with anyprobe.run(["/bin/true"], env={}) as session:
                session.count(*specs)
                session.resume()
                assert session.wait(180) == 0
                sites = session.snapshot().sites
            found.append({site.function: site.hits for site in sites if site.offset == 0 and site.hits})
    entries, instructions, beside = found
    assert entries == beside
    assert set(entries) == set(instructions)
    assert all(entries[name] <= instructions[name] for name in entries)
    assert sum(entries.values()) > 100


def test_a_controller_that_is_kept_from_running(compiled, monkeypatch):
    """The program does not begin without its probes."""
    read = remote.read_outcome

    def read_late(content):
        time.sleep(0.1)  # as if stopped by SIGSTOP: longer than a program waits for us that has begun
        return read(content)

    with anyprobe.run([str(compiled("run_alone.c"))]) as session:
        monkeypatch.setattr(remote, "read_outcome", read_late)
        session.count("a.out:plain")
        session.resume()
        assert os.waitstatus_to_exitcode(session.wait(180)) == 42
        assert hits(session.snapshot(), "plain") == 7


def test_static_program(compiled):
    """A static program from its first instruction."""
    with anyprobe.run([str(compiled("run_alone.c", "-static"))]) as session:
        session.count("a.out:*")
        session.resume()
        assert os.waitstatus_to_exitcode(session.wait(180)) == 42
        assert hits(session.snapshot(), "plain") == 7


STATIC = """
#include <pthread.h>
#include <stdio.h>
#include <string.h>
__attribute__((noinline)) int leaf(int n) { __asm__ volatile(""); return n + 1; }
__attribute__((noinline)) int work(int n) { int sum = 0; for (int i = 0; i < 10; i++) sum += leaf(n); return sum; }
static void *run(void *unused) { for (int i = 0; i < 100; i++) work(i); return unused; }
__attribute__((constructor)) static void early(void) { work(1); }
int main(int argc, char **argv) {
    char from[64] = {0}, to[64];
    pthread_t threads[4];
    for (int i = 0; i < 50; i++) memcpy(to, from, argc * 8 + i % 4);
    for (int i = 0; i < 4; i++) pthread_create(threads + i, 0, run, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    return 42;
}
"""


@pytest.fixture(params=["-static", "-static-pie"])
def static(compiled, request):
    """A program that calls ``work`` 401 times and ``memcpy`` 50 times, its threads included."""
    return str(compiled("static_started.c", "-O1", "-fno-builtin", "-pthread", request.param, text=STATIC))


def finished(session):
    session.resume()
    assert os.waitstatus_to_exitcode(session.wait(180)) == 42
    return session.snapshot()


def test_calls_of_a_static_program_are_timed_from_its_constructors_on(static):
    with anyprobe.run([static], self_time=True) as session:
        session.time("a.out:work", "a.out:leaf", "a.out:main")
        snapshot = finished(session)
    assert not snapshot.refused
    timed = {each.function: each for each in snapshot.functions}
    assert {name: each.count for name, each in timed.items()} == {"work": 401, "leaf": 4010, "main": 1}
    assert all(each.nmissed == each.in_flight == 0 for each in snapshot.functions)
    assert sum(each.nested.self_ns for each in timed.values()) == pytest.approx(
        sum(each.nested.root_ns for each in timed.values()), abs=1
    )


def test_handlers_in_a_static_program_that_is_started(static):
    seen = Sum("n")
    with anyprobe.run([static]) as session:

        @session.entry("a.out:work")
        def on_work(n: i32):
            seen.add(n)

        snapshot = finished(session)
    assert snapshot.aggregations[0].entries[()].sum == 4 * sum(range(100)) + 1


def test_what_a_static_program_chooses_at_its_start_is_counted(static):
    """``memcpy`` is one of several functions, by what the processor can (IFUNC)."""
    with anyprobe.run([static]) as session:
        session.count("a.out:memcpy", "a.out:_start", "a.out:work")
        snapshot = finished(session)
    assert not snapshot.refused
    assert {each.function: each.hits for each in snapshot.sites if each.kind == "entry"}["_start"] == 1
    assert hits(snapshot, "work") == 401
    (chosen,) = (each for each in snapshot.sites if "memcpy" in each.label)
    assert 50 <= chosen.hits < 60  # the C library's own start calls it, too


@pytest.mark.parametrize("spec", ["a.out:nonsense", "libx:work"])
def test_what_means_nothing_in_a_static_program_is_a_mistake_before_it_begins(static, spec):
    with anyprobe.run([static]) as session:
        with pytest.raises(SpecError, match=r"no (function|module)"):
            session.time(spec)
        finished(session)


def test_a_static_program_that_is_executed_is_timed(static, tmp_path):
    with anyprobe.Followed.run(["sh", "-c", f"{static}; {static}; exit 42"]) as tree:
        tree.time("a.out:work", follow=True)
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(180)) == 42
        found = [timing for each in tree.snapshots() for timing in each.functions if timing.function == "work"]
    assert [each.count for each in found] == [401, 401]


def test_waiting_for_a_program_lets_it_go(compiled):
    with anyprobe.run([str(compiled("run_alone.c"))]) as session:
        session.count("a.out:plain")
        assert os.waitstatus_to_exitcode(session.wait()) == 42
        assert hits(session.snapshot(), "plain") == 7


def test_waiting_for_a_program_that_was_killed_before_it_began(compiled):
    with anyprobe.run([str(compiled("run_alone.c"))]) as session:
        session.count("a.out:plain", "libc:malloc")
        os.kill(session.pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(session.wait(180)) == -signal.SIGKILL


def test_a_refusal_has_the_address_in_the_program():
    with anyprobe.run(["/bin/true"]) as session:
        session.count("libc:abort", "libc:abort%return")
        session.resume()
        assert session.wait(180) == 0
        snapshot = session.snapshot()
    (site,), (refused,) = snapshot.sites, snapshot.refused
    assert refused.reason == "no-exit"
    assert refused.address in (site.address, site.address - 4)  # in front of endbr64


@pytest.mark.parametrize("place", ["-pie", "-no-pie"])
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_a_program_with_a_sanitizer(compiled, sanitizer, place):
    """It maps its shadow at addresses of its own when it starts; what is there before must not be in its way."""
    with anyprobe.run([str(compiled("run_alone.c", f"-fsanitize={sanitizer}", place))]) as session:
        session.count("a.out:*%insn", "a.out:plain", "libc:*")
        session.resume()
        assert os.waitstatus_to_exitcode(session.wait(180)) == 42
        snapshot = session.snapshot()
    assert hits(snapshot, "plain") == 7
    assert missed(snapshot) == 0


def test_command_line_runs_a_command():
    """``count SPEC -- COMMAND``: the command's output stays its own, results go to standard error."""
    outcome = subprocess.run(
        [sys.executable, "-m", "anyprobe", "count", "ld-linux-x86-64:*", "--", "/bin/echo", "hello"],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == "hello\n"
    assert "_dl_" in outcome.stderr


@pytest.mark.parametrize("kind", ["", "%return", "%block", "%insn"])
def test_a_program_that_begins_with_faults_on_purpose(compiled, tmp_path, kind):
    """Its handler is spliced before it is set, and whatever faults is displaced as it has to be by then."""
    program, results = compiled("faults_at_once.cpp", "-fnon-call-exceptions"), tmp_path / "results"
    command = [sys.executable, "-m", "anyprobe", "count", f"a.out:*{kind}", "--exit-status", "--json", "-o", results]
    outcome = subprocess.run([*command, "--", program], capture_output=True, text=True, timeout=180)
    assert outcome.stdout == "10 thrown, 0 elsewhere\n"
    assert outcome.returncode == 42
    sites = json.loads(results.read_text())["sites"]
    first = min((site for site in sites if site["function"] == "reads"), key=lambda site: site["address"])
    assert first["hits"] == (0 if kind == "%return" else 10)


def test_exit_status_is_passed_through():
    """``--exit-status`` gives the command's own."""
    command = [
        sys.executable,
        "-m",
        "anyprobe",
        "count",
        "--exit-status",
        "ld-linux-x86-64:_dl_*",
        "--",
        "/bin/sh",
        "-c",
        "exit 7",
    ]
    assert subprocess.run(command, capture_output=True, timeout=180).returncode == 7


def test_functions_of_a_held_program_are_looked_for_once(monkeypatch):
    """Nothing but the loader runs before the libraries are mapped; a large program has a hundred thousand functions."""
    looked = []
    resolve = ModuleReconciler.resolve

    def noting(self, spec, within=None):
        looked.append(within)
        return resolve(self, spec, within)

    monkeypatch.setattr(ModuleReconciler, "resolve", noting)
    with anyprobe.run(["true"]) as session:
        session.count("libc:*exit*")
        (early,) = looked
        assert early is not None
        assert all(each.name.startswith("ld-") for each in early)
        session.resume()
        session.wait(180)
        assert session.snapshot().hits > 0
