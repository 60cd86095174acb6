"""``--clock cpu``: calls are timed by the clock of the thread, which stands still while it is not on a processor."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

import anyprobe
from live.test_command_line import anyprobe as command
from live.test_cpu_time import busy_machine  # noqa: F401 - a fixture
from support.driver import build, wait_until

pytestmark = pytest.mark.live
PERF_EVENT = "anon_inode:[perf_event]"
WAYS = {
    "threads": ("threads", "8"),
    "one-after-the-other": ("one after the other",),
    "no-descriptors": ("no descriptors",),
    "children": ("children",),
    "signals": ("signals",),
}


@pytest.fixture
def program():
    return str(build("own_time.c", "-pthread"))


def measured(tmp_path, program, *way, specs=("waits", "warms"), options=()):
    results = tmp_path / "results.json"
    ours = ["time", "--clock", "cpu", *specs, *options, "--json", "-o", str(results), "--exit-status"]
    found = command(*ours, "--", program, *way, input="\n")
    assert found.returncode == 0, found.stderr
    document = json.loads(results.read_text())
    return int(found.stdout.split()[-1]), {each["function"]: each for each in document["functions"]}


def told(tmp_path):
    """Return what is said of threads that have no page, and see that it is said that times are not those that pass."""
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["clock"] == "cpu"
    return [warning[:17] for warning in document.get("warnings", []) if "at each reading" in warning]


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_times_are_what_threads_had_of_processors(tmp_path, program, way):
    """By their own clocks, though they sleep, and wait for processors on a busy machine."""
    truth, found = measured(tmp_path, program, *way)
    waits = found["waits"]
    assert waits["nmissed"] == 0
    assert told(tmp_path) == (["4 threads ask for"] if way[0] == "no descriptors" else [])
    assert abs(waits["sum_ns"] - truth) <= 0.03 * truth
    assert waits["max_ns"] < 3 * truth / waits["count"]


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize("options", [["--self"], ["--tree", "--by", "tid"]], ids=" ".join)
def test_self_times_and_trees_are_of_it_too(tmp_path, program, options):
    truth, found = measured(
        tmp_path, program, "threads", "8", specs=("waits", "work", "a.out:step", "warms"), options=options
    )
    waits, work, step = (found[name] for name in ("waits", "work", "step"))
    assert abs(waits["sum_ns"] - truth) <= 0.03 * truth
    assert step["self_ns"] >= 0.8 * truth  # the rest is the kernel's part of sleeping
    assert work["self_ns"] <= 0.02 * truth
    assert abs(sum(each["self_ns"] for each in (waits, work, step)) - waits["sum_ns"]) <= 3


@pytest.mark.usefixtures("busy_machine")
def test_what_functions_have_off_processors_is_what_their_threads_had(tmp_path):
    """By the program's own clocks at both ends of what it calls, asleep and ready on a busy machine."""
    results = tmp_path / "results.json"
    names = ("half", "sleeps", "burns", "warms")
    run = command("time", "--cpu", "--tree", *names, "--json", "-o", results, "--", build("halves.c", "-pthread"))
    own = {name: int(value) for name, value in re.findall(r"(\w+) (\d+)", run.stdout)}
    document = json.loads(results.read_text())
    found = {each["function"]: each for each in document["functions"]}
    off = {name: found[name]["self_off_ns"] for name in names[:3]}
    assert found["half"]["sum_ns"] == pytest.approx(own["schedstat"], rel=0.02)
    assert off["sleeps"] == pytest.approx(own["sleeps"], rel=0.02)
    assert off["burns"] == pytest.approx(own["burns"], rel=0.02, abs=5_000_000)
    assert sum(off.values()) == pytest.approx(own["off"], rel=0.02)
    (half,) = (each for each in document["tree"] if each["function"] == "half")
    assert half["off_ns"] == pytest.approx(sum(off.values()), abs=3)
    assert {each["function"]: each["off_ns"] for each in half["calls"]} == {
        name: pytest.approx(off[name], abs=1) for name in ("sleeps", "burns")
    }
    table = command("time", "--clock", "cpu", "--self", *names, "--", build("halves.c", "-pthread")).stderr
    assert next(line for line in table.splitlines() if "calls" in line and "self" in line).count("self off") == 1


def perf_pages(pid):
    with open(f"/proc/{pid}/maps") as maps:
        return sum(PERF_EVENT in line for line in maps)


