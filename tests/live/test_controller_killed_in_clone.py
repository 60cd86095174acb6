"""The controller killed as a borrowed thread is about to make a helper thread; what is left is removed at once.

The thread makes that call after the controller's death: while the removal stops the program, or after it, on memory
that must still be there.
"""

import os
import signal

import pytest

import anyprobe
from anyprobe.splice.apply.recovery import recovery
from anyprobe.target.process.process import Process
from anyprobe.target.remote.calls import RemoteCalls
from anyprobe.target.remote.thread import Thread
from support.driver import wait_until
from support.image import Image

CLONE = 56
ROUNDS = 12


@pytest.mark.parametrize("moment", ["at its entry", "before it runs", "while it runs"])
@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.sliced(2)
def test_the_program_goes_on_and_all_is_removed(run_target, number, moment):
    target = run_target("live_arming.c", "4")
    target.go(1)
    with anyprobe.attach(target.pid, live=True) as session:
        session.count("a.out:*")
    image = Image.of(target.pid)
    target.run_freely()
    for _ in range(ROUNDS):
        controller = os.fork()
        if not controller:
            _die_in_clone(target.pid, number, moment)
        assert os.waitstatus_to_exitcode(os.waitpid(controller, 0)[1]) == -signal.SIGKILL
        _remove_all(target.pid)
        target.check_alive()
    target.halt()
    image.assert_restored(target.pid)
    target.go(2)
    target.finish()


def _remove_all(pid: int) -> None:
    """Remove what is left; where the thread has yet to make its call, when it has."""

    def is_removed() -> bool:
        process = Process.open(pid)
        try:
            return not recovery.remove(process).kept
        finally:
            process.close()

    wait_until(is_removed, "nothing is left")


def _die_in_clone(pid: int, number: int, moment: str) -> None:
    """Kill this process at its n-th ``clone`` in the target; end with 1 if there is none."""
    begin, resume = RemoteCalls._begin, Thread.resume_with
    clones = resumed = 0
    makes_it = False

    def begin_noted(calls, call, arguments):
        nonlocal clones, resumed, makes_it
        clones += call == CLONE
        makes_it, resumed = call == CLONE and clones == number, 0
        return begin(calls, call, arguments)

    def resume_or_die(thread, request):
        nonlocal resumed
        resumed += 1
        dies = makes_it and resumed == (1 if moment == "at its entry" else 2)
        if dies and moment != "while it runs":
            os.kill(os.getpid(), signal.SIGKILL)
        resume(thread, request)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    RemoteCalls._begin, Thread.resume_with = begin_noted, resume_or_die
    try:
        with anyprobe.attach(pid, live=True) as session:
            session.count("a.out:*")
    finally:
        os._exit(1)
