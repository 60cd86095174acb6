"""Calls that are recorded: each one of a program that is known call by call, and what becomes of them in files."""

import json
import os
import signal
import subprocess
import sys
from itertools import groupby

import jsonschema
import numpy as np
import pytest

from anyprobe.cli import main
from anyprobe.cli.commands.schema import text_of
from anyprobe.data.calls.recorded import END_BITS, ENTRY, GAP, RETURN, joined
from anyprobe.data.calls.recording import Recording
from support.driver import build, wait_until
from support.perfetto_trace import counters, slices

pytestmark = pytest.mark.live

PROGRAM = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))
volatile long sink;
NOINLINE void a(void) { sink += 1; }
NOINLINE void b(void) { a(); sink += 2; }
NOINLINE void c(void) { b(); a(); sink += 3; }
static long rounds;
void *work(void *argument) {
    unsigned state = (unsigned)(long)argument;
    char name[16];
    snprintf(name, sizeof name, "w%ld", (long)argument);
    prctl(PR_SET_NAME, name);
    for (long i = 0; i < rounds; i++) {
        state = state * 1664525u + 1013904223u;
        switch (state >> 30) { case 0: a(); break; case 1: b(); break; default: c(); }
    }
    usleep(20000);
    return 0;
}
int main(int count, char **values) {
    pthread_t threads[8];
    long number = atol(values[1]);
    rounds = atol(values[2]);
    for (long i = 0; i < number; i++) pthread_create(&threads[i], 0, work, (void *)(i + 1));
    for (long i = 0; i < number; i++) pthread_join(threads[i], 0);
    if (count > 3) { write(1, "r", 1); for (;;) { a(); usleep(200); } }
    return 0;
}
"""
SPECS = ["a.out:a", "a.out:b", "a.out:c"]
PARTS = {
    "a": [("a", ENTRY), ("a", RETURN)],
    "b": [("b", ENTRY), ("a", ENTRY), ("a", RETURN), ("b", RETURN)],
}
PARTS["c"] = [("c", ENTRY), *PARTS["b"], *PARTS["a"], ("c", RETURN)]


@pytest.fixture(scope="module")
def program():
    return str(build("recorded.c", "-O1", "-pthread", text=PROGRAM))


def expected(seed, rounds, codes):
    """Return what a thread does, as numbers of events."""
    parts = {name: [codes[each] << END_BITS | end for each, end in events] for name, events in PARTS.items()}
    found = []
    state = seed
    for _ in range(rounds):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        found += parts["abcc"[state >> 30]]
    return np.array(found, np.uint32)


def recorded(path):
    recording = Recording(str(path))
    return recording, joined(list(recording.events()))


def check_threads(path, rounds, number):
    """Check that each thread's events are those that it has made, in order, but for those that are said to be lost."""
    recording, events = recorded(path)
    assert recording.ended
    codes = {each.name: at for at, each in enumerate(recording.functions)}
    seen = 0
    rest = [expected(seed, rounds, codes) for seed in range(1, number + 1)]
    for thread in range(len(recording.threads)):
        own = events.part(events.threads == thread)
        first = own.what[:64]
        assert (np.diff(own.times) >= 0).all()
        wanted = next(each for each in rest if (each[: len(first)] == first).all())
        is_gap = own.what & 3 == GAP
        lost = np.where(is_gap, own.what >> END_BITS, 0).astype(np.int64)
        places = np.cumsum(np.where(is_gap, lost, 1)) - 1
        kept = ~is_gap
        assert (own.what[kept] == wanted[places[kept]]).all()
        assert int(kept.sum()) + int(lost.sum()) == len(wanted)
        seen += int(kept.sum())
    assert len(recording.threads) == number
    return seen, sum(each.events for each in recording.lost)


def test_every_record_of_every_thread_is_right_and_in_order(program, tmp_path):
    path = tmp_path / "run.aprobe"
    assert main(["record", *SPECS, "-o", str(path), "--ring", "64", "--quiet", "--", program, "3", "20000"]) == 0
    seen, lost = check_threads(path, 20000, 3)
    assert lost == 0
    assert seen > 300_000


def test_what_comes_too_fast_is_counted_to_the_event_and_placed_where_it_is_lost(program, tmp_path):
    path = tmp_path / "run.aprobe"
    assert main(["record", *SPECS, "-o", str(path), "--ring", "1", "--quiet", "--", program, "2", "300000"]) == 0
    seen, lost = check_threads(path, 300000, 2)
    assert lost > 0
    assert seen > 0


def replayed(capfd, path, *options):
    capfd.readouterr()
    assert main(["replay", str(path), *options]) == 0
    return capfd.readouterr().out