@pytest.fixture
def staying(program):
    with subprocess.Popen([program, "stays"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def go_on(process):
    process.stdin.write("\n")
    process.stdin.flush()


def descriptors(pid):
    return sorted(os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd"))


def test_no_page_and_no_descriptor_stays_in_the_program(staying):
    before = descriptors(staying.pid)
    with anyprobe.attach(staying.pid, clock="cpu", self_time=True) as session:
        session.time("waits", "work", "warms")
        go_on(staying)
        assert staying.stdout.readline() == "waits\n"
        spent = int(staying.stdout.readline())
        assert perf_pages(staying.pid) >= 1
        assert descriptors(staying.pid) == before
        (waits,) = (each for each in session.snapshot().functions if each.function == "waits")
        assert abs(waits.sum_ns - spent) <= 0.05 * spent
    assert perf_pages(staying.pid) == 0
    assert descriptors(staying.pid) == before


def test_nor_after_the_controller_was_killed(staying):
    ours = [sys.executable, "-m", "anyprobe", "time", "--clock", "cpu", "waits", "-p", str(staying.pid)]

    def calls_and_has_a_page():
        go_on(staying)  # a call for each line
        return perf_pages(staying.pid) > 0

    with subprocess.Popen(ours, stderr=subprocess.DEVNULL) as controller:
        wait_until(calls_and_has_a_page, "a page")
        controller.send_signal(signal.SIGKILL)
    found = command("detach", "-p", str(staying.pid))
    assert found.returncode == 0, found.stderr
    assert perf_pages(staying.pid) == 0


def test_threads_for_which_no_page_can_be_locked_any_more_have_their_own_clock():
    """Of an ordinary user: 300 threads at 64 kB, and what the kernel gives besides for each processor."""

    def limited():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))

    with open("/proc/sys/kernel/perf_event_mlock_kb") as file:
        pages = int(file.read()) // 4 * os.cpu_count() + 16
    threads = min(max(300, pages + 26), 2000)
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)  # noqa: S103 - for that user
    try:
        program = shutil.copy(build("crowd.c", "-O1", "-pthread"), folder)
        process = subprocess.Popen(
            [program, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=limited,  # noqa: PLW1509 - which makes a system call
            **({"user": 65534, "group": 65534} if os.getuid() == 0 else {}),
        )  # fmt: skip
        assert process.stdout.readline() == "ready\n"
    finally:
        shutil.rmtree(folder)
    with process:
        with anyprobe.attach(process.pid, clock="cpu") as session:
            session.time("waits", "warms")
            go_on(process)
            spent = int(process.stdout.readline())
            mapped, found = perf_pages(process.pid), session.snapshot()
        (waits,) = (each for each in found.functions if each.function == "waits")
        assert (waits.count, waits.nmissed) == (threads, 0)
        assert waits.sum_ns == pytest.approx(spent, rel=0.03)
        (said,) = (each for each in found.warnings if "at each reading" in each)
        assert 0 < int(said.split()[0]) == threads - mapped
        assert perf_pages(process.pid) == 0
        go_on(process)


def test_a_call_that_is_open_has_what_its_thread_had_by_then(program):
    """And not the time that has passed: main waits for a line."""
    with subprocess.Popen([program, "stays"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        with anyprobe.attach(process.pid, clock="cpu") as session:
            session.time("waits", "usleep")
            go_on(process)
            assert process.stdout.readline() == "waits\n"
            process.stdout.readline()
            (usleep,) = (each for each in session.snapshot().functions if each.function == "usleep")
            assert usleep.count == 20
            assert usleep.sum_ns < 0.2 * 20 * 2_000_000
        process.stdin.close()


GO = """
package main
import "fmt"
//go:noinline
func Work(n int) int { return n ^ 1 }
func main() { fmt.Println(Work(2)) }
"""
FILTERED = """
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
__attribute__((noinline)) int work(int n) { __asm__ volatile(""); return n + 1; }
int main(int count, char **words) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, all};
    char line[8];
    int n = 0;
    for (int i = 0; i < 100; i++) n = work(n);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    puts("ready");
    fflush(stdout);
    if (count > 1 && !fgets(line, 8, stdin)) return 1;
    for (int i = 0; i < 100; i++) n = work(n);
    return n != 200;
}
"""


def test_calls_after_a_filter_are_missed(tmp_path):
    program = str(build("filtered_later.c", text=FILTERED))
    results = tmp_path / "results.json"
    ours = ["time", "--clock", "cpu", "a.out:work", "--json", "-o", str(results), "--exit-status"]
    found = command(*ours, "--", program)
    assert found.returncode == 0, found.stderr
    document = json.loads(results.read_text())
    (work,) = document["functions"]
    assert (work["count"], work["nmissed"]) == (100, 100)
    assert any("filter its system calls" in warning for warning in document["warnings"])


def test_a_program_that_filters_is_refused():
    program = str(build("filtered_later.c", text=FILTERED))
    with subprocess.Popen([program, "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        found = command("time", "--clock", "cpu", "a.out:work", "-p", str(process.pid), "--for", "0.1")
        go_on(process)
    assert found.returncode == 1
    assert "no-cpu-clock" in found.stdout
    assert process.returncode == 0


def test_functions_of_go_are_refused():
    program = str(build("go_small.go", text=GO))
    found = command("time", "--clock", "cpu", "a.out:main.Work", "--", program)
    assert "no-cpu-clock" in found.stderr
