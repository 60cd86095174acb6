"""Self times where threads change their stacks: each function has what it has spent by the program's own clock."""

import json
import re
import subprocess
import sys

import pytest

from support.driver import build

pytestmark = pytest.mark.live
FUNCTIONS = ("leaf", "yields", "body", "resumes", "run")
NEAR = 0.05
"""What keeps a thread from running meets one of two clocks alone: by what share of all time they may differ."""
WAYS = {
    "swap": ["heap", "mapped", "main's", "local", "thread", "thread's local"],
    "ring": ["heap", "local"],
    "set": ["heap", "main's"],
    "change": ["heap", "main's"],
    "hand over": ["heap"],
    "go on": ["heap"],
}
SUSPENDED = """
#include <stdio.h>
#include <time.h>
#include <ucontext.h>
static ucontext_t home, other;
static char stack[65536];
static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static inline __attribute__((always_inline)) long long spend(int ms) {
    long long begin = now(), at;
    do at = now(); while (at - begin < ms * 1000000ll);
    return at - begin;
}
static long long in_main, in_other;
__attribute__((noinline)) void co_fn(void) { in_other = spend(10); swapcontext(&other, &home); __asm__ volatile(""); }
int main(void) {
    getcontext(&other);
    other.uc_stack.ss_sp = stack;
    other.uc_stack.ss_size = sizeof stack;
    other.uc_link = &home;
    makecontext(&other, co_fn, 0);
    swapcontext(&home, &other);
    in_main = spend(200);
    printf("main %lld 1\\nco_fn %lld 1\\n", in_main, in_other);
    return 0;
}
"""


def timed(tmp_path, program, names, *arguments, options=("--json",)):
    """Return what the command has written, and the program's own record: the time of each function, and its calls."""
    results = tmp_path / "results"
    command = [sys.executable, "-m", "anyprobe", "time", "--self", *(f"a.out:{name}" for name in names), *options]
    run = subprocess.run(
        [*command, "-o", results, "--", program, *arguments], capture_output=True, text=True, timeout=180, check=True
    )
    found = re.findall(r"^(\w+) (\d+) (\d+)$", run.stdout, re.MULTILINE)
    return results.read_text(), {name: int(ns) for name, ns, _ in found}, {name: int(calls) for name, _, calls in found}


def like(tmp_path, program, names, *arguments, options=("--json",)):
    """Return a document in which the functions have their own times, of up to five, and the program's record."""
    for last in (False, False, False, False, True):
        text, own, calls = timed(tmp_path, program, names, *arguments, options=options)
        document, total = json.loads(text), sum(own.values())
        functions = {each["function"]: each for each in document["functions"]}
        wanted = {name: own[name] / total for name in names}
        found = {name: functions[name]["self_ns"] / total for name in names}
        if last or found == pytest.approx(wanted, abs=NEAR):
            assert found == pytest.approx(wanted, abs=NEAR), document
            break
    ended = {name: calls[name] - functions[name]["in_flight"] for name in names}
    assert {name: functions[name]["count"] for name in names} == ended
    return document, own


@pytest.mark.parametrize(("way", "place"), [(way, place) for way, places in WAYS.items() for place in places])
def test_each_function_has_its_own_time(tmp_path, way, place):
    document, own = like(tmp_path, build("fibers.c", "-O2", "-pthread"), FUNCTIONS, place, way, "20")
    functions = {each["function"]: each for each in document["functions"]}
    assert sum(functions[name]["unmatched"] + functions[name]["nmissed"] for name in FUNCTIONS) == 0
    # all of the time of the thread, to the tick: of what runs between two calls of timed functions, too
    rest, all_own = document["in_no_row"], sum(each["self_ns"] for each in functions.values())
    assert all_own + rest["self_ns"] == pytest.approx(functions["run"]["sum_ns"], abs=10)
    roots = sum(each["root_ns"] for each in functions.values()) + rest["root_ns"]
    assert all_own + rest["self_ns"] == pytest.approx(roots, abs=10)
    assert rest["self_ns"] < NEAR * sum(own.values())


LABELS = {
    "local, after a function without a size": ["-DUNTYPED"],
    "local, after one with a size": ["-DUNTYPED", "-fno-toplevel-reorder"],
    "none, after a function without a size": ["-DUNTYPED", "-s"],
    "global": ["-DEXPORTED"],
}


@pytest.mark.parametrize("way", ["change", "hand over", "go on"])
@pytest.mark.parametrize("options", LABELS.values(), ids=LABELS)
def test_what_changes_stacks_need_not_be_a_function(tmp_path, options, way):
    """Where it is taken for none, what coroutines do is taken for their resumer's own."""
    stripped = "-s" in options
    program = build("fibers.c", "-O2", "-pthread", *(option for option in options if option != "-s"))
    if stripped:
        named, program = program, tmp_path / "fibers"
        labels = [f"--strip-symbol={name}" for name in ("change", "hand_over", "go_on")]
        subprocess.run(["objcopy", *labels, named, program], check=True)
    document, own = like(tmp_path, program, FUNCTIONS, "heap", way, "20")
    functions = {each["function"]: each for each in document["functions"]}
    all_own = sum(each["self_ns"] for each in functions.values()) + document["in_no_row"]["self_ns"]
    assert all_own == pytest.approx(functions["run"]["sum_ns"], abs=10)
    assert document["in_no_row"]["self_ns"] < NEAR * sum(own.values())


