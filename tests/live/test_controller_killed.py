"""Acceptance: the controller killed, or a system call failing, at every call it makes on the target.

The plans are enumerated: call 1, 2, ... of a whole session. ``make torture`` runs all of them, ``make test`` some: from
as many classes of calls as there is time for, always the same.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anyprobe.data.layouts.layout import SLOTS
from anyprobe.target.process.process import Process
from support.asked_controller import Controller
from support.driver import Target, started
from support.image import Image

SLICE = 12
KINDS = ("kill-before", "kill-after", "fail:EIO", "fail:EPERM", "fail:ESRCH", "short")


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    running = Controller()
    yield running
    running.close()


@pytest.fixture
def target(compiled) -> Iterator[Target]:
    with started(compiled("counts.c"), "3") as running:
        yield running


def whole_session(controller: Controller, target: Target) -> list[int]:
    """Return the classes of the calls that a session makes when nothing goes wrong."""
    answer = controller.ask("session", target.pid, "none")
    assert "untyped" not in answer, answer
    assert "error" not in answer, answer
    assert len(answer["classes"]) == answer["calls"]
    return answer["classes"]


def detach(controller: Controller, target: Target, before: Image) -> None:
    """``anyprobe detach`` removes all that is left, the second time what was not yet quiet."""
    answer = controller.ask("cli", "detach", "-p", target.pid)
    assert answer.get("exit") == 0, answer
    try:
        assert_restored(before, target)
    except AssertionError:
        target.halt()
        target.run_freely()
        answer = controller.ask("cli", "detach", "-p", target.pid)
        assert answer.get("exit") == 0, answer
        assert_restored(before, target)


def thread_slots(pid: int) -> list[tuple[int, int]]:
    """Return the words of the threads' control blocks that a session uses and that are not zero: (thread, offset)."""
    process = Process.open(pid)
    try:
        with process.stop() as stop:
            return [
                (thread.tid, slot)
                for thread in stop.threads
                for slot in SLOTS
                if any(process.mem.read(thread.registers.fs_base + slot, 8))
            ]
    finally:
        process.close()


def assert_restored(before: Image, target: Target) -> None:
    """Nothing is left, in the threads' control blocks and among the descriptors neither."""
    before.assert_restored(target.pid)
    assert thread_slots(target.pid) == []
    descriptors = [os.readlink(path) for path in Path(f"/proc/{target.pid}/fd").iterdir()]
    assert not [path for path in descriptors if "anyprobe" in path]


def one_death(controller: Controller, target: Target, before: Image, plan: str) -> None:
    """A controller dies; the target is unharmed; what is left can be listed and is removed."""
    answer = controller.ask("session", target.pid, plan)
    assert "untyped" not in answer, (plan, answer)
    target.check_alive()
    listed = controller.ask("cli", "probes", "-p", target.pid, "--json")
    assert listed.get("exit") == 0, (plan, listed)
    detach(controller, target, before)


def one_failure(controller: Controller, target: Target, before: Image, plan: str) -> None:
    """A call fails or returns short: a typed error or success, and everything is undone."""
    answer = controller.ask("session", target.pid, plan)
    assert "untyped" not in answer, (plan, answer)
    target.check_alive()
    print(f"{plan} {str(answer.get('what'))[:80]}: {answer.get('error', 'no error')}")
    if "error" in answer and answer["phase"] in ("remove", "detach"):
        detach(controller, target, before)
    assert_restored(before, target)


