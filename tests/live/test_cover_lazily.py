"""Coverage whose probes come as functions are entered: the same as with all probes from the beginning."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import anyprobe
from live.test_command_line import anyprobe as command
from live.test_coverage import PROGRAMS, built, gcovs
from support.driver import build, wait_until

pytestmark = pytest.mark.live
CHILDREN = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static __attribute__((noinline)) int deep(int n) { return n > 100 ? n * 7 : n - 1; }
static __attribute__((noinline)) int in_child(int n) { return n > 2 ? deep(n) + 3 : n - 9; }
static __attribute__((noinline)) int in_grandchild(int n) { return n > 2 ? deep(n + 200) & 3 : 7; }
static __attribute__((noinline)) int in_parent(int n) { return n - 3; }
int (*volatile never)(int) = in_grandchild;
int main(int argc, char **argv) {
    pid_t child = fork();
    if (!child) {
        if (!fork()) {
            for (int i = 0; i < 50; i++)
                in_grandchild(4);
            _exit(0);
        }
        int status;
        wait(&status);
        exit(in_child(4));
    }
    int status;
    waitpid(child, &status, 0);
    return argc > 3 ? never(3) : in_parent(3) + WEXITSTATUS(status) - 6;
}
"""
WORK = """
#include <stdio.h>
#include <stdlib.h>
static volatile int marks;
static __attribute__((noinline)) int even(int n) { return n > 6 ? n / 2 : n; }
static __attribute__((noinline)) int odd(int n) {
    if (n > 6)
        marks++;
    return n > 6 ? n * 3 : n + 1;
}
static __attribute__((noinline)) int unused(int n) { return n > 6 ? n * 5 : n + 2; }
static __attribute__((noinline)) int outer(int argc) {
    char line[16];
    int sum = 0;
    while (fgets(line, sizeof line, stdin)) {
        int n = atoi(line);
        if (n == 1000)
            sum += unused(argc);
        else
            sum += n & 1 ? odd(n) : even(n);
        printf("%d\\n", sum);
        fflush(stdout);
    }
    return sum;
}
int main(int argc, char **argv) {
    puts("ready");
    fflush(stdout);
    return outer(argc) ? 0 : 1;
}
"""
CONTROLLER = """
import sys, time, anyprobe
session = anyprobe.attach(int(sys.argv[1]))
(probe,) = session.cover("a.out", lazy=True)
print(len(probe.unentered), flush=True)
if sys.argv[2] == "asleep":
    with session.host.lock:
        time.sleep(60)
time.sleep(60)
"""


def covered(program, *, lazy, folder="."):
    """Return the coverage of one run, by functions with their blocks."""
    with anyprobe.run([str(program)], cwd=str(folder)) as session:
        session.cover("a.out", lazy=lazy)
        session.resume()
        assert session.wait(60) is not None
        coverage = session.snapshot().coverage
    assert coverage.lazy is lazy
    return coverage


def blocks_of(coverage):
    return {each.start: dict(each.blocks) for each in coverage.modules[0].functions}


@pytest.mark.parametrize("name", [each for each in PROGRAMS if each != "forks.c"])
def test_lines_are_gcovs_and_blocks_are_those_of_all_probes_at_once(tmp_path, name):
    program = built(tmp_path, name, "-O2", "--coverage")
    lazily = covered(program, lazy=True, folder=tmp_path)
    ours, theirs = lazily.files[str(tmp_path / name)], gcovs(tmp_path, name)
    common = ours.keys() & theirs.keys()
    assert len(common) > 9
    assert {line: bool(ours[line]) for line in common} == {line: bool(theirs[line]) for line in common}
    for each in tmp_path.glob("*.gcda"):  # else gcov's own code adds the run to the one before
        each.unlink()
    if name != "threads.c":  # which of them waits for which is another matter each time
        assert blocks_of(lazily) == blocks_of(covered(program, lazy=False, folder=tmp_path))


