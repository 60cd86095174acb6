"""``anyprobe profile``: shares that the program itself has measured, and no chain of calls that it cannot make."""

import errno
import json
import re
import shlex
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest

from anyprobe import profile
from anyprobe.cli.commands.schema import text_of
from anyprobe.target.system import gateway, procfs
from live.test_command_line import anyprobe, start
from support.driver import build, wait_until

pytestmark = pytest.mark.live
KNOWN = """
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define PLAIN __attribute__((noinline, noclone))
static volatile unsigned long sink;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
#define BURN(name) PLAIN double name(double s) { \\
    double begin = now(), end; \\
    do { for (int i = 0; i < 100000; i++) sink += i * i; end = now(); } while (end - begin < s); \\
    return end - begin; }
BURN(sixty)
BURN(thirty)
BURN(ten)
PLAIN double both(double s) { return thirty(3 * s) + ten(s); }
PLAIN void work(double seconds) {
    double spent = 0, first = 0;
    while (spent < seconds) { double a = sixty(.06), b = both(.01); first += a; spent += a + b; }
    fprintf(stderr, "%f %f\\n", first, spent);
}
static double seconds;
static void *thread(void *name) { pthread_setname_np(pthread_self(), name); work(seconds); return 0; }
static int compared(const void *a, const void *b) { ten(.01); return *(int *)a - *(int *)b; }
static void handler(int number) { ten(.1); sink += number; }
int main(int count, char **words) {
    seconds = atof(words[2]);
    switch (words[1][0]) {
    case 'a': work(seconds); break;
    case 't': {
        pthread_t t[2];
        pthread_create(t, 0, thread, "first");
        pthread_create(t + 1, 0, thread, "second");
        pthread_join(t[0], 0);
        pthread_join(t[1], 0);
        break;
    }
    case 'f': if (!fork()) { work(seconds); _exit(0); } wait(0); break;
    case 'q': {
        int numbers[24];
        for (int i = 0; i < 24; i++) numbers[i] = i * 7 % 24;
        qsort(numbers, 24, sizeof *numbers, compared);
        break;
    }
    case 's': {
        struct itimerval every = {{0, 200000}, {0, 200000}};
        signal(SIGPROF, handler);
        setitimer(ITIMER_PROF, &every, 0);
        sixty(seconds);
        break;
    }
    case 'z': sleep(20);
    }
    return sink == 1;
}
"""
CALLERS = {
    "sixty": {"work", "main"},
    "both": {"work"},
    "thirty": {"both"},
    "ten": {"both", "compared", "handler"},
    "work": {"main", "thread"},
}
"""Who calls whom."""
SAMPLING_SINCE = {}
ROOTS = {"_start", "clone", "clone3", "__clone", "__clone3"}


@pytest.fixture(scope="module")
def known():
    options = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]
    return build("profiled.c", *options, text=KNOWN)


def document_of(known, what, seconds=2, *options, tmp_path):
    path = tmp_path / "profile.json"
    done = anyprobe("profile", "--json", "-o", path, *options, "--", known, what, str(seconds))
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    jsonschema.validate(document, json.loads(text_of("profile")))
    return document, done.stderr


def function_names(stack):
    return [each.rpartition(":")[2] for each in stack["frames"]]


def samples_with(document, name):
    return sum(each["count"] for each in document["stacks"] if name in function_names(each))


def check_chains(document):
    """Stacks end where programs and threads begin, or say that they do not; every call is one of the program."""
    assert document["samples"] == sum(each["count"] for each in document["stacks"])
    assert document["truncated"] <= document["samples"] * 0.02
    for stack in document["stacks"]:
        names = function_names(stack)
        assert stack["truncated"] or names[-1] in ROOTS, stack
        for callee, caller in pairwise(names):
            assert caller in CALLERS.get(callee, {caller}), stack


def expected(seconds):
    """Return how many samples there are of so many seconds on processors: where these are sampled, by chance."""
    return pytest.approx(99 * seconds, abs=4 * (99 * seconds) ** 0.5 + 4)


def near(count, share, samples):
    """Return whether a share of samples is one that chance makes: within four standard deviations."""
    return abs(count - share * samples) <= 4 * (samples * share * (1 - share)) ** 0.5 + 2


