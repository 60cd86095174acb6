"""``anyprobe inject``: faults by the stack, faults of a report once more, and every call site in turn."""

import json
import re

import pytest

from anyprobe.cli import main
from live.test_command_line import anyprobe
from support.driver import build

pytestmark = pytest.mark.live

PROGRAM = """
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
static jmp_buf back;
KEPT int work(int n) { __asm__ volatile(""); return n; }
KEPT void told(const char *who, int n) { if (work(n) != n) { printf("%s %d\\n", who, n); fflush(stdout); } }
KEPT void deep(int n) { told("deep", n); __asm__ volatile(""); }
KEPT void inner(int n) { char room[64]; memset(room, n, 64); deep(n); __asm__ volatile("" :: "r"(room)); }
KEPT void outer(int n, int leaves) { if (n > 0 && n % 10 == 0) outer(-n, 0); inner(n); if (leaves) longjmp(back, 1); }
KEPT void other(int n) { char room[4096]; memset(room, n, 4096); inner(n); __asm__ volatile("" :: "r"(room)); }
KEPT char *checked(void) { char *p = malloc(100); if (!p) { fputs("no memory\\n", stderr); exit(3); } return p; }
KEPT char *unchecked(void) { char *p = malloc(200); *(volatile char *)p = 1; return p; }
KEPT const char *silent(void) { char *p = malloc(300); return p ? "all of it" : "a part"; }
KEPT void tolerant(void) { char *p = malloc(300); if (p) *(volatile char *)p = 1; }
int main(int argc, char **words) {
    if (*words[1] == 's') for (int n = 1; n <= 30; n++) {
        other(100 + n);
        if (!setjmp(back)) outer(n, n % 7 == 0);
        other(200 + n);
    }
    if (*words[1] == 't') {
        for (int n = 1; n <= 40; n++) told("parent", n);
        for (int child = 1; child <= 2; child++) {
            if (!fork()) { for (int n = 1; n <= 40; n++) told(child == 1 ? "first" : "second", n); _exit(0); }
            wait(0);
        }
        if (argc > 2) execl("/proc/self/exe", words[0], "t", (char *)0);
    }
    if (*words[1] == 'm') {
        static char room[4096];
        setvbuf(stdout, room, _IOFBF, sizeof room);
        for (int i = 0; i < 2; i++) { checked(); unchecked(); puts(silent()); tolerant(); }
    }
}
"""


@pytest.fixture(scope="module")
def program():
    return str(build("injected_again.c", "-O1", "-g", "-fno-builtin", text=PROGRAM))


def inject(program, how, *options):
    given = ("--return", "-1") if "--replay" not in options else ()
    spec = ("a.out:work",) if "--replay" not in options else ()
    return anyprobe("inject", "--unsafe", *spec, *given, *options, "--", program, *how)


def test_only_calls_with_a_function_on_the_stack_fail(program):
    run = inject(program, "s", "--stack", "a.out:outer")
    told = run.stdout.split("\n")[:-1]
    expected = [f"deep {n}" for each in range(1, 31) for n in ([-each] if each % 10 == 0 else []) + [each]]
    assert told == expected  # also where outer was left by longjmp, and where it calls itself
    assert "33 of 33 calls" in run.stderr


def test_a_report_is_injected_again(program, tmp_path):
    report, again = tmp_path / "report.json", tmp_path / "again.json"
    chosen = ("--probability", "0.2", "--seed", "3", "--when", "n > 5")
    first = inject(program, ["t", "again"], *chosen, "--json", "-o", str(report))
    second = inject(program, ["t", "again"], "--replay", str(report), "--json", "-o", str(again))
    assert first.stdout == second.stdout
    lines = first.stdout.split()
    assert {"parent", "first", "second"} <= set(lines)
    listed, repeated = (json.loads(each.read_text())["injected"] for each in (report, again))
    where = [[(each[name]) for name in ("n", "program", "process", "function", "site")] for each in listed]
    assert where == [[(each[name]) for name in ("n", "program", "process", "function", "site")] for each in repeated]
    assert len(where) == len(lines) // 2
    assert {(program_, process) for _, program_, process, _, _ in where} == {(p, k) for p in (1, 2) for k in (1, 2, 3)}


def test_a_program_that_makes_other_calls_is_told_of(program, tmp_path):
    report = tmp_path / "report.json"
    inject(program, ["t"], "--every", "9", "--json", "-o", str(report))
    run = inject(program, ["s"], "--replay", str(report))
    assert re.search(r"\d+ of the 12 faults of the report came again", run.stderr)


def test_every_call_site_fails_once(program, tmp_path):
    report = tmp_path / "report.json"
    given = ["--unsafe", "libc:malloc", "--return", "0", "--errno", "ENOMEM", "--explore"]
    run = anyprobe("inject", *given, "--json", "-o", str(report), "--", program, "m")
    assert run.returncode == 0, run.stderr
    document = json.loads(report.read_text())
    assert document["without_faults"] == "exit 0"
    found = {each["site"].split(":")[1].split("+")[0]: each for each in document["explored"]}
    outcomes = {name: each["outcome"] for name, each in found.items()}
    assert outcomes == {
        "checked": "exit 3", "unchecked": "killed by SIGSEGV", "silent": "other output", "tolerant": "the same",
    }  # fmt: skip
    assert found["checked"]["detail"] == "no memory"
    assert {each["calls"] for each in found.values()} == {2}
    words = found["unchecked"]["command"].split()  # which repeats it
    again = anyprobe(*words[1 : words.index("--")], "--exit-status", *words[words.index("--") :])
    assert again.returncode == 128 + 11


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["a.out:work", "--replay", "x"], "--replay says itself"),
        (["--replay", "/nowhere/report"], "No such file"),
        (["--replay", "/etc/hostname"], "is no JSON document of anyprobe inject"),
        (["--return", "1"], "Missing argument"),
        (["a.out:work", "--sites", "--nth", "3"], "--sites says itself"),
        (["a.out:work", "--explore", "--return", "1", "--every", "3"], "--explore says itself"),
        (["a.out:work", "--return", "1", "--stack", "a.out:nothing_of_it"], "nothing_of_it"),
    ],
)
def test_what_contradicts_itself_is_refused(program, capfd, options, message):
    assert main(["inject", "--unsafe", *options, "--", program, "m"]) == 2
    assert message in capfd.readouterr().err


def test_explore_is_of_commands(capfd):
    assert main(["inject", "--unsafe", "libc:malloc", "--return", "0", "--explore"]) == 2
    assert "runs a command again and again" in capfd.readouterr().err


def test_call_sites_are_listed(program):
    run = anyprobe("inject", "--unsafe", "libc:malloc", "--sites", "--", program, "m")
    assert run.stdout.split("\n")[:2] == ["all of it", "all of it"]
    assert re.findall(r"call (\d): from injected_again:(\w+)\+", run.stderr) == [
        ("1", "checked"), ("2", "unchecked"), ("3", "silent"), ("4", "tolerant"),
    ]  # fmt: skip
    assert "4 call sites made 8 calls" in run.stderr
