"""The target exits, is killed, is stopped by job control, forks: the session copes and tells the truth."""

import os
import signal
from pathlib import Path

import pytest

import anyprobe
from support.driver import PATIENCE, has_ended, wait_until
from support.image import Image
from support.results import hits


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_counts_survive_the_target(run_target, how):
    """What was counted can be read after the target's end; ending the session is no error."""
    target = run_target("counts.c", "2")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:work")
        counts = target.go(1000)
        if how == "exit":
            target.finish()
        else:
            target.process.kill()
            target.process.wait()
        assert hits(session.snapshot(), "work") == counts.calls["work"]
        session.detach()
        assert hits(session.snapshot(), "work") == counts.calls["work"]


def test_killed_while_arming(run_target, compiled):
    """Killed at some moment of attach, arm or detach: a typed error or a result, never anything else."""
    import random
    import threading

    chance = random.Random(5)
    for _ in range(15):
        target = run_target("counts.c", "8")
        target.run_freely()
        # not Popen.kill: it polls first, and would take the stops of the child that this very process is tracing
        killed = threading.Event()

        def kill(pid=target.pid, killed=killed):
            killed.set()
            os.kill(pid, signal.SIGKILL)

        killer = threading.Timer(chance.random() * 0.15, kill)
        killer.start()
        try:
            with anyprobe.attach(target.pid) as session:
                while not has_ended(target.process):
                    probes = session.count("a.out:work", "a.out:side%return", "a.out:leaf4")
                    session.remove(*probes)
                session.snapshot()
        except anyprobe.TargetError:  # exited, gone before the attach, or a zombie by then
            assert killed.is_set()
            target.process.wait(PATIENCE)  # its other threads may still be about to end
        killer.join()
        target.close()


def state_of(pid):
    """Return the state letter of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_stopped_by_job_control_stays_stopped(run_target):
    """SIGSTOP before attaching: still stopped afterwards, the parent hears nothing more, then all goes on."""
    target = run_target("counts.c", "2")
    os.kill(target.pid, signal.SIGSTOP)
    status = os.waitpid(target.pid, os.WUNTRACED)[1]
    assert os.WIFSTOPPED(status)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:work", "a.out:leaf4%return")
        wait_until(lambda: state_of(target.pid) == "T", "the target is stopped again")
        assert os.waitpid(target.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED) == (0, 0)
        os.kill(target.pid, signal.SIGCONT)
        counts = target.go(1000)
        assert hits(session.snapshot(), "work") == counts.calls["work"]
        assert hits(session.snapshot(), "leaf4", "return") == counts.calls["leaf4"]
        os.kill(target.pid, signal.SIGSTOP)
        wait_until(lambda: state_of(target.pid) == "T", "the target is stopped")
        session.detach()
        wait_until(lambda: state_of(target.pid) == "T", "the target is still stopped")
    os.kill(target.pid, signal.SIGCONT)
    target.go(100)
    target.finish()


def test_detach_while_a_forked_child_lives(run_target):
    """A child that inherited the splices runs on after detach, unharmed, and its text is restored too."""
    target = run_target("living_child.c")
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:shared_work", "a.out:shared_work%return")
        child = target.go(1).calls["child"]
        target.go(20)
        assert hits(session.snapshot(), "shared_work") >= 21 * 1000
        session.detach()
    before.assert_restored(target.pid)
    assert Image.of(child).text == before.text
    target.go(20)
    target.finish()


def test_spawning_with_all_of_libc_probed(run_target):
    """vfork, posix_spawn, system() and popen with every function of libc counted, entries and exits."""
    target = run_target("spawns.c")
    target.go(1)
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("libc:*", "a.out:spawned")
        target.go(10)
        assert hits(session.snapshot(), "spawned") == 10
        session.count("libc:*%return")
        target.go(10)
        assert hits(session.snapshot(), "spawned") == 20
    before.assert_restored(target.pid)
    target.go(2)
    target.finish()


def test_library_functions_by_name(run_target):
    """IFUNCs are resolved to what the process uses, so that all calls through memcpy are seen."""
    target = run_target("library_calls.c")
    with anyprobe.attach(target.pid) as session:
        session.count("libc:memcpy", "libc:strlen", "libc:getenv")
        counts = target.go(10)
        for name in ("memcpy", "strlen", "getenv"):
            seen = sum(s.hits for s in session.snapshot().sites if name in s.spec)
            # getenv calls strlen, stdio and the loader call some of them as well
            more = counts.calls["getenv"] if name == "strlen" else 0
            assert counts.calls[name] <= seen < counts.calls[name] + more + 200, name
    target.finish()
