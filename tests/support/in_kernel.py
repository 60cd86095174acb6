"""What the running kernel holds of BPF and kprobes, and sessions in child processes that die or meet failures."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import anyprobe
from anyprobe.target.kernel import bpf, symbols
from anyprobe.target.system import gateway

KPROBES = Path("/sys/kernel/debug/kprobes/list")
EVENTS = Path("/sys/kernel/tracing/kprobe_events"), Path("/sys/kernel/tracing/uprobe_events")
_TOGETHER = 8
"""Children that run at one time."""
_OBJECTS = {"program": 11, "map": 12, "link": 31}
"""The commands of bpf(2) that go through all objects of a kind."""


@contextlib.contextmanager
def writes_of(size: int, times: int) -> Iterator[Callable[[], None]]:
    """Yield what has the kernel's ``vfs_write`` run so many times, with so many bytes each time."""
    with open("/dev/null", "wb", buffering=0) as file:
        yield lambda: file.writelines(b"x" * size for _ in range(times))


def numbers_of(kind: str) -> list[int]:
    """Return the numbers of all programs, maps or links of BPF."""
    found: list[int] = []
    number = bpf.next_number(_OBJECTS[kind], 0)
    while number is not None:
        found.append(number)
        number = bpf.next_number(_OBJECTS[kind], number)
    return found


def has_multi() -> bool:
    """Return whether this kernel was built with what ``kprobe.multi`` needs."""
    return bool(symbols.running().named("register_fprobe"))


def held() -> set[str]:
    """Return what the kernel holds for anybody: objects of BPF, kprobes, and events that were made in tracefs."""
    found = {f"{kind} {number}" for kind in _OBJECTS for number in numbers_of(kind)}
    with contextlib.suppress(OSError):  # locked down
        found |= {f"kprobe {line}" for line in KPROBES.read_text().splitlines()}
    return found | {f"event {line}" for path in EVENTS if path.exists() for line in path.read_text().splitlines()}


def left_behind(before: set[str], seconds: float = 120) -> set[str]:
    """Return what the kernel still holds that it did not hold before; it gives back what is closed after a while."""
    pause = threading.Event()
    for _ in range(int(seconds * 20)):
        left = held() - before
        if not left:
            break
        pause.wait(0.05)
    return left


def in_child(work: Callable[[], None], plan: str = "") -> dict[str, object]:
    """Run something in a fork with one call on the kernel going wrong; return how that went.

    ``status`` is the signal that killed it, ``log`` its calls, ``error`` a typed error and ``untyped`` another one.
    """
    (answer,) = in_children(work, [plan])
    return answer


def in_children(work: Callable[[], None], plans: Sequence[str]) -> list[dict[str, object]]:
    """Run something in a fork for each plan, some of them at one time: most of a session is waiting for the kernel."""
    answers: list[dict[str, object]] = []
    for first in range(0, len(plans), _TOGETHER):
        started = [_start_child(work, plan) for plan in plans[first : first + _TOGETHER]]
        answers += [_answer_of(*each) for each in started]
    return answers


def _start_child(work: Callable[[], None], plan: str) -> tuple[int, int]:
    """Fork; return the child and from where its answer is read."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        answer: dict[str, object] = {}
        try:
            gateway.faults.install(gateway.FaultPlan.parse(plan) if plan else None, log=True)
            try:
                work()
            except anyprobe.AnyprobeError as error:
                answer["error"] = f"{type(error).__name__}: {error}"
            except BaseException as error:
                answer["untyped"] = repr(error)
            answer["log"] = gateway.faults.log
            os.write(writer, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(writer)
    return child, reader


def _answer_of(child: int, reader: int) -> dict[str, object]:
    """Return how it went with a child, once it has ended."""
    with os.fdopen(reader, "rb") as file:
        told = file.read()
    _, status = os.waitpid(child, 0)
    answer: dict[str, object] = json.loads(told) if told else {}
    answer["status"] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return answer


def calls_of(log: list[str], *names: str) -> dict[int, str]:
    """Return which calls of a log are of some names: by position from 1, the call and what it does."""
    found = {}
    for position, line in enumerate(log, 1):
        name, _, rest = line.partition("(")
        if name in names:
            found[position] = f"{name} {rest.partition(',')[0]}" if name == "bpf" else name
    return found


def was_killed(answer: dict[str, object]) -> bool:
    """Return whether a child died by its plan."""
    return answer["status"] == signal.SIGKILL
