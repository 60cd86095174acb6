"""Tasks that are made by a system call of which the code tells neither the number nor the flags."""

import subprocess

import pytest

from anyprobe import attach
from anyprobe.core.refusal import Reason
from anyprobe.probes.providers.function.threads.thread_slots import ENDED
from live.test_imports_clone import measured
from support.driver import build
from support.results import timing

pytestmark = [pytest.mark.live, pytest.mark.root]
HARMLESS = {"fork": ("56", "11", "none"), "vfork": ("56", "4111", "none"), "fork by clone3": ("435", "11", "none")}
"""Number, flags and thread pointer: what such tasks count is their own, or their maker waits for them."""
ENDING = {
    "thread": ("56", "10f00", "none"),
    "thread by clone3": ("435", "10f00", "none"),
    "process in the memory": ("56", "111", "none"),
    "thread with a pointer": ("56", "90f00", "area"),
    "process with a pointer": ("56", "80111", "area"),
    "fork without a pointer": ("56", "80011", "none"),
    "fork without a pointer by clone3": ("435", "80011", "none"),
}
WAYS = HARMLESS | ENDING
BEFORE, ALL = 1000, 11_000
"""Calls of the function before the first task, and all of them."""
LINKED = {"dynamic": (), "static": ("-static",), "O0": ("-O0",)}


def program(link="dynamic"):
    return str(build("raw_by_number.c", *LINKED[link]))


@pytest.mark.parametrize("way", WAYS)
def test_counts_are_exact(tmp_path, way):
    (site,) = measured(tmp_path, "count", "a.out:work", "--", program(), *WAYS[way], "none")["sites"]
    assert site["hits"] == ALL


@pytest.mark.parametrize("way", HARMLESS)
def test_what_does_no_harm_is_timed_to_the_end(tmp_path, way):
    found = measured(tmp_path, "time", "--self", "a.out:work", "--", program(), *WAYS[way], "none")
    (function,) = found["functions"]
    assert (function["count"], function["nmissed"], found["refused"]) == (ALL, 0, [])


@pytest.mark.parametrize("link", LINKED)
@pytest.mark.parametrize("way", ENDING)
def test_timing_ends_before_the_first_that_has_no_thread_pointer_of_its_own(tmp_path, way, link):
    found = measured(tmp_path, "time", "--self", "a.out:work", "--", program(link), *WAYS[way], "none")
    (function,) = found["functions"]
    assert (function["count"], function["nmissed"]) == (BEFORE, 0)
    assert ENDED in found["warnings"]
    assert {each["reason"] for each in found["refused"]} == {Reason.NO_THREAD_SLOT.value}


@pytest.mark.parametrize("options", [["--tree"], ["--returns", "trampoline"], ["--clock", "cpu"]], ids=" ".join)
def test_of_all_functions(tmp_path, options):
    """The one that makes the task, and what the task runs, among them."""
    found = measured(tmp_path, "time", "a.out:*", *options, "--", program(), *ENDING["thread"], "none")
    counts = {each["function"]: each["count"] for each in found["functions"]}
    assert counts["work"] == BEFORE


@pytest.mark.parametrize("way", ["thread", "fork without a pointer", "fork"])
def test_attached(tmp_path, way):
    go = tmp_path / "go"
    with subprocess.Popen([program(), *WAYS[way], str(go)], stdout=subprocess.PIPE, text=True) as target:
        assert target.stdout.readline() == "ready\n"
        with attach(target.pid) as session:
            session.time("a.out:work")
            go.touch()
            assert target.stdout.readline() == "done\n"
            assert timing(session.snapshot(), "work").count == (ALL if way == "fork" else BEFORE)
            assert (ENDED in session.warnings) == (way != "fork")


def test_by_int_0x80_nothing_is_timed(tmp_path):
    source = """
#include <stdio.h>
static long through(long number) { long r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(number) : "memory"); return r; }
__attribute__((noinline)) long work(long x) { volatile long y = x; return y; }
int main(int argc, char **argv) {
    (void)argv;
    if (through(argc > 1 ? argc + 18 : 0) > 0 && work(1)) puts("done");
    return 0;
}
"""
    path, made = tmp_path / "p.c", tmp_path / "p"
    path.write_text(source)
    subprocess.run(["gcc", "-O2", "-o", made, path], check=True)
    found = measured(tmp_path, "time", "a.out:work", "--", str(made), "x")
    assert [each["reason"] for each in found["refused"]] == [Reason.NO_THREAD_SLOT.value]
