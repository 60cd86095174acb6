"""Programs that are executed are counted in from their first instruction on, and the old ones keep their counts."""

import os
import time
from contextlib import contextmanager

import pytest

from anyprobe.probes.following.followed import Followed
from anyprobe.target.process import execution
from anyprobe.target.remote.thread import Thread
from support.results import hits

pytestmark = pytest.mark.live
CALLS = ("execl", "execlp", "execle", "execv", "execvp", "execve", "execvpe")
DEEP = 2
"""How many programs each first one leads to."""
SLOW = 1.5


@contextmanager
def following(argv, *specs, **settings):
    """Run a command with what it executes followed, to its end."""
    folder = os.path.dirname(argv[0])
    environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}")
    with Followed.run(argv, env=environment, **settings) as tree:
        tree.count(*specs)
        tree.resume()
        yield tree


def counted(program, how, call, generations):
    """Return the exit status of the first program, and the hits of each program by function."""
    with following(
        [str(program), how, call, str(generations)], "a.out:work", "a.out:on_the_way", "a.out:failed"
    ) as tree:
        status = os.waitstatus_to_exitcode(tree.wait(60))
        found = [tuple(hits(each, name) for name in ("work", "on_the_way", "failed")) for each in tree.snapshots()]
        assert not tree.notes()
    return status, found


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", ["fork", "vfork"])
def test_every_way_to_execute_in_a_child(compiled, how, call):
    """Each program's own calls are counted apart; what the child does before is its parent's program's."""
    status, found = counted(compiled("executes.c"), how, call, DEEP)
    assert status == DEEP + 1
    assert found == [(10, 1, 0)] * DEEP + [(10, 0, 0)]


def test_a_thread_that_is_slow_to_stop(compiled, monkeypatch):
    """On a busy machine it may take more than a second until a thread that is interrupted runs, and stops."""

    class Slow(Thread):
        def poll(self):
            self.begin = getattr(self, "begin", time.monotonic())
            return time.monotonic() - self.begin > SLOW and super().poll()

    monkeypatch.setattr(execution, "Thread", Slow)
    status, found = counted(compiled("executes.c"), "fork", "execvp", DEEP)
    assert status == DEEP + 1
    assert found == [(10, 1, 0)] * DEEP + [(10, 0, 0)]


@pytest.mark.parametrize("call", [*CALLS, "execveat", "fexecve"])
def test_every_way_to_execute_in_its_place(compiled, call):
    """The process goes on as another program: one more generation."""
    status, found = counted(compiled("executes.c"), "here", call, DEEP)
    assert status == 1
    assert found == [(10, 1, 0)] * DEEP + [(10, 0, 0)]


@pytest.mark.parametrize("how", ["spawn", "spawnp"])
def test_posix_spawn(compiled, how):
    status, found = counted(compiled("executes.c"), how, "none", DEEP)
    assert status == DEEP + 1
    assert found == [(10, 0, 0)] * (DEEP + 1)


@pytest.mark.parametrize("call", ["execv", "execvpe"])
def test_a_thread_that_is_not_the_first_executes(compiled, call):
    status, found = counted(compiled("executes.c"), "thread", call, DEEP)
    assert status == 1
    assert found == [(10, 1, 0)] * DEEP + [(10, 0, 0)]


@pytest.mark.parametrize("how", ["fork", "vfork", "here", "thread"])
def test_a_call_that_fails_changes_nothing(compiled, how):
    """The program goes on, and counts on."""
    status, found = counted(compiled("executes.c"), how, "bad", DEEP)
    assert status == 1
    assert found == [(10, 1, 3)]


@pytest.mark.parametrize("how", ["fork", "vfork", "here", "thread"])
def test_a_call_that_fails_before_one_that_does_not(compiled, how):
    status, found = counted(compiled("executes.c"), how, "bad-then-execvp", DEEP)
    assert status == (1 if how in {"here", "thread"} else DEEP + 1)
    assert found == [(10, 1, 3)] * DEEP + [(10, 0, 0)]
