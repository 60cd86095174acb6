"""``anyprobe inject``: the calls that are chosen fail, as the program itself sees it, and no other one does."""

import json
import os
import re
import subprocess
import time

import pytest

from anyprobe.cli import main
from live.test_command_line import anyprobe, start
from support.driver import build, wait_until

pytestmark = pytest.mark.live

PROGRAM = """
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
static volatile long ran, sink;
KEPT long work(long n) { __atomic_fetch_add(&ran, 1, __ATOMIC_RELAXED); return 2 * n + 1; }
KEPT long idle(long n) { sink += n; return n; }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static long failed, wrong, errors;
static void calls(long count) {
    for (long i = 1; i <= count; i++) {
        errno = 0;
        double begin = now();
        long result = work(i);
        double took = now() - begin;
        if (result == 2 * i + 1 && took < 1) continue;
        __atomic_fetch_add(result == 2 * i + 1 ? &wrong : &failed, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&errors, errno, __ATOMIC_RELAXED);
        fprintf(stderr, "call %ld: %ld errno %d %s\\n", i, result, errno, took < 1 ? "at once" : "late");
    }
}
static void *thread(void *count) { calls((long)count); return 0; }
int main(int argc, char **words) {
    long count = atol(words[2]);
    if (*words[1] == 'p') calls(count);
    if (*words[1] == 't') {
        pthread_t t[8];
        for (int i = 0; i < 8; i++) pthread_create(t + i, 0, thread, (void *)count);
        for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
    }
    if (*words[1] == 'f') { if (!fork()) { calls(count); _exit(0); } wait(0); calls(count); }
    if (*words[1] == 'm') for (long i = 1; i <= count; i++) {
        char *p = malloc(4000 + i);
        if (!p) fprintf(stderr, "no %ld\\n", i);
        free(p);
    }
    if (*words[1] == 'h') for (long i = 1; i <= count; i++) idle(i);
    if (*words[1] == 'e') for (;;) { calls(1); usleep(1000); }
    fprintf(stderr, "failed %ld late %ld ran %ld errors %ld\\n", failed, wrong, ran, errors);
}
"""


@pytest.fixture(scope="module")
def program():
    return build("faulty.c", "-O1", "-g", "-pthread", "-fno-builtin", text=PROGRAM)


def inject(program, *options, how="p", count=1000):
    """Return the document, and what the program has written."""
    words = ("inject", "--unsafe", *options, "--json", "-o", "/dev/stdout", "--", program, how, str(count))
    found = anyprobe(*words)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout), found.stderr


def failed_calls(text):
    return [int(number) for number in re.findall(r"call (\d+): ", text)]


def numbers(document):
    return [each["n"] for each in document["injected"]]


def test_every_nth_call_returns_what_was_asked_for_and_does_not_run(program):
    document, text = inject(program, "a.out:work", "--return", "-1", "--errno", "EIO", "--every", "300")
    assert failed_calls(text) == numbers(document) == [300, 600, 900]
    assert "call 300: -1 errno 5 at once" in text
    assert "failed 3 late 0 ran 997 errors 15" in text
    assert (document["calls"], document["injections"]) == (1000, 3)
    (first, *_) = document["injected"]
    assert (first["function"], first["returned"], first["errno"]) == (f"{program.name}:work", -1, "EIO")
    assert first["pid"] == first["tid"] == document["target"]["pid"]


def test_the_nth_call_alone_of_those_under_a_condition(program):
    document, text = inject(program, "a.out:work", "--return", "0", "--nth", "5", "--when", "n % 10 == 0")
    assert failed_calls(text) == [50]
    assert numbers(document) == [5]
    assert document["calls"] == 100


def test_a_seed_chooses_the_same_calls_each_time_and_another_one_others(program):
    """The share is as asked for: of 20,000 calls with 2 % each, 400 are expected, and 20 is the deviation."""
    first, text = inject(program, "a.out:work", "--return", "0", "--probability", "0.02", "--seed", "7", count=20_000)
    again, _ = inject(program, "a.out:work", "--return", "0", "--probability", "0.02", "--seed", "7", count=20_000)
    other, _ = inject(program, "a.out:work", "--return", "0", "--probability", "0.02", "--seed", "8", count=20_000)
    assert failed_calls(text) == numbers(first) == numbers(again)
    assert len(set(numbers(first)) & set(numbers(other))) < 40
    assert 300 < len(numbers(first)) < 500
    assert 300 < len(numbers(other)) < 500


def test_no_number_is_given_twice_where_threads_call_at_once(program):
    document, text = inject(program, "a.out:work", "--return", "0", "--every", "1000", how="t", count=20_000)
    assert sorted(numbers(document)) == [*range(1000, 160_001, 1000)]
    assert document["calls"] == 160_000
    assert "failed 160 late 0 ran 159840" in text


def test_each_process_has_numbers_of_its_own(program):
    document, text = inject(program, "a.out:work", "--return", "0", "--nth", "30", how="f", count=100)
    assert failed_calls(text) == [30, 30]
    assert len({each["pid"] for each in document["injected"]}) == 2
    assert document["calls"] == 200


