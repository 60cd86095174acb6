"""``anyprobe metric`` beside the program's own record: how many threads are in functions, over time."""

import json
import re

import pytest

from anyprobe.cli import main
from anyprobe.data.snapshots.metrics import METRICS
from live.test_command_line import anyprobe
from support import stack_metric
from support.driver import build

pytestmark = pytest.mark.live
PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
KEPT static void section(int us) { usleep(us); __asm__ volatile("nop;nop;nop;nop"); }
KEPT static long deep(int n) { if (n) deep(n - 1); else usleep(1000000); __asm__ volatile("nop;nop;nop"); return n; }
static volatile int on = 1;
KEPT static void endless(void) { while (on) pause(); }
static double in_section[3];
static void *works(void *number)
{
    for (int n = 0; n < 20; n++) {
        double began = now();
        section(100000);
        in_section[(long)number] += now() - began;
        usleep(20000);
    }
    return 0;
}
static void *sleeps(void *number) { endless(); return number; }
int main(void)
{
    pthread_t threads[3], other;
    double began = now();
    pthread_create(&other, 0, sleeps, 0);
    for (long n = 0; n < 3; n++) pthread_create(threads + n, 0, works, (void *)n);
    deep(5);
    for (int n = 0; n < 3; n++) pthread_join(threads[n], 0);
    printf("section %.6f all %.6f\\n", in_section[0] + in_section[1] + in_section[2], now() - began);
    return 0;
}
"""


def measured(tmp_path, *options):
    """Return the numbers, the document at the end, and what the program says: seconds in the section, and of all."""
    program, out = build("sections.c", "-O2", "-pthread", text=PROGRAM), tmp_path / "out"
    specs = ("a.out:section", "a.out:deep", "a.out:endless")
    run = anyprobe("metric", *specs, *options, "--json", "-o", out, "--", program)
    own = re.search(r"section ([\d.]+) all ([\d.]+)", run.stdout)
    *numbers, end = map(json.loads, out.read_text().splitlines())
    return numbers, end, float(own[1]), float(own[2])


def test_as_many_threads_are_in_a_function_as_the_program_says(tmp_path):
    numbers, end, section, everything = measured(tmp_path, "--every", "0.25")
    found = {each["function"]: each for each in end["functions"]}
    assert end["duration_s"] == pytest.approx(everything, rel=0.1)
    assert found["section"]["value"] * end["duration_s"] == pytest.approx(section, rel=0.05)
    # one call, in which the others are: of a recursion the outermost one is meant
    assert found["deep"]["value"] * end["duration_s"] == pytest.approx(1.0, rel=0.25)
    # a call that never ends is in each interval
    assert min(value for _, value in found["endless"]["series"][1:]) > 0.9
    assert found["endless"]["value"] * end["duration_s"] == pytest.approx(everything, rel=0.1)
    # what is in intervals is what is in all of the time, up to the last one that was whole
    last, seconds, summed = 0.0, [], 0.0
    for at, value in found["section"]["series"]:
        summed += value * (at - last)
        seconds.append(at - last)
        last = at
    assert summed == pytest.approx(section, abs=3 * 0.3 + 0.05 * section)
    assert {each["of"] for each in numbers} == {"concurrency"}


def test_threads_wait_and_calls_are_counted(tmp_path):
    _, end, section, _ = measured(tmp_path, "--of", "off")
    (found,) = (each for each in end["functions"] if each["function"] == "section")
    assert found["value"] == pytest.approx(section, rel=0.05)
    _, end, _, _ = measured(tmp_path, "--of", "calls")
    assert {each["function"]: each["value"] for each in end["functions"]} == {"section": 60, "deep": 6, "endless": 0}


def test_the_table_has_a_curve(tmp_path):
    program = build("sections.c", "-O2", "-pthread", text=PROGRAM)
    text = anyprobe("metric", "a.out:section", "a.out:endless", "--every", "0.5", "--", program).stderr
    assert re.search(r"^ +0\.5 s +[\d.]+ threads  section \(sections\)$", text, re.MULTILINE)
    assert re.search(r"^ *[\d.]+ +[\d.]+ +[\d.]+  [\u2800-\u28ff]+ +section +sections", text, re.MULTILINE)


def test_a_metric_with_handlers_of_its_own(monkeypatch, tmp_path):
    program = """
    #include <alloca.h>
    #include <unistd.h>
    __attribute__((noinline)) long work(long n) { __asm__ volatile("" : "+r"(n)); return n; }
    __attribute__((noinline)) long low(long n) { volatile char *some = alloca(4096); *some = 1; return work(n) + 1; }
    int main(void) { for (int n = 0; n < 100; n++) { low(work(n)); usleep(3000); } return 0; }
    """
    monkeypatch.setitem(METRICS, stack_metric.NAME, stack_metric.METRIC)
    out = tmp_path / "out"
    arguments = ["--of", "stack", "a.out:work", "a.out:low", "--every", "0.1", "--json", "-o", str(out)]
    assert main(["metric", *arguments, "--", str(build("stacks.c", "-O1", text=program))]) == 0
    *numbers, end = map(json.loads, out.read_text().splitlines())
    found = {each["function"]: each["value"] for each in end["functions"]}
    assert (end["of"], end["unit"], {each["of"] for each in numbers}) == ("stack", "bytes", {"stack"})
    assert found["low"] % 16 == 8  # the return address alone is on top of whole pairs of words
    assert 2 * (found["work"] - found["low"]) in range(4096, 4096 + 128)  # every other call is made by main
    # entries are added up, and ended calls are counted: an interval may have one more of these
    assert {each["spec"].split(":")[2] for each in numbers} == {"work", "low"}
    assert all(each["value"] > 0 for each in numbers)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--of", "nothing", "a.out:section"), "nothing"),
        (("--format", "flame", "a.out:section"), "--format flame"),
        (("kernel::vfs_read",), "not of the kernel"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(arguments, said):
    run = anyprobe("metric", *arguments, "--", "/bin/true")
    assert run.returncode == 2
    assert said in run.stderr