@pytest.mark.parametrize("what", ["alone", "threads", "fork"])
def test_shares_are_those_that_the_program_has_measured(known, what, tmp_path):
    document, said = document_of(known, what, tmp_path=tmp_path)
    times = [tuple(map(float, found)) for found in re.findall(r"^([\d.]+) ([\d.]+)$", said, re.MULTILINE)]
    first, spent = map(sum, zip(*times, strict=True))
    assert len(times) == (2 if what == "threads" else 1)
    check_chains(document)
    assert document["processor_s"] == pytest.approx(spent, rel=0.1, abs=0.1)
    assert near(samples_with(document, "sixty"), first / spent, document["samples"])
    assert near(samples_with(document, "both"), 1 - first / spent, document["samples"])
    assert document["samples"] + document["lost"] == expected(document["processor_s"])
    own = {each["function"]: each["self"] for each in document["functions"]}
    assert own["sixty"] > own["thirty"] > own["ten"] > 0


def test_threads_are_told_apart_by_name(known, tmp_path):
    document, _ = document_of(known, "threads", 1, "--by", "comm", tmp_path=tmp_path)
    assert {each["comm"] for each in document["functions"] if each["function"] == "sixty"} == {"first", "second"}


def test_a_function_that_a_library_calls_is_below_it(known, tmp_path):
    document, _ = document_of(known, "qsort", tmp_path=tmp_path)
    check_chains(document)
    assert samples_with(document, "compared") >= 0.9 * document["samples"]
    stacks = [function_names(each) for each in document["stacks"] if "compared" in function_names(each)]
    assert all(names[-4:-3] == ["main"] for names in stacks)


def test_stacks_go_on_below_a_signal_handler(known, tmp_path):
    document, _ = document_of(known, "signal", tmp_path=tmp_path)
    check_chains(document)
    in_handler = [names for names in map(function_names, document["stacks"]) if "handler" in names]
    assert in_handler
    assert all("sixty" in names[names.index("handler") :] for names in in_handler)


def test_a_program_that_sleeps_has_no_samples(known):
    with subprocess.Popen([known, "z", "1"]) as process:
        done = anyprobe("profile", "-p", str(process.pid), "--for", "0.5")
        process.kill()
    assert done.returncode == 0
    assert "no samples" in done.stdout
    assert "next:" not in done.stdout


def test_a_program_that_ends_has_what_there_was(known):
    with subprocess.Popen([known, "a", "1"], stderr=subprocess.DEVNULL) as process:
        done = anyprobe("profile", "-p", str(process.pid), "--for", "60")
    assert done.returncode == 0
    assert "which has ended" in done.stdout
    assert "sixty" in done.stdout


def test_the_command_to_run_next_runs(known):
    with subprocess.Popen([known, "a", "100"], stderr=subprocess.DEVNULL) as process:
        done = anyprobe("profile", "-p", str(process.pid), "--for", "1")
        line = done.stdout.splitlines()[-1].removeprefix("next: ")
        assert line.startswith("anyprobe time --self ")
        timed = anyprobe(*shlex.split(line)[1:], "--for", "1", "--json")
        process.kill()
    assert timed.returncode == 0, timed.stderr
    functions = {each["function"]: each["count"] for each in json.loads(timed.stdout)["functions"]}
    assert functions["sixty"] > 0
    assert functions["thirty"] > 0


def test_stacks_for_other_tools(known, tmp_path):
    for name in ("folded", "speedscope"):
        done = anyprobe("profile", "--format", name, "-o", tmp_path / name, "--", known, "a", "1")
        assert done.returncode == 0, done.stderr
    lines = [line.rpartition(" ") for line in (tmp_path / "folded").read_text().splitlines()]
    assert any(path.endswith("main;work;sixty") for path, _, _ in lines)
    assert 0.5e9 < sum(int(ns) for _, _, ns in lines) < 2e9
    (profile,) = json.loads((tmp_path / "speedscope").read_text())["profiles"]
    assert profile["endValue"] == sum(profile["weights"])


