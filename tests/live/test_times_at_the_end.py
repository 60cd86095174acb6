"""Calls that a program ends in have run until then: their time is in their rows, by the program's own clock."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

import anyprobe
from support.driver import build, wait_until

pytestmark = pytest.mark.live
FUNCTIONS = ("main", "part", "ends", "deep", "co")
TOLD = ("exit", "_exit", "quick_exit", "thread", "coroutine", "recursion")
SEEN = ("syscall", str(int(signal.SIGKILL)), str(int(signal.SIGSEGV)), str(int(signal.SIGTERM)))
NEAR, TRIES = 0.05, 5
"""What keeps a thread from running meets one of two clocks alone: by what share of all time they may differ."""


def timed(tmp_path, how, *options):
    """Return what the command has written, of each function its own time, ended calls and open ones, and all time."""
    out = tmp_path / "results"
    specs, program = (f"a.out:{name}" for name in FUNCTIONS), build("ends_in_calls.c", "-O2", "-pthread")
    command = [sys.executable, "-m", "anyprobe", "time", *specs, *options, "-o", out, "--", program, how]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.findall(r"^(\w+) (\d+) (\d+) (\d+)$", run.stdout, re.MULTILINE)
    own = {name: (int(ns), int(ended), int(running)) for name, ns, ended, running in found}
    assert set(own) == set(FUNCTIONS), run.stderr
    return out.read_text(), own, int(re.search(r"^all (\d+)$", run.stdout, re.MULTILINE)[1])


def functions_of(text):
    return {each["function"]: each for each in json.loads(text)["functions"]}


@pytest.mark.parametrize("how", TOLD)
def test_each_function_has_its_own_time(tmp_path, how):
    waits = {"thread": ("main",)}.get(how, ())  # in pthread_join, of which it knows nothing
    for last in (*(TRIES - 1) * (False,), True):
        text, own, everything = timed(tmp_path, how, "--self", "--json")
        found = functions_of(text)
        assert {name: (each["count"], each["in_flight"]) for name, each in found.items()} == {
            name: counts for name, (_, *counts) in own.items() for counts in [tuple(counts)]
        }
        wanted = {name: own[name][0] / everything for name in FUNCTIONS if name not in waits}
        shares = {name: found[name]["self_ns"] / everything for name in wanted}
        if last or shares == pytest.approx(wanted, abs=NEAR):
            assert shares == pytest.approx(wanted, abs=NEAR), text
            break
    opened = {name for name, (_, _, running) in own.items() if running}
    assert {name for name, each in found.items() if each["open_ns"] > 0} == opened
    assert not any("open_at_most" in each for each in found.values())
    assert found["main"]["open_ns"] >= everything * (1 - NEAR)
    # nothing is in no row, to the tick, but for what has run while all timed calls waited
    document = json.loads(text)
    all_own = sum(each["self_ns"] for each in found.values()) + document["in_no_row"]["self_ns"]
    roots = sum(each["root_ns"] for each in found.values()) + document["in_no_row"]["root_ns"]
    assert all_own == pytest.approx(roots, abs=10)
    if how not in {"thread", "coroutine"}:
        assert all_own == pytest.approx(found["main"]["open_ns"], abs=10)


@pytest.mark.parametrize("how", SEEN)
def test_an_end_that_the_program_does_not_tell_is_said_to_be_a_bound(tmp_path, how):
    text, own, everything = timed(tmp_path, how, "--self", "--json")
    found = functions_of(text)
    opened = {name for name, (_, _, running) in own.items() if running}
    assert {name for name, each in found.items() if each["open_ns"] > 0} == opened
    assert {name for name, each in found.items() if each.get("open_at_most")} == opened
    for name in opened:
        assert found[name]["self_ns"] >= own[name][0] - NEAR * everything
    assert found["main"]["open_ns"] >= everything * (1 - NEAR)
    assert sum(each["self_ns"] for each in found.values()) == pytest.approx(found["main"]["open_ns"], abs=10)
    text, *_ = timed(tmp_path, how, "--self")
    assert re.search(r"^ *0 +≤ [\d.]+ m?s +≤ [\d.]+ m?s .*\bmain\b", text, re.MULTILINE), text


@pytest.mark.parametrize("how", ["exit", "recursion"])
def test_so_it_is_in_the_tree(tmp_path, how):
    for last in (*(TRIES - 1) * (False,), True):
        text, own, everything = timed(tmp_path, how, "--tree", "--json")
        roots = {root["function"]: root for root in json.loads(text)["tree"]}
        main = roots["main"]
        wanted = pytest.approx(own["main"][0] / everything, abs=NEAR)
        if last or main["self_ns"] / everything == wanted:
            assert main["self_ns"] / everything == wanted
            break
    assert main["sum_ns"] >= everything * (1 - NEAR)
    nodes = [*roots.values()]
    for node in nodes:
        assert node["sum_ns"] == pytest.approx(node["self_ns"] + sum(each["sum_ns"] for each in node["calls"]), abs=10)
        nodes += node["calls"]
    assert {node["function"] for node in nodes} == {name for name, (_, *counts) in own.items() if any(counts)}
    text, *_ = timed(tmp_path, how, "--tree")
    assert re.search(r"^ *0 +[\d.]+ m?s +[\d.]+ m?s +main\b", text, re.MULTILINE), text


@pytest.mark.parametrize(("options", "at_most"), [((), "≤ "), (("--self",), "")], ids=["alone", "with self times"])
def test_it_is_said_that_they_ran_until_the_end(tmp_path, options, at_most):
    text, *_ = timed(tmp_path, "exit", *options)
    assert re.search(rf"^ *0 +{at_most}[\d.]+ ms .*\bmain\b", text, re.MULTILINE), text
    assert re.search(r"^main: 1 call still running at the end$", text, re.MULTILINE), text
    assert "(in no row)" not in text


SLEEPS = """
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline, noclone)) void sleeps(void) { sleep(60); __asm__ volatile("nop;nop;nop;nop"); }
int main(int argc, char **argv)
{
    while (argc < 2 || access(argv[1], F_OK)) usleep(1000);
    puts("now");
    fflush(stdout);
    sleeps();
    return 0;
}
"""
RAN, BUSY = 0.3, 2.0
"""Seconds for which the program runs, and for which nobody asks after that."""


@pytest.mark.parametrize("started", [True, False], ids=["started", "attached"])
def test_the_moment_is_known_though_the_controller_is_busy_for_seconds(tmp_path, started):
    (tmp_path / "sleeps.c").write_text(SLEEPS)
    subprocess.run(["cc", "-O2", "-o", tmp_path / "sleeps", tmp_path / "sleeps.c"], check=True)
    command, said = [str(tmp_path / "sleeps"), str(tmp_path / "go")], tmp_path / "said"
    with ExitStack() as stack:
        out = stack.enter_context(said.open("w"))
        if started:
            session = stack.enter_context(anyprobe.run(command, stdout=out))
        else:
            process = stack.enter_context(subprocess.Popen(command, stdout=out))
            session = stack.enter_context(anyprobe.attach(process.pid))
        session.time("a.out:sleeps")
        began = time.monotonic()
        session.resume()
        (tmp_path / "go").touch()
        wait_until(lambda: "now" in said.read_text(), "its sleep")
        time.sleep(RAN)
        os.kill(session.pid, signal.SIGKILL)
        killed = time.monotonic()
        time.sleep(BUSY)
        found = session.finish()
    (sleeps,) = found.functions
    assert RAN <= sleeps.open_ns / 1e9 <= found.duration_s < killed - began + BUSY / 2