@pytest.fixture(scope="module")
def small(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "small.aprobe"
    assert main(["record", *SPECS, "-o", str(path), "--quiet", "--", program, "1", "40"]) == 0
    return path


def calls_of(text):
    return [json.loads(line) for line in text.splitlines()]


def test_replay_shows_calls_within_calls_with_their_durations(small, capfd):
    lines = replayed(capfd, small).splitlines()[1:]
    found = calls_of(replayed(capfd, small, "--json"))
    recording, _ = recorded(small)
    codes = {each.name: at for at, each in enumerate(recording.functions)}
    assert len(found) == len(expected(1, 40, codes)) // 2
    assert all(each["duration_ns"] >= 0 for each in found)
    by_depth = {(each["function"], each["depth"]) for each in found}
    assert by_depth == {("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("a", 2)}
    opens = [line for line in lines if line.endswith("() {")]
    closes = [line for line in lines if "} /* " in line]
    leaves = [line for line in lines if line.endswith("();")]
    assert len(opens) == len(closes)
    assert len(opens) + len(leaves) == len(found)
    assert sum(line.endswith(" a();") for line in lines) == sum(each["function"] == "a" for each in found)
    assert any(line.endswith("     a();") for line in lines), "indented twice"


def test_calls_are_chosen_by_duration_caller_function_depth_thread_and_time(small, capfd):
    every = calls_of(replayed(capfd, small, "--json"))
    tid = every[0]["tid"]

    def chosen(*options):
        return calls_of(replayed(capfd, small, "--json", *options))

    middle = sorted(each["duration_ns"] for each in every)[len(every) // 2]
    assert chosen("--slower-than", f"{middle}ns") == [each for each in every if each["duration_ns"] > middle]
    assert chosen("--function", "b") == [each for each in every if each["function"] == "b"]
    within = chosen("--within", "b")
    # each call of b makes one call
    assert [each["function"] for each in within] == ["b", "a"] * (len(within) // 2)
    assert len(within) == 2 * len(chosen("--function", "b"))
    assert chosen("--depth", "1") == [each for each in every if each["depth"] == 0]
    assert chosen("--within", "b", "--depth", "1") == chosen("--function", "b")
    assert chosen("--tid", str(tid)) == every
    assert main(["replay", str(small), "--tid", "1"]) == 2
    assert main(["replay", str(small), "--within", "zzz"]) == 2
    since = every[20]["ts_ns"] - every[0]["ts_ns"]
    late = chosen("--range", f"{since}ns..")
    assert late[-1] == every[-1]
    assert all(each["ts_ns"] + each["duration_ns"] - every[0]["ts_ns"] >= since for each in late)
    assert chosen("--range", f"..{since}ns")[0] == every[0]
    for wrong in ("5", "1ms", "x..y"):
        assert main(["replay", str(small), "--range", wrong]) == 2


def test_timelines_for_perfetto_and_speedscope_have_the_same_calls(small, tmp_path, capfd):
    every = calls_of(replayed(capfd, small, "--json"))
    trace, document = tmp_path / "run.pftrace", tmp_path / "run.json"
    assert main(["replay", str(small), "--format", "perfetto", "-o", str(trace)]) == 0
    assert main(["replay", str(small), "--format", "speedscope", "-o", str(document)]) == 0
    tracks, found = slices(trace.read_bytes())
    wanted = [(each["function"], each["ts_ns"], each["duration_ns"], each["depth"]) for each in every]
    assert [(each["name"], each["begin"], each["end"] - each["begin"], each["depth"]) for each in found] == wanted
    (track,) = {each["track"] for each in found}
    assert tracks[track].thread.tid == every[0]["tid"]
    assert tracks[track].thread.thread_name == recorded(small)[0].threads[0].name
    assert tracks[tracks[track].parent_uuid].process.pid == every[0]["pid"]
    ((about, rates),) = counters(trace.read_bytes()).items()
    assert about == (every[0]["pid"], "calls begun", "calls/s")
    assert sum(value for _, value in rates) == 100 * len(every), "intervals of 10 ms"

    read = json.loads(document.read_text())
    (profile,) = read["profiles"]
    stack, seen = [], []
    for event in profile["events"]:
        if event["type"] == "O":
            stack.append(len(seen))
            seen.append([read["shared"]["frames"][event["frame"]]["name"], event["at"], 0, len(stack) - 1])
        else:
            place = stack.pop()
            seen[place][2] = event["at"] - seen[place][1]
    zero = every[0]["ts_ns"]
    assert [tuple(each) for each in seen] == [(name, at - zero, took, depth) for name, at, took, depth in wanted]


def test_a_timeline_for_perfetto_has_the_calls_that_are_chosen(small, tmp_path, capfd):
    trace = tmp_path / "run.pftrace"
    for options in (["--within", "b"], ["--depth", "1"], ["--range", "..1ms", "--function", "a"]):
        wanted = calls_of(replayed(capfd, small, "--json", *options))
        assert main(["replay", str(small), "--format", "perfetto", "-o", str(trace), *options]) == 0
        _, found = slices(trace.read_bytes())
        assert [(each["name"], each["begin"], each["end"]) for each in found] == [
            (each["function"], each["ts_ns"], each["ts_ns"] + each["duration_ns"]) for each in wanted
        ]
    split = ["replay", str(small), "--format", "perfetto", "-o", str(trace), "--split-size", "1"]
    assert main(split) == 0
    _, found = slices((tmp_path / "run-1.pftrace").read_bytes())
    assert len(found) == len(calls_of(replayed(capfd, small, "--json")))
    assert main(["replay", str(small), "--split-size", "1"]) == 2
    assert (
        main(["replay", str(small), "--format", "perfetto", "-o", str(trace), "--split-size", "1", "--depth", "1"]) == 2
    )


EXCEPTIONS = """
#include <csetjmp>
#define NOINLINE __attribute__((noinline))
volatile long sink;
static jmp_buf place;
extern "C" {
NOINLINE void thrown(int n) { sink += 1; if (n) thrown(n - 1); else throw 1; sink += 1; }
NOINLINE void jumped(int n) { sink += 1; if (n) jumped(n - 1); else longjmp(place, 1); sink += 1; }
NOINLINE void plain(void) { sink += 1; }
NOINLINE void round_(void) {
    try { thrown(2); } catch (int) {}
    plain();
    if (!setjmp(place)) jumped(1);
    plain();
}
}
int main() { for (int i = 0; i < 50; i++) round_(); return 0; }
"""


def test_calls_left_by_exceptions_and_longjmp_are_marked_and_have_no_duration(tmp_path, capfd):
    program = build("recorded_exceptions.cpp", "-O1", text=EXCEPTIONS, compiler="g++")
    path = tmp_path / "run.aprobe"
    specs = [f"a.out:{each}" for each in ("thrown", "jumped", "plain", "round_")]
    assert main(["record", *specs, "-o", str(path), "--quiet", "--", str(program)]) == 0
    found = calls_of(replayed(capfd, path, "--json"))
    for each in found:
        jsonschema.validate(each, json.loads(text_of("replay")))
    by_name = {
        name: list(group)
        for name, group in groupby(sorted(found, key=lambda each: each["function"]), key=lambda each: each["function"])
    }
    assert {name: len(each) for name, each in by_name.items()} == {
        "thrown": 150,
        "jumped": 100,
        "plain": 100,
        "round_": 50,
    }
    for each in by_name["thrown"] + by_name["jumped"]:
        assert each["duration_ns"] is None
        assert each["gone_by_ns"] >= each["ts_ns"]
    assert all(each["duration_ns"] >= 0 and each["depth"] == 1 for each in by_name["plain"])
    assert all(each["depth"] == 0 for each in by_name["round_"])
    text = replayed(capfd, path)
    assert text.count("left without a return") >= 250
    trace = tmp_path / "run.pftrace"
    assert main(["replay", str(path), "--format", "perfetto", "-o", str(trace)]) == 0
    _, drawn = slices(trace.read_bytes())
    assert sum("left without a return" in each["said"] for each in drawn) == 250


FORKS = """
#include <sys/wait.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))
volatile long sink;
NOINLINE void child(void) { sink += 1; }
NOINLINE void parent(void) { sink += 1; }
int main(void) {
    for (int i = 0; i < 3; i++) {
        parent();
        pid_t pid = fork();
        if (!pid) { for (int j = 0; j < 1000; j++) child(); usleep(600000); _exit(0); }
        waitpid(pid, 0, 0);
    }
}
"""


def test_fork_children_have_threads_of_their_own(tmp_path, capfd):
    program = build("recorded_forks.c", "-O1", text=FORKS)
    path = tmp_path / "run.aprobe"
    assert main(["record", "a.out:child", "a.out:parent", "-o", str(path), "--quiet", "--", str(program)]) == 0
    found = calls_of(replayed(capfd, path, "--json"))
    children = {each["pid"] for each in found if each["function"] == "child"}
    (parent,) = {each["pid"] for each in found if each["function"] == "parent"}
    assert len(children) == 3
    assert parent not in children
    for pid in children:
        own = [each for each in found if each["pid"] == pid]
        assert len(own) == 1000
        assert all(each["duration_ns"] >= 0 and each["depth"] == 0 for each in own)


@pytest.mark.parametrize("victim", ["controller", "program"])
def test_a_killed_controller_or_program_leaves_a_file_that_can_be_read(program, tmp_path, victim):
    path = tmp_path / "run.aprobe"
    target = subprocess.Popen([program, "2", "2000", "go"], stdout=subprocess.PIPE)
    assert target.stdout.read(1) == b"r"
    controller = subprocess.Popen(
        [sys.executable, "-m", "anyprobe", "record", *SPECS, "-p", str(target.pid), "-o", str(path), "--quiet"]
    )
    try:
        wait_until(lambda: path.exists() and path.stat().st_size > 3000, "events in the file")
        os.kill(controller.pid if victim == "controller" else target.pid, signal.SIGKILL)
        if victim == "program":
            assert controller.wait(20) == 0
        else:
            controller.wait(20)
            assert target.poll() is None
        recording, events = recorded(path)
        assert recording.ended == (victim == "program")
        assert len(events) > 100
        # of the one thread that runs, an entry and a return by turns
        assert set((np.diff(events.what.astype(np.int64)) % 4).tolist()) <= {1, 3}
    finally:
        for each in (controller, target):
            if each.poll() is None:
                each.kill()
            each.wait()
        target.stdout.close()


FAR = """
int other(int n) { return n + 1; }
int jumping(int n) { return other(n + 1); }
"""
CALLER = """
#include <unistd.h>
int jumping(int n);
volatile int sink;
int main(void) { for (int n = 0; n < 1000; n++) { sink += jumping(n) + 1; usleep(1000); } return 0; }
"""


def test_functions_that_end_by_a_jump_are_recorded_however_far_from_their_callers_they_are(tmp_path, capfd):
    options = ("-O2", "-fno-inline", "-fno-semantic-interposition", "-fno-ipa-icf")
    library = build("librecorded_far.c", *options, "-shared", "-fPIC", "-Wl,-soname,librecorded_far.so", text=FAR)
    os.symlink(library, tmp_path / "librecorded_far.so")
    program = build("recorded_caller.c", "-O1", "-no-pie", str(library), f"-Wl,-rpath,{tmp_path}", text=CALLER)
    path = tmp_path / "run.aprobe"
    specs = ["librecorded_far:jumping", "librecorded_far:other"]
    assert main(["record", *specs, "-o", str(path), "--quiet", "--", str(program)]) == 0
    found = calls_of(replayed(capfd, path, "--json"))
    assert [each["function"] for each in found] == ["jumping", "other"] * 1000
    assert all(each["duration_ns"] is not None for each in found)


SLOW = """
#include <stdlib.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))
volatile long sink;
NOINLINE void work(long n) { sink += n; if (n == 300) usleep(60000); }
NOINLINE void crash(void) { abort(); }
int main(int count, char **values) {
    for (long n = 0; n < 900; n++) { work(n); usleep(3000); }
    if (count > 1) crash();
    return 0;
}
"""


def flown(tmp_path, capfd, *options):
    program = str(build("recorded_slow.c", "-O1", text=SLOW))
    path = tmp_path / "run.aprobe"
    given = ["record", "a.out:work", "a.out:crash", "--last", "300ms", "-o", str(path)]
    assert main([*given, *options, "--", program, "crash"]) == 0
    return path, capfd.readouterr().err


def test_the_last_moments_are_kept_and_what_was_before_is_counted(tmp_path, capfd):
    path, _ = flown(tmp_path, capfd)
    recording, events = recorded(path)
    assert recording.ended
    assert not (tmp_path / "run-1.aprobe").exists()
    assert len(events) + recording.overwritten == 1801, "900 calls, and one that has not returned"
    assert 0 < len(events) < 1600
    found = calls_of(replayed(capfd, path, "--json"))
    assert found[-1]["function"] == "crash"
    assert found[-1]["duration_ns"] is None
    assert "overwritten before this" in replayed(capfd, path)
    trace = tmp_path / "run.pftrace"
    assert main(["replay", str(path), "--format", "perfetto", "-o", str(trace)]) == 0
    _, drawn = slices(trace.read_bytes())
    assert f"{recording.overwritten:,} of all threads" in drawn[0]["name"]
    assert (drawn[-1]["name"], drawn[-1]["end"]) == ("crash", None)


def test_a_slow_call_has_what_was_before_it_written(tmp_path, capfd):
    _, said = flown(tmp_path, capfd, "--dump-when", "latency_ns > 50_000_000")
    dump = tmp_path / "run-1.aprobe"
    assert f"the last 0.3 s are in {dump}" in said
    slow = calls_of(replayed(capfd, dump, "--json", "--slower-than", "50ms"))
    assert "work" in {each["function"] for each in slow}
    recording, events = recorded(dump)
    assert recording.ended
    assert len(events) > 20, "and what was called before it"
    assert main(["show", str(dump)]) == 2
    assert "anyprobe replay" in capfd.readouterr().err


def test_a_signal_has_the_last_moments_written_while_the_recording_goes_on(program, tmp_path):
    path = tmp_path / "run.aprobe"
    target = subprocess.Popen([program, "1", "10", "go"], stdout=subprocess.PIPE)
    assert target.stdout.read(1) == b"r"
    given = ["record", *SPECS, "-p", str(target.pid), "-o", str(path), "--last", "10s", "--quiet"]
    controller = subprocess.Popen([sys.executable, "-m", "anyprobe", *given])
    try:
        wait_until(lambda: path.exists() and path.stat().st_size, "the archive's first line")
        for number in (1, 2):
            dump = tmp_path / f"run-{number}.aprobe"
            os.kill(controller.pid, signal.SIGUSR1)
            wait_until(dump.exists, f"{dump}")
            recording, events = recorded(dump)
            assert recording.ended
            assert (np.diff(events.times) >= 0).all()
        os.kill(controller.pid, signal.SIGINT)
        assert controller.wait(20) == 130
        recording, events = recorded(path)
        assert recording.ended
        assert len(events) > 10
    finally:
        for each in (controller, target):
            if each.poll() is None:
                each.kill()
            each.wait()
        target.stdout.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dump-when", "latency_ns > 5"], "--last 10s"),
        (["--last", "1s", "--dump-when", "arg0 > 5"], "latency_ns > 50_000_000"),
        (["--last", "5"], "no time with a unit"),
    ],
)
def test_what_cannot_be_asked_for_of_the_last_moments_is_said(options, said, tmp_path, capfd):
    assert main(["record", "libc:malloc", *options, "-o", str(tmp_path / "x.aprobe"), "--", "true"]) == 2
    assert said in capfd.readouterr().err


def test_a_recording_that_is_not_there_makes_no_file(tmp_path, capfd):
    wanted = tmp_path / "run.pftrace"
    missing = tmp_path / "missing.aprobe"
    assert main(["replay", str(missing), "--format", "perfetto", "-o", str(wanted)]) == 2
    assert f"'{missing}'" in capfd.readouterr().err
    assert not wanted.exists()


def test_results_that_are_kept_beside_the_events_are_shown(small, capfd):
    assert main(["show", str(small), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    recording, events = recorded(small)
    assert sum(each["hits"] for each in document["sites"]) == len(events)
    assert recording.ended


def test_a_recording_that_is_to_be_no_archive_is_refused(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["record", "libc:malloc", "-o", "run.json", "--", "true"]) == 2
    assert "-o RUN.aprobe" in capfd.readouterr().err


def test_instructions_are_instants_and_a_recording_may_have_nothing_else(program, tmp_path, capfd):
    path = tmp_path / "run.aprobe"
    assert main(["record", "a.out:b%return", "-o", str(path), "--quiet", "--", program, "1", "40"]) == 0
    found = calls_of(replayed(capfd, path, "--json"))
    codes = {"a": 0, "b": 1, "c": 2}
    assert len(found) == int((expected(1, 40, codes) == (1 << END_BITS | RETURN)).sum())
    assert {each["instant"] for each in found} == {"pid:recorded:b:return"}
    lines = replayed(capfd, path).splitlines()[1:]
    assert lines[0].split()[0] == "0.000000"
    trace = tmp_path / "run.pftrace"
    assert main(["replay", str(path), "--format", "perfetto", "-o", str(trace)]) == 0
    _, drawn = slices(trace.read_bytes())
    assert [each["begin"] for each in drawn] == [each["ts_ns"] for each in found]


def test_what_is_refused_is_said(program, tmp_path, capfd):
    path = tmp_path / "run.aprobe"
    given = ["record", "a.out:a", "--strategy", "retarget", "-o", str(path)]
    assert main([*given, "--", program, "1", "40"]) == 1
    said = capfd.readouterr().err
    assert main(["show", str(path), "--json"]) == 0
    refused = json.loads(capfd.readouterr().out)["refused"]
    assert {each["spec"] for each in refused} == {"pid:recorded:a:entry", "pid:recorded:a:return"}
    assert f"{len(refused)} sites refused" in said
    assert main([*given, "--quiet", "--", program, "1", "40"]) == 1
    assert not capfd.readouterr().err
