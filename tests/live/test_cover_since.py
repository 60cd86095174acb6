"""Where coverage begins, in every output, and what is new since the last time."""

import json
import re
import subprocess
import time

import pytest

from live.test_command_line import anyprobe as command
from live.test_command_line import start
from support.driver import build

pytestmark = pytest.mark.live
STAGES = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static __attribute__((noinline)) int stage(int n) {
    if (n == 1)
        return 3;
    if (n == 2)
        return n * 2;
    return n;
}
int main(void) {
    char line[16];
    volatile int sum = 0;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int n = atoi(line);
        if (n < 0) {
            if (!fork()) {
                sum += stage(-n);
                _exit(0);
            }
            wait(0);
        } else
            sum += stage(n);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
"""


class Stages:
    """A program that does one stage after the other as it is told."""

    def __init__(self, process):
        self.pid, self._process = process.pid, process
        assert process.stdout.readline() == "ready\n"

    def do(self, stage):
        self._process.stdin.write(f"{stage}\n")
        assert self._process.stdout.readline() == "done\n"

    def end(self):
        self._process.stdin.close()
        assert self._process.wait(20) == 0


@pytest.fixture
def stages():
    """A program that has done its stage 1."""
    words, both = [build("stages.c", "-O0", "-g", text=STAGES)], subprocess.PIPE
    with subprocess.Popen(words, stdin=both, stdout=both, text=True, bufsize=1) as process:
        program = Stages(process)
        program.do(1)
        yield program


def test_all_outputs_say_that_they_begin_at_attach(stages, tmp_path):
    run = tmp_path / "run.aprobe"
    assert command("cover", "-p", str(stages.pid), "--for", "0.5", "-o", run).returncode == 0

    def shown(*options):
        done = command("cover", "merge", run, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.search(r"functions covered since attach in \d", shown())
    assert json.loads(shown("--json"))["covered_since"] == "attach"
    assert set(re.findall("^TN:.*", shown("--format", "lcov"), re.MULTILINE)) == {"TN:since_attach"}
    assert "<!-- covered since attach -->" in shown("--format", "cobertura")
    assert "since attach: of a program that ran already, what ran before is not known" in shown("--format", "html")


def test_a_program_that_was_started_is_covered_from_its_start(tmp_path):
    program, run = build("stages.c", "-O0", "-g", text=STAGES), tmp_path / "run.json"
    assert command("cover", "--json", "-o", run, "--", program).returncode == 0
    assert json.loads(run.read_text())["covered_since"] == "start"
    assert "functions covered since start in" in command("cover", "merge", run).stdout
    late = tmp_path / "late.json"
    late.write_text(run.read_text().replace('"covered_since": "start"', '"covered_since": "attach"'))
    assert json.loads(command("cover", "merge", run, late, "--json").stdout)["covered_since"] == "attach"


def test_tables_that_follow_one_another_have_what_is_new(stages, tmp_path):
    results = tmp_path / "tables"
    with start("cover", "-p", str(stages.pid), "--every", "0.3", "-o", results):
        follow(stages, results)
    assert re.search(r"functions covered since attach in", results.read_text())


def follow(stages, results):
    """Have the program do its stages, and wait for what is new after each."""

    def until(pattern):
        end = time.monotonic() + 60
        while not (results.exists() and re.search(pattern, results.read_text())):
            assert time.monotonic() < end, results.read_text()
            time.sleep(0.05)

    until(r"0 functions ran for the first time in")
    stages.do(2)
    until(r"stages\.c: (.*, )?9-10\b")
    before = len(results.read_text())
    stages.do(-1)  # by a fork child
    until(r"stages\.c: (.*, )?8\b")
    stages.do(2)
    stages.end()
    until(r"covered since attach")
    assert not re.search(r"stages\.c: (.*, )?(9-)?10\b", results.read_text()[before:])