def numbers(classes: list[int], kind: str, request: pytest.FixtureRequest) -> list[int]:
    """Return which calls go wrong: in the torture all (of the part that is asked for), else one of each class."""
    everything = range(1, len(classes) + 1)
    if request.config.getoption("--torture"):
        part, parts = map(int, request.config.getoption("--part").split("/"))
        return list(everything[part - 1 :: parts])
    chance = random.Random(kind)
    members = {}
    for number in chance.sample(everything, len(everything)):
        members.setdefault(classes[number - 1], number)
    return sorted(list(members.values())[:SLICE])


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_call(controller, target, request, kind):
    """One controller per call, against one target that runs and checks itself all the time."""
    target.go(1)
    whole_session(controller, target)
    before = Image.of(target.pid)
    classes = whole_session(controller, target)
    total = len(classes)
    target.run_freely()
    failures = []
    for number in numbers(classes, kind, request):
        plan = f"{kind.partition(':')[0]}:{number}" + (f":{kind.partition(':')[2]}" if kind.startswith("fail") else "")
        try:
            (one_death if kind.startswith("kill") else one_failure)(controller, target, before, plan)
        except (AssertionError, ProcessLookupError) as error:
            target.check_alive()
            failures.append(f"{plan}: {str(error)[:300]}")
            print(failures[-1], flush=True)
            controller.ask("cli", "detach", "-p", target.pid)
            if len(failures) > 20:
                break
    print(f"{kind}: {total} calls in a session")
    assert not failures, f"{len(failures)} of {total}:\n" + "\n".join(failures)
    target.halt()
    target.finish()


@pytest.mark.parametrize("times", [6, pytest.param(100, marks=pytest.mark.torture)])
def test_random_moments(controller, target, times):
    """Killed after a random time."""
    target.go(1)
    whole_session(controller, target)
    before = Image.of(target.pid)
    target.run_freely()
    chance = random.Random(3)
    for _ in range(times):
        one_death(controller, target, before, f"kill-at:{chance.random() * 0.15:.4f}")
    target.halt()
    target.finish()


def test_what_is_left_shows_and_goes(controller, target):
    """After a death with probes armed, ``probes`` lists them and ``detach`` removes them; nothing stops until then."""
    target.go(1)
    before = Image.of(target.pid)
    target.run_freely()
    controller.ask("hold", target.pid, "a.out:work", "a.out:side%return")
    assert controller.ask("drop")["killed"]
    target.check_alive()
    listed = json.loads(controller.ask("cli", "probes", "-p", target.pid, "--json")["out"])
    assert {"work", "side"} <= set(re.findall(r"work|side", json.dumps(listed)))
    table = controller.ask("cli", "probes", "-p", target.pid)
    assert table["exit"] == 0
    assert "work" in table["out"]
    detach(controller, target, before)
    target.halt()
    target.finish()


def test_fork_children_are_cleaned_too(controller, compiled):
    """A child forked while probes were armed keeps them when the controller dies; ``detach`` restores it as well."""
    with started(compiled("living_child.c")) as target:
        before = Image.of(target.pid)
        ask = ("hold", target.pid, "a.out:shared_work", "a.out:shared_work%return")
        assert controller.ask(*ask)["hits"] == 0
        child = target.go(2).calls["child"]
        assert controller.ask("drop")["killed"]
        target.go(2)
        assert Image.of(child).text != before.text
        assert controller.ask("cli", "detach", "-p", target.pid)["exit"] == 0
        before.assert_restored(target.pid)
        assert Image.of(child).text == before.text
        target.go(2)
        target.finish()


DIES_BEFORE_ITS_FIRST_CALL = """
import os, signal, sys
import anyprobe
from anyprobe.target.system import ptrace

pid = int(sys.argv[1])

def die(*_):
    os.kill(pid, signal.SIGSTOP)  # who is let go by our death stops again where it is: in front of the call
    os.kill(os.getpid(), signal.SIGKILL)

ptrace.resume_to_syscall = die
anyprobe.attach(pid).count("a.out:work")
"""


def test_a_call_is_still_to_be_made_when_its_controller_is_dead(controller, target):
    """Nothing of ours is there yet, and still it is not over: the thread will make the call when it runs."""
    target.go(1)
    whole_session(controller, target)
    before = Image.of(target.pid)
    command = [sys.executable, "-c", DIES_BEFORE_ITS_FIRST_CALL, str(target.pid)]
    ended = subprocess.run(command, check=False, timeout=180)
    assert ended.returncode == -signal.SIGKILL
    answer = controller.ask("cli", "detach", "-p", target.pid, "--json")
    assert "a call in thread" in answer["out"], answer
    os.kill(target.pid, signal.SIGCONT)
    target.go(1)
    detach(controller, target, before)
    target.go(1)
    target.finish()