def test_memory_runs_out_for_the_calls_that_are_chosen(program):
    options = ("libc:malloc", "--return", "0", "--errno", "ENOMEM", "--every", "4", "--when", "arg0 > 4000")
    document, text = inject(program, *options, how="m", count=10)
    assert re.findall(r"no (\d+)", text) == ["4", "8"]
    assert {each["function"] for each in document["injected"]} == {"libc.so.6:malloc"}


def test_a_delay_holds_the_call_up_and_then_it_runs(program):
    document, text = inject(program, "a.out:work", "--delay", "1.5", "--nth", "40", count=100)
    assert "call 40: 81 errno 0 late" in text
    assert "failed 0 late 1 ran 100" in text
    assert document["injected"][0]["delay_s"] == 1.5


def test_threads_are_held_up_side_by_side_and_their_calls_then_fail(program):
    began = time.monotonic()
    options = ("a.out:work", "--delay", "1.5", "--return", "6", "--errno", "5", "--every", "10")
    document, text = inject(program, *options, how="t", count=10)
    assert time.monotonic() - began < 8 * 1.5
    assert text.count(": 6 errno 5 late") == 8
    assert "failed 8 late 0 ran 72 errors 40" in text
    assert sorted(numbers(document)) == [*range(10, 81, 10)]


@pytest.fixture
def endless(program, tmp_path):
    """A process that calls a thousand times a second, and the file that it writes to."""
    said = tmp_path / "said"
    with said.open("w") as errors, subprocess.Popen([program, "e", "1"], stderr=errors) as process:
        try:
            yield process.pid, said
            assert process.poll() is None, "the target died"
        finally:
            process.kill()


def test_a_running_program_is_as_before_afterwards(endless):
    pid, said = endless
    before = text_of(pid)
    words = ("inject", "--unsafe", "a.out:work", "--return", "0", "--every", "5", "--for", "0.5", "-p", str(pid))
    found = anyprobe(*words)
    assert re.search(r"work call 5: returned 0", found.stdout)
    assert re.search(r"^[1-9]\d* of [1-9]\d* calls: returned 0$", found.stdout, re.MULTILINE)
    assert text_of(pid) == before
    listed = len(re.findall(r"call [\d,]+: returned", found.stdout))
    assert listed == said.read_text().count("call 1: 0 errno 0")


def text_of(pid):
    """Return the bytes of the program's own code."""
    with open(f"/proc/{pid}/maps") as maps:
        exe = os.readlink(f"/proc/{pid}/exe")
        start, end = next(line for line in maps if "r-xp" in line and exe in line).split()[0].split("-")
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        memory.seek(int(start, 16))
        return memory.read(int(end, 16) - int(start, 16))


def test_when_it_is_killed_detach_ends_the_faults(endless):
    pid, said = endless
    before = text_of(pid)
    with start("inject", "--unsafe", "a.out:work", "--return", "0", "-p", str(pid)) as injecting:
        try:
            wait_until(lambda: "call 1: 0" in said.read_text(), "a call fails")
        finally:
            injecting.kill()
    assert anyprobe("detach", "-p", str(pid)).returncode == 0
    assert text_of(pid) == before
    failures = said.read_text().count("call 1: 0")
    time.sleep(0.1)
    assert said.read_text().count("call 1: 0") == failures


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--return", "0"), "--unsafe says that this is wanted"),
        (("--unsafe",), "what is to be injected?"),
        (("--unsafe", "--errno", "EIO"), "--errno needs --return"),
        (("--unsafe", "--return", "x"), "'x' is no whole number"),
        (("--unsafe", "--return", "1" * 30), "does not fit 64 bits"),
        (("--unsafe", "--return", "0", "--errno", "ENOMEN"), "ENOMEM"),
        (("--unsafe", "--return", "0", "--every", "2", "--nth", "3"), "--every and --nth both say which calls"),
        (("--unsafe", "--return", "0", "--seed", "3"), "--seed is about --probability"),
        (("--unsafe", "--return", "0", "--when", "n +"), "invalid syntax"),
        (("--unsafe", "--return", "0", "--when", "retval > 0"), "where a function is entered"),
        (("--unsafe", "--return", "0", "--when", "nothing"), "nothing is not defined"),
    ],
)
def test_what_means_nothing_is_told_before_anything_changes(program, capfd, options, message):
    assert main(["inject", "a.out:work", *options, "--leave", "--", str(program), "p", "3"]) == 2
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("spec", ["a.out:work%return", "a.out:work+0x1", "kernel::vfs_read", "a.out:wrok"])
def test_places_that_are_no_entry_of_a_function_are_refused(program, capfd, spec):
    assert main(["inject", "--unsafe", spec, "--return", "0", "--leave", "--", str(program), "p", "3"]) == 2
    assert capfd.readouterr().err


def test_a_program_that_is_not_there(capfd):
    assert main(["inject", "--unsafe", "a.out:work", "--return", "0", "-p", "4194304"]) == 1
    assert "there is no process" in capfd.readouterr().err


def test_what_comes_faster_than_it_can_be_listed_is_counted(program):
    document, _ = inject(program, "a.out:idle", "--return", "9", how="h", count=400_000)
    assert document["injections"] == document["calls"] == 400_000
    listed = len(document["injected"])
    assert listed + document.get("dropped", {}).get("injected", {}).get("ring full", 0) == 400_000
