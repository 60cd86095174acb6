"""Acceptance: the controller killed, or a call failing, at every call that it makes while it follows a program.

That is: an execution, a library that is loaded, by the program or a fork child, a fork child that is relieved.
"""

import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anyprobe.journal.memfds import MEMFD_PATH
from support.asked_controller import Controller
from support.driver import PATIENCE, build

pytestmark = pytest.mark.live
SLICE = 10
KINDS = ("kill-before", "kill-after", "fail:EIO", "fail:ESRCH")
EXECUTIONS = 4
"""One by fork, of which a first one fails, one by vfork, one by posix_spawn, and one more."""
LOADS, BY_CHILDREN = 3, 2
LIBRARY = """
static volatile int loaded;
__attribute__((constructor)) static void begin(void) { loaded = 2; }
__attribute__((noinline)) int plugin_work(int n) { __asm__ volatile("" : "+r"(n)); return n + loaded; }
"""


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    running = Controller()
    yield running
    running.close()


def is_clean(controller: Controller, pid: int) -> bool:
    """Return whether ``anyprobe detach`` leaves nothing in a process, when all of it has become quiet."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        answer = controller.ask("cli", "detach", "-p", pid)
        if answer.get("exit") == 0 and MEMFD_PATH not in Path(f"/proc/{pid}/maps").read_text():
            return True
        print(answer)
    return False


def numbers(classes: list[int], kind: str, request: pytest.FixtureRequest, some: int = SLICE) -> list[int]:
    """Return which calls go wrong: in the torture one of each class, else some of these, always the same."""
    chance = random.Random(kind)
    everything = range(1, len(classes) + 1)
    members: dict[int, int] = {}
    for number in chance.sample(everything, len(everything)):
        members.setdefault(classes[number - 1], number)
    chosen = list(members.values())
    return sorted(chosen if request.config.getoption("--torture") else chosen[:some])


def assert_unharmed(
    controller: Controller,
    program: subprocess.Popen[bytes],
    kind: str,
    chosen: list[int],
    what: tuple[str, *tuple[object, ...]],
) -> None:
    """Have each chosen call go wrong; the program goes on, nothing stays in it, and it ends well."""
    request, *times = what
    answer: dict[str, object] = {}
    for number in chosen:
        name, _, code = kind.partition(":")
        plan = f"{name}:{number}" + (f":{code}" if code else "")
        answer = controller.ask(request, program.pid, plan, *times)
        assert "untyped" not in answer, (plan, answer)
        assert program.poll() is None, (plan, program.stdout.read())
        assert is_clean(controller, program.pid), plan
    print(f"{kind}: {len(chosen)} of {answer.get('calls')} calls")
    said, _ = program.communicate(timeout=180)
    assert said == b"well 1\n"
    assert program.returncode == 0


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_following(controller, compiled, request, kind):
    """The program and all that it executes run on unharmed; what is left in the program is listed and removed."""
    with subprocess.Popen([compiled("executes_often.c")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"ready\n"
        controller.ask("follow", program.pid, "none", EXECUTIONS)
        answer = controller.ask("follow", program.pid, "none", EXECUTIONS)
        assert "untyped" not in answer, answer
        assert "error" not in answer, answer
        assert answer["notes"] == []
        chosen = numbers(answer["classes"], kind, request)
        assert_unharmed(controller, program, kind, chosen, ("follow", EXECUTIONS))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_loading_and_relieving(controller, compiled, request, kind):
    """A thread that waits for probes in its library, and a child that waits to be rid of its own, go on unharmed."""
    command = [compiled("loads_often.c", "-O1", "-ldl"), build("loaded.c", "-shared", "-fPIC", "-O1", text=LIBRARY)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"ready\n"
        controller.ask("load", program.pid, "none", LOADS)
        answer = controller.ask("load", program.pid, "none", LOADS)
        assert "untyped" not in answer, answer
        assert "error" not in answer, answer
        assert answer["hits"] >= 10 * LOADS
        assert answer["notes"] == []
        chosen = numbers(answer["classes"], kind, request, SLICE // 2)
        assert_unharmed(controller, program, kind, chosen, ("load", LOADS))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_what_a_child_loads(controller, compiled, request, kind):
    """A child that waits for probes of its own beside those that it has inherited goes on unharmed."""
    library = build("loaded.c", "-shared", "-fPIC", "-O1", text=LIBRARY)
    command = [compiled("loads_often.c", "-O1", "-ldl"), "children", library]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"ready\n"
        controller.ask("load", program.pid, "none", BY_CHILDREN, "count")
        answer = controller.ask("load", program.pid, "none", BY_CHILDREN, "count")
        assert "untyped" not in answer, answer
        assert "error" not in answer, answer
        assert answer["hits"] >= 10 * BY_CHILDREN
        assert answer["notes"] == []
        chosen = numbers(answer["classes"], kind, request, SLICE // 2)
        assert_unharmed(controller, program, kind, chosen, ("load", BY_CHILDREN, "count"))
