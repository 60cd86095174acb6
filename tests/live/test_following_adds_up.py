"""What a tree has executed is probed, refused or missed: the three add up to what it knows itself."""

import gc
import os
import re
import subprocess

import pytest

from anyprobe.probes.following.followed import Followed
from anyprobe.probes.following.watches import Connector
from anyprobe.probes.providers.function.gates import exec_gate
from anyprobe.probes.providers.function.gates.sampling import Sample
from anyprobe.splice.emitted import EmittedSplice
from support.results import hits

pytestmark = pytest.mark.live
EXECUTIONS, CALLS, PATIENCE = 60, 10, 180
SHORT = 0.05
"""Seconds of patience in the gates: most programs have gone on by the time that it is their turn."""
BALANCE = r"(\d+) executions .*?: (\d+) probed, (\d+) refused, (\d+) missed(?:$|; .* 1 in \d+ was followed)"
PROGRAM = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static __attribute__((noinline)) void work(volatile int *number) { (*number)++; __asm__ volatile("nop;nop;nop;nop"); }
int main(int argc, char **argv) {
    volatile int number = 0;
    int status, failed = 0;
    for (int n = argc > 1 ? atoi(argv[1]) : 0; n > 0; n--)
        if (fork() == 0) execl(argv[0], argv[0], (char *)0), _exit(1);
    while (wait(&status) > 0) failed += status != 0;
    for (int n = 0; n < 10; n++) work(&number);
    return failed;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adds")
    (folder / "program.c").write_text(PROGRAM)
    subprocess.run(["cc", "-O2", "-o", folder / "program", folder / "program.c"], check=True)
    return str(folder / "program")


def test_a_storm_of_executions_adds_up(program, monkeypatch):
    try:
        Connector().close()
    except OSError as refusal:
        pytest.skip(f"the kernel does not tell of executions: {refusal}")
    monkeypatch.setattr(exec_gate, "PATIENCE", SHORT)
    with Followed.run([program, str(EXECUTIONS)]) as tree:
        tree.count("a.out:work")
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(PATIENCE)) == 0
        tree.follow_no_more()
        told, found = tree.notes(), [hits(each, "work") for each in tree.snapshots()]
    probed = len(found) - 1
    assert found == [CALLS] * (probed + 1)
    if probed < EXECUTIONS:
        total, *fates = map(int, re.match(BALANCE, told[-1]).groups())
        assert (total, fates[0], sum(fates)) == (EXECUTIONS, probed, EXECUTIONS)
    else:
        assert not told


def test_programs_whose_probes_are_being_placed_are_not_missed(program):
    said = []

    def prepare(session):
        said.append(tree.notes())
        session.count("a.out:work")

    with Followed.run([program, "3"]) as tree:
        tree.count("a.out:work")
        tree._prepare = prepare
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(PATIENCE)) == 0
        tree.follow_no_more()
        assert tree.notes() == []
    assert said == [[]] * 3


def test_a_sample_is_told_of_and_adds_up(program, monkeypatch):
    """Where they come too fast one in so many is followed; the sample is one of each three here, not by chance."""
    try:
        Connector().close()
    except OSError as refusal:
        pytest.skip(f"the kernel does not tell of executions: {refusal}")
    asked = []

    def takes(self, waiting, now):
        asked.append(now)
        return len(asked) % 3 == 0

    monkeypatch.setattr(Sample, "takes", takes)
    with Followed.run([program, "30"]) as tree:
        tree.count("a.out:work")
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(PATIENCE)) == 0
        tree.follow_no_more()
        told, found = tree.notes(), [hits(each, "work") for each in tree.snapshots()]
    assert found == [CALLS] * (1 + 10)
    fates = "30 executions seen by the kernel: 10 probed, 0 refused, 20 missed"
    sample = "they came faster than probes are placed: 1 in 3 was followed, chosen by chance"
    assert told == [f"{fates}; {sample}"]


def test_what_is_known_of_single_places_goes_with_their_programs():
    """By reference counting: the collector would have to walk all that there is."""
    programs = 4
    with Followed.run(["sh", "-c", "/bin/true; " * programs]) as tree:
        tree.count("libc:str*", "libc:mem*")
        gc.collect()
        gc.disable()
        try:
            tree.resume()
            while tree.wait(0.05) is None or len(tree.sessions) > 1:
                tree.sweep()
            (root,) = tree.sessions
            own = sum(len(probe.all_places) for probe in root.probes)
            there = sum(type(each) is EmittedSplice for each in gc.get_objects())
        finally:
            gc.enable()
        assert [len(each.sites) >= own // 2 for each in tree.snapshots()] == [True] * (1 + programs)
    assert own > 50
    assert there < 2 * own