def test_where_fork_children_come_to_functions_nothing_is_said_not_to_have_run():
    program = build("children.c", "-O2", text=CHILDREN)
    at_once = blocks_of(covered(program, lazy=False))
    with anyprobe.run([str(program)]) as session:
        session.cover("a.out", lazy=True)
        session.resume()
        assert session.wait(60) == 0
    lazily = blocks_of(session.snapshot().coverage)
    known = [(hits, at_once[start][at]) for start, each in lazily.items() for at, hits in each.items() if hits]
    assert known
    assert all(hits == both == 1 for hits, both in known)
    assert 0 not in {hits for each in lazily.values() for hits in each.values()}
    assert any("fork children were taken out" in each for each in session.warnings)


class Worker:
    """A program that works as it is told."""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def do(self, number):
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def text(self):
        with open(f"/proc/{self.process.pid}/maps") as maps, open(f"/proc/{self.process.pid}/mem", "rb") as memory:
            row = next(line for line in maps if "r-xp" in line)
            low, high = (int(each, 16) for each in row.split()[0].split("-"))
            memory.seek(low)
            return memory.read(high - low)


@pytest.fixture
def worker():
    made = Worker(build("work.c", "-O2", text=WORK))
    yield made
    made.process.kill()
    made.process.wait()
    made.process.stdin.close()
    made.process.stdout.close()


def test_functions_on_the_stack_have_their_probes_at_once_and_others_as_they_are_entered(worker):
    before = worker.text()
    with anyprobe.attach(worker.process.pid) as session:
        (probe,) = session.cover("a.out", lazy=True)
        waiting = {each.site.name for each in probe.unentered}
        assert {"even", "odd", "unused"} <= waiting
        assert not {"outer", "main"} & waiting
        assert worker.do(3) == 4
        assert {each.site.name for each in probe.unentered} == waiting - {"odd"}
        assert worker.do(8) == 8
        functions = {each.name: each.blocks for each in session.snapshot().coverage.modules[0].functions}
    assert {0, 1} == set(functions["odd"].values())
    assert max(functions["even"].values()) == 1
    assert set(functions["unused"].values()) == {0}
    assert any(functions["outer"].values())
    assert functions["main"][0] == 0
    assert worker.text() == before


@pytest.mark.parametrize("how", ["awake", "asleep"])
def test_a_controller_that_is_killed_leaves_a_program_that_runs_on(worker, how):
    before = worker.text()
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(worker.process.pid), how], stdout=subprocess.PIPE, text=True
    ) as controller:
        assert int(controller.stdout.readline()) > 2
        if how == "asleep":  # a thread waits at an entry while it dies
            worker.process.stdin.write("3\n")
            worker.process.stdin.flush()
            at = Path(f"/proc/{worker.process.pid}/syscall")
            wait_until(lambda: at.read_text().startswith("202 "), "the thread waits")
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
    if how == "asleep":
        assert int(worker.process.stdout.readline()) == 4
    else:
        assert worker.do(3) == 4
    assert worker.do(8) == 8
    assert worker.do(9) == 35
    removed = command("detach", "-p", str(worker.process.pid))
    assert removed.returncode == 0, removed.stderr
    assert worker.text() == before


def test_what_was_entered_without_waiting_is_not_known(worker):
    with anyprobe.attach(worker.process.pid) as session:
        (probe,) = session.cover("a.out", lazy=True)
        session.host.entry_gate._alone += 1  # as if a fork child could not be given its probes
        functions = {each.name: each.blocks for each in session.snapshot().coverage.modules[0].functions}
        assert "unused" in {each.site.name for each in probe.unentered}
    assert set(functions["unused"].values()) == {None}
    assert any("fork children were taken out" in each for each in session.warnings)


def test_the_command_says_how_probes_come():
    program = build("children.c", "-O2", text=CHILDREN)
    shown = command("cover", "--lazy", "--", str(program))
    assert shown.returncode == 0
    assert "with probes from the first entry of each function on" in shown.stdout + shown.stderr
    wrong = command("cover", "--lazy", "--counts", "--", str(program))
    assert wrong.returncode == 2
    assert "--lazy is for flags" in wrong.stderr