def test_a_flame_graph_says_that_it_is_of_samples(known, tmp_path):
    done = anyprobe("profile", "--format", "flame", "-o", tmp_path / "page", "--", known, "a", "0.5")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page").read_text()
    data = json.loads(page.partition('<script type="application/json" id="profile">')[2].partition("</script>")[0])
    assert data["counted"] == "samples"
    assert data["facts"].startswith("Time on processors by ")
    assert ["sixty", "profiled"] in data["names"]


def test_from_python(known):
    with subprocess.Popen([known, "a", "100"], stderr=subprocess.DEVNULL) as process:
        found = profile(process.pid, duration=2.0)
        process.kill()
    assert found.samples == expected(found.processor_s)
    assert {"main", "work", "sixty"} <= {each.function for each in found.functions}
    assert found.as_json()["samples"] == found.samples
    assert found.next.startswith("anyprobe time --self profiled:")


GO = """
package main

import ("os"; "strconv"; "time")

//go:noinline
func leaf(n int) int { s := 0; for i := 0; i < n; i++ { s += i * i }; return s }

//go:noinline
func middle(n int) int { return leaf(n) + leaf(n/2) + 1 }

func main() {
	seconds, _ := strconv.ParseFloat(os.Args[2], 64)
	end, done := time.Now().Add(time.Duration(seconds * 1e9)), make(chan int)
	go func() { t := 0; for time.Now().Before(end) { t += middle(100000) }; done <- t }()
	t := 0
	for time.Now().Before(end) { t += middle(100000) }
	println(t, <-done)
}
"""


def test_goroutines_have_whole_stacks(tmp_path):
    document, _ = document_of(build("profiled.go", text=GO), "", 2, tmp_path=tmp_path)
    assert document["truncated"] <= 0.1 * document["samples"]
    assert samples_with(document, "main.leaf") >= 0.8 * document["samples"]
    for stack in document["stacks"]:
        names = [name.removesuffix(".abi0") for name in function_names(stack) if name.startswith(("main.", "runtime."))]
        if "main.leaf" in names and not stack["truncated"]:
            start = names[names.index("main.leaf") :]
            assert start[:2] == ["main.leaf", "main.middle"]
            assert start[2:] in (["main.main", "runtime.main", "runtime.goexit"], ["main.main.func1", "runtime.goexit"])


def test_what_is_executed_is_sampled_with_its_own_functions(known, tmp_path):
    path = tmp_path / "profile.json"
    done = anyprobe("profile", "--json", "-o", path, "--by", "pid", "--", "sh", "-c", f"{known} a 1; exec {known} a 1")
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    assert len({each["pid"] for each in document["functions"] if each["function"] == "sixty"}) == 2
    assert {each["generation"] for each in document["processes"]} == {2}
    check_chains(document)
    assert document["next"].endswith(f"-- sh -c '{known} a 1; exec {known} a 1'")


def test_threads_that_are_there_already_are_each_sampled_once(known):
    with subprocess.Popen([known, "t", "100"], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(procfs.read_tasks(process.pid)) == 3, "its threads run")
        found = profile(process.pid, duration=1.5, by="tid")
        process.kill()
    assert found.samples == expected(found.processor_s)
    assert len(found.keys) == 2


COMPILED = """
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
// push rbp; mov rbp, rsp; mov ecx, edi; 0: dec ecx; jnz 0b; pop rbp; ret
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x89, 0xf9, 0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};
int main(void) {
    char path[64];
    void *place = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(place, code, sizeof code);
    mprotect(place, 4096, PROT_READ | PROT_EXEC);
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    FILE *file = fopen(path, "w");
    fprintf(file, "%lx 1000 old name\\nno line\\n", (long)place);
    fprintf(file, "%lx %zx JS:spin (loop.js:1)\\n", (long)place, sizeof code);
    fclose(file);
    puts("ready");
    fflush(stdout);
    for (;;) ((void (*)(int))place)(1000000);
}
"""