@pytest.mark.parametrize(("way", "more"), [("swap", "libc:*context"), ("change", "a.out:change")])
def test_what_changes_stacks_may_be_timed_itself(tmp_path, way, more):
    program = build("fibers.c", "-O2", "-pthread")
    document, own = like(tmp_path, program, FUNCTIONS, "heap", way, "20", options=("--json", more))
    functions = {each["function"]: each for each in document["functions"]}
    changes = functions["swapcontext" if way == "swap" else "change"]
    assert changes["count"] > 300
    assert 0 <= changes["self_ns"] < NEAR * sum(own.values()) < changes["sum_ns"]
    all_own = sum(each["self_ns"] for each in functions.values()) + document["in_no_row"]["self_ns"]
    assert all_own == pytest.approx(functions["run"]["sum_ns"], abs=10)


def test_a_call_that_waits_for_ever_has_its_time(tmp_path):
    program = build("suspended.c", "-O2", text=SUSPENDED)
    document, _ = like(tmp_path, program, ("main", "co_fn"))
    functions = {each["function"]: each for each in document["functions"]}
    assert (functions["co_fn"]["count"], functions["co_fn"]["in_flight"]) == (0, 1)
    text, *_ = timed(tmp_path, program, ("main", "co_fn"), options=())
    (row,) = re.findall(r"^ *0 .*\bco_fn\b", text, re.MULTILINE)
    assert re.search(r"\d ms", row)


def test_time_in_no_row_is_printed_as_a_row(tmp_path):
    """Of the coroutines nothing is timed."""
    program = build("fibers.c", "-O2", "-pthread")
    for _ in range(5):
        text, own, _ = timed(tmp_path, program, ("resumes", "run"), "heap", "swap", "20")
        document = json.loads(text)
        functions = {each["function"]: each for each in document["functions"]}
        wanted = own["body"] + own["yields"] + own["leaf"] * 2 // 3
        rest = document["in_no_row"]["self_ns"]
        if abs(rest - wanted) < NEAR * sum(own.values()):
            break
    assert rest == pytest.approx(wanted, abs=NEAR * sum(own.values()))
    all_own = sum(each["self_ns"] for each in functions.values())
    assert all_own + rest == pytest.approx(functions["run"]["sum_ns"], abs=10)
    for options in ((), ("--by", "tid"), ("--by", "pid"), ("--tree",), ("--by", "func(caller)")):
        text, *_ = timed(tmp_path, program, ("resumes", "run"), "heap", "swap", "20", options=options)
        assert re.search(r"^ +-( +-)+ +[\d.]+ ms .*\(in no row\)", text, re.MULTILINE), text
        assert re.search(r"^\(in no row\): outside of all timed functions", text, re.MULTILINE), text
    text, *_ = timed(tmp_path, program, FUNCTIONS, "heap", "swap", "20", options=())
    assert "(in no row)" not in text


@pytest.mark.parametrize("how", ["plain", "signals", "signals altstack", "moves", "moves signals"])
def test_all_time_is_somebody_s_where_coroutines_throw_are_interrupted_and_move(tmp_path, how):
    """What goes on in another thread than it began in is in no row there, and each part is somewhere."""
    program, names = build("fibers_disturbed.cpp", "-O2", "-pthread"), (*FUNCTIONS, "throws", "catches", "handler")
    for last in (False, False, False, False, True):
        text, own, calls = timed(tmp_path, program, names, how, "20")
        document, total = json.loads(text), sum(own.values())
        functions = {each["function"]: each for each in document["functions"]}
        found = {name: each["self_ns"] / total for name, each in functions.items() if name != "handler"}
        wanted = {name: ns / total for name, ns in own.items()}
        for shares in (found, wanted):  # what an exception has left is its caller's
            shares["catches"] += shares.pop("throws")
            if "moves" in how:
                shares["body"] += shares.pop("yields") + shares.pop("catches")
        rest = document["in_no_row"]["self_ns"]
        if "moves" in how:
            found["body"] += rest / total
        if last or found == pytest.approx(wanted, abs=NEAR):
            assert found == pytest.approx(wanted, abs=NEAR), document
            break
    all_own = sum(each["self_ns"] for each in functions.values())
    roots = sum(each["root_ns"] for each in functions.values()) + document["in_no_row"]["root_ns"]
    assert all_own + rest == pytest.approx(roots, abs=10)
    assert functions["throws"]["left"] == 60
    assert functions["leaf"]["count"] == calls["leaf"]
    if "signals" not in how:
        assert all_own + rest == pytest.approx(functions["run"]["sum_ns"], abs=10)
    if "moves" not in how:
        assert rest < NEAR * total
        assert {name: functions[name]["count"] for name in FUNCTIONS} == {name: calls[name] for name in FUNCTIONS}
