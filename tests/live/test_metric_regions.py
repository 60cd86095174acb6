"""``anyprobe metric`` of regions, under conditions and by keys, beside the program's own record."""

import json
import re

import pytest

from live.test_command_line import anyprobe
from support.driver import build

pytestmark = pytest.mark.live
PROGRAM = """
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
#define DONE __asm__ volatile("nop;nop;nop;nop;nop;nop" ::: "memory")
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
KEPT void begins(int kind) { DONE; }
KEPT void ends(int kind) { DONE; }
KEPT void works(int us, const char *kind) { usleep(us); DONE; }
KEPT void deep(int n) { begins(1); if (n) deep(n - 1); else usleep(50000); ends(1); DONE; }
static jmp_buf out;
static double in_region[2];
static void region(long number, int us)
{
    double began = now();
    begins(0);
    works(us, us > 15000 ? "long" : "short");
    ends(0);
    in_region[number] += now() - began;
}
static void *runs(void *number)
{
    for (int n = 0; n < 20; n++) region((long)number, n % 2 ? 20000 : 10000);
    return 0;
}
static void *never_ends(void *arg) { begins(2); for (;;) pause(); return arg; }
int main(void)
{
    pthread_t threads[2], other;
    for (long n = 0; n < 2; n++) pthread_create(threads + n, 0, runs, (void *)n);
    for (int n = 0; n < 2; n++) pthread_join(threads[n], 0);
    double began = now();
    deep(3);
    double nested = now() - began;
    if (!setjmp(out)) { begins(0); longjmp(out, 1); }
    begins(0);
    ends(0);
    ends(0);
    began = now();
    pthread_create(&other, 0, never_ends, 0);
    usleep(300000);
    printf("region %.6f nested %.6f open %.6f\\n", in_region[0] + in_region[1], nested, now() - began);
    return 0;
}
"""


def measured(tmp_path, *options):
    """Return the numbers, the document at the end, and what the program says of its own times."""
    program, out = build("regions.c", "-O1", "-pthread", text=PROGRAM), tmp_path / "out"
    run = anyprobe("metric", *options, "--json", "-o", out, "--", program)
    assert run.returncode == 0, run.stderr
    own = re.search(r"region ([\d.]+) nested ([\d.]+) open ([\d.]+)", run.stdout)
    *numbers, end = map(json.loads, out.read_text().splitlines())
    return numbers, end, [float(each) for each in own.groups()]


REGION = ("--from", "a.out:begins", "--to", "a.out:ends%return")


def test_a_region_is_from_the_outermost_beginning_to_its_end_and_what_is_open_counts(tmp_path):
    numbers, end, (region, nested, still_open) = measured(tmp_path, *REGION, "--of", "wall", "--every", "0.1")
    (found,) = end["functions"]
    assert found["value"] == pytest.approx(region + nested + still_open, rel=0.04)
    assert (end["nested"], end["left"], end["unbegun"]) == (3, 1, 1)
    # all of the intervals together are all of it, but for what came after the last whole one
    summed = sum(each["value"] for each in numbers)
    assert found["value"] - 0.2 <= summed <= found["value"] * 1.01
    last = 0.0
    for at, value in found["series"]:
        assert value <= 2.2 * (at - last) + 0.02  # two threads at the most, between two readings
        last = at


def test_series_are_by_thread_and_of_those_that_meet_a_condition(tmp_path):
    _, end, (region, _, _) = measured(tmp_path, *REGION, "--of", "wall", "--by", "tid", "--when", "i32(arg0) == 0")
    threads = [each for each in end["functions"] if each["value"] > 0.05]
    assert len({each["key"]["tid"] for each in threads}) == len(threads) == 2
    assert sum(each["value"] for each in threads) == pytest.approx(region, rel=0.03)


def test_calls_are_told_apart_by_what_they_are_given(tmp_path):
    _, end, _ = measured(tmp_path, "a.out:works", "--of", "calls", "--by", "kind=cstr(arg1, 16)")
    assert {each["key"]["kind"]: each["value"] for each in end["functions"]} == {"long": 20, "short": 20}
    _, end, (region, _, _) = measured(tmp_path, "a.out:works", "--by", "pid", "--of", "concurrency")
    (found,) = end["functions"]
    assert found["value"] * end["duration_s"] == pytest.approx(region, rel=0.04)
    _, end, (region, _, _) = measured(tmp_path, "a.out:works", "--of", "off", "--when", "i32(arg0) == 20000")
    (found,) = end["functions"]
    assert 20 * 0.02 <= found["value"] <= region - 20 * 0.01


def test_time_on_processors_and_off_them_is_all_the_time(tmp_path):
    for of, low, high in (("cpu", 0.0, 0.1), ("off", 0.9, 1.02)):
        _, end, (region, _, _) = measured(tmp_path, *REGION, "--of", of, "--when", "i32(arg0) == 0")
        (found,) = end["functions"]
        assert low * region < found["value"] < high * region, of


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", "a.out:begins"), "--from SPEC and --to SPEC"),
        (("a.out:works", *REGION), "--from SPEC and --to SPEC"),
        (("a.out:works", "--when", "retval == 0"), "there is no result and no time yet"),
        ((*REGION, "--by", "arg0"), "--by of a region is one of comm, pid, tid"),
        (("a.out:works+4", "--by", "tid"), "is no function"),
        (("a.out:works", "--by", "tdi"), "tdi is not defined"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(options, said):
    run = anyprobe("metric", *options, "--", build("regions.c", "-O1", "-pthread", text=PROGRAM))
    assert run.returncode == 2, run.stderr
    assert said in run.stderr


def test_what_is_kept_is_shown_added_up_and_compared(tmp_path):
    program, kept = build("regions.c", "-O1", "-pthread", text=PROGRAM), tmp_path / "run.aprobe"
    options = (*REGION, "--of", "wall", "--by", "tid", "--when", "i32(arg0) == 0", "--every", "0.1")
    run = anyprobe("metric", *options, "-o", kept, "--", program)
    assert run.returncode == 0, run.stderr
    region = float(re.search(r"region ([\d.]+)", run.stdout)[1])

    def threads(*arguments):
        found = json.loads(anyprobe(*arguments, "--json").stdout)
        return {each["key"]["tid"]: each for each in found["functions"] if each["value"] > 0.05}

    shown = threads("show", kept)
    assert len(shown) == 2
    assert sum(each["value"] for each in shown.values()) == pytest.approx(region, rel=0.03)
    for each in shown.values():  # with what came after the last whole interval
        assert sum(value for _, value in each["series"]) == pytest.approx(each["value"], rel=0.01)
    doubled = threads("merge", kept, kept)
    assert {tid: each["value"] for tid, each in doubled.items()} == {
        tid: pytest.approx(2 * each["value"]) for tid, each in shown.items()
    }
    table = anyprobe("show", kept).stdout
    assert len(re.findall(r"  [\u2800-\u28ff]+  .*begins to .*tid=\d+", table)) >= 2
    compared = json.loads(anyprobe("diff", kept, kept, "--json").stdout)
    assert (compared["of"], compared["unit"]) == ("wall", "s")
    assert all(each["before"] == each["after"] for each in compared["metrics"])
    refused = anyprobe("show", kept, "--format", "flame")
    assert (refused.returncode, "not --format flame" in refused.stderr) == (2, True)