def test_code_that_a_compiler_has_made_has_the_name_that_it_tells_and_its_callers():
    program = build("compiled.c", "-O1", text=COMPILED)
    with subprocess.Popen([program], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        found = profile(process.pid, duration=1.0)
        process.kill()
        Path(f"/tmp/perf-{process.pid}.map").unlink()
    named = [each for each in found.stacks if each.frames[0][:2] == ("[jit]", "JS:spin (loop.js:1)")]
    assert sum(each.count for each in named) > 0.8 * found.samples
    whole = [[frame.function for frame in each.frames] for each in named if not each.truncated]
    assert ["JS:spin (loop.js:1)", "main", "__libc_start_call_main"] in [names[:3] for names in whole]
    assert found.next == ""


def test_hot_functions_are_timed_in_one_step(known):
    with subprocess.Popen([known, "a", "100"], stderr=subprocess.DEVNULL) as process:
        timed = anyprobe("time", "--hot", "2", "-p", str(process.pid), "--for", "1", "--json")
        process.kill()
    assert timed.returncode == 0, timed.stderr
    functions = {each["function"]: each for each in json.loads(timed.stdout)["functions"]}
    assert functions.keys() == {"sixty", "thirty"}
    assert all(each["count"] > 0 and each["self_ns"] > 0 for each in functions.values())


def test_nothing_is_hot_in_a_program_that_sleeps(known):
    with subprocess.Popen([known, "z", "1"]) as process:
        timed = anyprobe("time", "--hot", "2", "-p", str(process.pid))
        process.kill()
    assert timed.returncode == 1
    assert timed.stderr.startswith("anyprobe: --hot: nothing is hot")
    assert timed.stderr.count("\n") == 1


SHORT = """
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
volatile unsigned long sink;
__attribute__((noinline)) void spin(void) { for (int i = 0; i < 400000; i++) sink += i; }
static void *thread(void *unused) { spin(); return unused; }
int main(void) {
    for (int i = 0; i < 600; i++) {
        pthread_t t;
        pthread_create(&t, 0, thread, 0);
        pthread_join(t, 0);
        pid_t child = fork();
        if (!child) { spin(); _exit(0); }
        waitpid(child, 0, 0);
    }
}
"""


@pytest.mark.root
def test_threads_and_children_that_run_for_a_moment_have_their_share(tmp_path):
    path = tmp_path / "profile.json"
    done = anyprobe("profile", "--json", "-o", path, "--", build("short_threads.c", "-O1", "-pthread", text=SHORT))
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    samples = document["samples"]
    assert samples == expected(document["processor_s"])
    stacks = [function_names(each) for each in document["stacks"] for _ in range(each["count"])]
    spinning = [names for names in stacks if "spin" in names]
    assert len(spinning) > 0.5 * samples
    in_threads = sum("thread" in names for names in spinning)
    assert near(in_threads, 0.5, len(spinning))
    assert all(names[names.index("spin") + 1] in {"thread", "main"} for names in spinning)


def test_users_who_may_sample_their_own_programs_alone_have_the_same(known, monkeypatch):
    opened = gateway.perf_event_open

    def own_alone(attribute, processor, task=-1):
        if task == -1:
            raise PermissionError(errno.EACCES, "permission denied")
        return opened(attribute, processor, task)

    monkeypatch.setattr(gateway, "perf_event_open", own_alone)
    with subprocess.Popen([known, "t", "100"], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(procfs.read_tasks(process.pid)) == 3, "its threads run")
        found = profile(process.pid, duration=1.5, by="tid")
        process.kill()
    assert found.samples == pytest.approx(99 * found.processor_s, abs=6)
    assert len(found.keys) == 2
    check_chains(found.as_json())


def samples_since(pid):
    """Return for how many seconds a command has had an event of the kernel open, as far as that has been seen."""
    has_event = "[perf_event]" in Path(f"/proc/{pid}/maps").read_text()
    first = SAMPLING_SINCE.setdefault(pid, time.monotonic()) if has_event else time.monotonic()
    return time.monotonic() - first


def test_ctrl_c_has_what_there_was(known):
    with subprocess.Popen([known, "a", "100"], stderr=subprocess.DEVNULL) as process:
        with start("profile", "-p", str(process.pid), "--for", "1000") as profiling:
            wait_until(lambda: samples_since(profiling.pid) > 1, "it has sampled for a second")
            profiling.send_signal(signal.SIGINT)
            shown, said = profiling.communicate(timeout=180)
        process.kill()
    assert profiling.returncode == 130, said
    assert "sixty" in shown
