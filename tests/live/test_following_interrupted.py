"""What is followed ends when the user says so, at every moment at which probes are placed in what is executed."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from anyprobe.core.errors import Interrupted
from anyprobe.journal.installed import processes_with_splices
from anyprobe.probes.following.followed import Followed
from support.driver import wait_until
from support.results import hits

pytestmark = pytest.mark.live
PATIENCE, CALLS, MOMENTS = 180, 10, 16
PROGRAM = """
static __attribute__((noinline)) void work(volatile int *number) { (*number)++; __asm__ volatile("nop;nop;nop;nop"); }
int main(void) { volatile int number = 0; for (int n = 0; n < 10; n++) work(&number); return number - 10; }
"""
SECONDS = (1.0, 2.5, 4.0, 6.0)
"""Of a processor that the command has had when it is interrupted."""
MOST = 3.0
"""Seconds of a processor from Ctrl-C to the end: two, and what a measurement adds on a busy machine."""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "program.c").write_text(PROGRAM)
    subprocess.run(["cc", "-O2", "-o", folder / "program", folder / "program.c"], check=True)
    return folder / "program"


def followed(program, end):
    """Follow a program that is executed; ``end`` is called at each moment. Return its hits, and what is said."""
    with Followed.run(["sh", "-c", f"{program} || exit 9"]) as tree:
        tree.sessions[0].host.modules.permit_absent()
        tree.time("a.out:work")
        tree.count("a.out:work", "libc:exit")
        tree.checkpoint = end
        tree.resume()
        inodes = frozenset(tree.sessions[0].splicing.holdings.inodes())
        assert os.waitstatus_to_exitcode(tree.wait(PATIENCE)) == 0
        assert set(processes_with_splices(inodes)) == set()
        return [hits(each, "work") for each in tree.snapshots()], tree.notes()


def test_it_ends_at_every_moment_and_the_program_runs_on(program):
    """How often is asked differs from run to run: the moments are gone through until one comes after the last.

    A busy machine asks more often in the first run than in the others: moments that turn out to be too few
    are gone through again, closer together.
    """
    calls = []
    assert followed(program, lambda: calls.append(1)) == ([0, CALLS], [])
    apart = max(1, len(calls) // MOMENTS)
    while (number := ended_at_moments(program, apart)) < MOMENTS // 2 and apart > 1:
        apart //= 2
    assert number >= MOMENTS // 2


def ended_at_moments(program, apart):
    """End what is followed at every ``apart``-th moment until one comes after the last. Return how many did not."""
    for number in count():
        left = 1 + number * apart

        def end(left=[left]):  # noqa: B006 - it counts down
            left[0] -= 1
            if not left[0]:
                raise Interrupted("interrupted")

        found, said = followed(program, end)
        if found == [0, CALLS]:
            assert said == []
            return number
        assert (found, said[0]) == ([0], f"{program} was executed once without probes: interrupted")
        assert said[1:] == ["1 execution seen by the kernel: 0 probed, 1 refused, 0 missed"]
    raise AssertionError("there is always a moment after the last")


def test_what_could_not_be_followed_goes_on_only_when_that_is_noted(program, monkeypatch):
    """The program may end at once, and with it the tree, whose notes are asked for then."""

    def leave(self, path, why, leave=Followed._leave):
        time.sleep(0.5)
        leave(self, path, why)

    monkeypatch.setattr(Followed, "_leave", leave)

    def end():
        raise Interrupted("interrupted")

    assert followed(program, end) == (
        [0],
        [
            f"{program} was executed once without probes: interrupted",
            "1 execution seen by the kernel: 0 probed, 1 refused, 0 missed",
        ],
    )


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.sliced(2)
def test_ctrl_c_while_a_large_program_is_prepared(tmp_path, seconds):
    """Nothing is known of it yet: its code is read, analysed, planned and generated. The command ends with results."""
    environment = dict(os.environ, XDG_CACHE_HOME=str(tmp_path))
    line = f"{sys.executable} -c 'print(1)'; :"
    command = [sys.executable, "-m", "anyprobe", "time", "*python3*:*", "--json", "--follow", "--leave"]
    command += ["-o", str(tmp_path / "results"), "--", "sh", "-c", line]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as started:
        wait_until(lambda: started.poll() is not None or processor_seconds(started.pid) >= seconds, "it is at it")
        before = processor_seconds(started.pid)
        started.send_signal(signal.SIGINT)
        wait_until(lambda: has_ended(started.pid), "its end")
        spent = processor_seconds(started.pid) - before
        _, said = started.communicate(timeout=PATIENCE)
    assert started.returncode == 130, said
    assert spent <= MOST
    assert "internal" not in said
    assert json.loads((tmp_path / "results").read_text())["target"]["pid"]


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def has_ended(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
