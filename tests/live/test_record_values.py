"""What is recorded with calls and between them, held against the program's own log: values, markers, the kernel."""

import json
import os

import jsonschema
import pytest

from anyprobe.cli import main
from anyprobe.cli.commands.schema import text_of
from anyprobe.data.calls.recording import Recording
from support.driver import TARGETS, build
from support.perfetto_trace import slices

pytestmark = pytest.mark.live

PROGRAM = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include "markers.h"
#define NOINLINE __attribute__((noinline))
volatile long sink;
static const char *names[] = {"zero", "one", "two <&>"};
NOINLINE long half(long n, const char *name) { sink += *name; return n / 2 - 5; }
NOINLINE double share(long n, double by) { sink += n; return n * by; }
NOINLINE long outer(long n, const char *why) {
    MARKER("app", "step", "0", "-8@%0 8@%1", "r"(n), "r"(names));
    share(n, 0.25);
    sink += *why;
    return half(n, names[n % 3]) + 1;
}
NOINLINE void pause_(void) { usleep(2000); }
static void *work(void *first) { for (long n = 0; n < 50; n++) outer((long)first + n, "why"); return 0; }
int main(void) {
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)(i * 1000));
    for (long i = 0; i < 2; i++) pthread_join(threads[i], 0);
    struct rusage before, after;
    pause_();
    getrusage(RUSAGE_THREAD, &before);
    for (int i = 0; i < 10; i++) pause_();
    getrusage(RUSAGE_THREAD, &after);
    pause_();
    printf("%ld\\n", after.ru_nvcsw - before.ru_nvcsw);
    return 0;
}
"""
SPECS = ["a.out:half", "a.out:outer", "a.out:share", "usdt:app:step"]
NAMES = ["zero", "one", "two <&>"]


@pytest.fixture(scope="module")
def program():
    return str(build("recorded_values.c", "-O1", "-pthread", f"-I{TARGETS}", text=PROGRAM))


@pytest.fixture(scope="module")
def run(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("values") / "run.aprobe"
    given = ["record", "a.out:half", "a.out:outer", "--with", "n=i64(arg0), cstr(arg1, 8), retval"]
    assert main([*given, "usdt:app:step", "-o", str(path), "--quiet", "--", program]) == 0
    return path


def replayed(capfd, path, *options):
    capfd.readouterr()
    assert main(["replay", str(path), "--json", *options]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_each_call_has_its_parameters_texts_and_result(run, capfd):
    found = [each for each in replayed(capfd, run) if "instant" not in each]
    for each in found[:10]:
        jsonschema.validate(each, json.loads(text_of("replay")))
    own = [each["values"] for each in found if each["function"] == "half"]
    wanted = [{"n": n, "cstr(arg1, 8)": NAMES[n % 3], "retval": n // 2 - 5} for n in (*range(50), *range(1000, 1050))]
    assert sorted(own, key=lambda each: each["n"]) == wanted
    results = {each["values"]["n"]: each["values"]["retval"] for each in found if each["function"] == "outer"}
    assert results == {n: n // 2 - 4 for n in (*range(50), *range(1000, 1050))}
    recording = Recording(str(run))
    recording.whole()
    assert recording.left_out == 0


def test_calls_are_chosen_by_their_values(run, capfd):
    every = [each for each in replayed(capfd, run) if "instant" not in each]
    assert replayed(capfd, run, "--where", "retval < -3 and n < 4") == [
        each for each in every if each["values"]["n"] < 4 and each["values"]["retval"] < -3
    ]
    two = replayed(capfd, run, "--where", "cstr(arg1, 8) == 'two <&>'", "--function", "half")
    assert sorted(each["values"]["n"] for each in two) == [n for n in (*range(50), *range(1000, 1050)) if n % 3 == 2]
    for wrong, said in (("size > 4", "size is no value"), ("n >", "no condition"), ("len(n)", "cannot be asked")):
        assert main(["replay", str(run), "--where", wrong]) == 2
        assert said in capfd.readouterr().err


def test_lines_show_values_and_markers_where_they_were(run, capfd):
    capfd.readouterr()
    assert main(["replay", str(run)]) == 0
    lines = capfd.readouterr().out.splitlines()
    texts = [line[32:].strip() for line in lines]
    assert any(each.startswith('half(n=1000, cstr(arg1, 8)="one");  retval=495') for each in texts)
    assert any(each.startswith("outer(n=1000, ") and each.endswith("{") for each in texts)
    assert any(each.startswith("-- usdt:") and "app:step(arg0=1000, " in each for each in texts)


def test_markers_are_instants_within_the_calls_that_have_them(run, capfd):
    every = replayed(capfd, run)
    marks = [each for each in every if "instant" in each]
    for each in marks[:3]:
        jsonschema.validate(each, json.loads(text_of("replay")))
    calls = [each for each in every if each.get("function") == "outer"]
    assert sorted(each["values"]["arg0"] for each in marks) == [*range(50), *range(1000, 1050)]
    for mark in marks:
        (call,) = [each for each in calls if each["values"]["n"] == mark["values"]["arg0"]]
        assert call["tid"] == mark["tid"]
        assert call["ts_ns"] <= mark["ts_ns"] <= call["ts_ns"] + call["duration_ns"]


def test_perfetto_has_values_and_markers_as_annotations(run, tmp_path, capfd):
    every = replayed(capfd, run)
    trace = tmp_path / "run.pftrace"
    assert main(["replay", str(run), "--format", "perfetto", "-o", str(trace)]) == 0
    tracks, found = slices(trace.read_bytes())

    def shown(name, tid, begin, values):
        return name, tid, begin, tuple(sorted((label, value) for label, value in values.items() if value is not None))

    wanted = [
        shown(each.get("function") or each["instant"], each["tid"], each["ts_ns"], each["values"]) for each in every
    ]
    drawn = [shown(each["name"], tracks[each["track"]].thread.tid, each["begin"], each["values"]) for each in found]
    assert sorted(drawn) == sorted(wanted)


def test_tables_for_arrow_and_parquet_have_a_row_for_each_call(run, tmp_path, capfd):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is optional and not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is optional and not installed")
    calls = [each for each in replayed(capfd, run) if "instant" not in each]
    path = tmp_path / "run.parquet"
    assert main(["replay", str(run), "--format", "parquet", "-o", str(path)]) == 0
    rows = parquet.read_table(path).to_pylist()
    names = ("ts_ns", "pid", "tid", "depth", "module", "function", "duration_ns")
    assert [[row[each] for each in names] for row in rows] == [[call[each] for each in names] for call in calls]
    labels = ("n", "cstr(arg1, 8)", "retval")
    assert [[row[each] for each in labels] for row in rows] == [
        [call["values"].get(each) for each in labels] for call in calls
    ]
    other = tmp_path / "run.arrow"
    assert main(["replay", str(run), "--format", "arrow", "-o", str(other), "--function", "half"]) == 0
    table = arrow.ipc.open_file(str(other)).read_all()
    assert table.to_pylist() == [row for row in rows if row["function"] == "half"]


def test_switches_of_the_kernel_are_those_that_the_program_counts(program, tmp_path, capfd):
    if os.geteuid() != 0:
        pytest.skip("events of the kernel need root")
    path = tmp_path / "run.aprobe"
    given = ["record", "a.out:pause_", "tracepoint:sched:sched_switch", "-o", str(path), "--quiet"]
    assert main([*given, "--", program]) == 0
    counted = int(capfd.readouterr().out)
    every = replayed(capfd, path)
    pauses = [each for each in every if each.get("function") == "pause_"]
    assert len(pauses) == 12
    own = [each for each in every if "instant" in each and each["tid"] == pauses[0]["tid"]]
    left = [each for each in own if each["values"]["prev_state"] & 0xFF]  # those of preemption are not the program's
    ends = [each["ts_ns"] + each["duration_ns"] for each in pauses]
    inside = sum(pauses[1]["ts_ns"] <= each["ts_ns"] <= ends[10] for each in left)
    around = sum(ends[0] <= each["ts_ns"] <= pauses[11]["ts_ns"] for each in left)
    assert 10 <= inside <= counted <= around  # the program asks between these
    asleep = [each["ts_ns"] for each in left if each["values"]["prev_state"] == 1]
    slept = sum(any(each["ts_ns"] <= at <= end for at in asleep) for each, end in zip(pauses, ends, strict=True))
    assert slept >= 6, "on a busy machine a pause may be over before its thread sleeps"


JUMPS = """
volatile long sink;
__attribute__((noinline)) long last(long n) { sink += n; return n * 3; }
__attribute__((noinline)) long jumps(long n) { sink += 1; return last(n + 1); }
__attribute__((noinline)) long plain(long n) { long r = jumps(n); sink += r; return r + 1; }
int main(void) { for (long i = 0; i < 50; i++) plain(i); return 0; }
"""


@pytest.mark.parametrize("returns", ["exits", "callers", "trampoline"])
def test_values_are_those_of_their_calls_however_returns_are_taken(tmp_path, capfd, returns):
    program = str(build("recorded_jumps.c", "-O2", "-fno-ipa-icf", text=JUMPS))
    path = tmp_path / "run.aprobe"
    specs = [f"a.out:{name}" for name in ("last", "jumps", "plain")]
    given = ["record", *specs, "--with", "n=arg0, retval", "--returns", returns, "-o", str(path), "--quiet"]
    assert main([*given, "--", program]) == 0
    found = replayed(capfd, path)
    for name, value in {
        "plain": lambda n: 3 * (n + 1) + 1,
        "jumps": lambda n: None if returns == "exits" else 3 * (n + 1),  # it ends where it jumps
        "last": lambda n: 3 * n,
    }.items():
        numbers = range(1, 51) if name == "last" else range(50)
        own = [each["values"] for each in found if each["function"] == name]
        assert own == [{"n": n, "retval": value(n)} for n in numbers]


@pytest.mark.parametrize(
    ("values", "said"),
    [("latency_ns", "has its duration already"), ("size", "size is not defined"), ("arg0 +", "invalid syntax")],
)
def test_what_cannot_be_kept_with_calls_is_said(program, tmp_path, capfd, values, said):
    given = ["record", "a.out:half", "--with", values, "-o", str(tmp_path / "x.aprobe"), "--quiet", "--", program]
    assert main(given) == 2
    assert said in capfd.readouterr().err
