"""``anyprobe locks --kernel``: waits for one inode's lock, beside what the kernel's own trace of events says."""

import json
import re
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest

from live.test_command_line import anyprobe as command
from live.test_schemas import checked
from support.bpf_running import refused_because
from support.driver import build

INSTANCE = Path("/sys/kernel/tracing/instances/anyprobe_locks")
EVENTS = INSTANCE.parents[1] / "events/lock/contention_begin"
REFUSED = refused_because() or ("" if EVENTS.exists() else "the kernel has no tracepoints of contention")
pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(REFUSED), reason=REFUSED or "they run")]
TIMES = "200"
KINDS = {"READ": "rwsem", "WRITE": "rwsem", "MUTEX": "mutex", "SPIN|MUTEX": "mutex"}
LINE = re.compile(r"-(\d+) +\[\d+\] \S+ +([\d.]+): contention_(begin|end): (?:0x)?(\w+) \((?:flags=(\S*)|ret=\S+)\)")


@contextmanager
def kernel_trace():
    """Have the kernel write down all waits, with the addresses of locks as they are; yield what reads that."""
    hashed = INSTANCE.parents[1] / "options/hash-ptr"
    INSTANCE.mkdir(exist_ok=True)
    try:
        own = INSTANCE / "options/hash-ptr"
        (own if own.exists() else hashed).write_text("0")
        (INSTANCE / "events/lock/enable").write_text("1")
        yield (INSTANCE / "trace").read_text
    finally:
        (INSTANCE / "events/lock/enable").write_text("0")
        INSTANCE.rmdir()


def waits_in(text, name):
    """Return the times for which tasks of a name waited for read-write semaphores and mutexes, by kind and lock.

    A task that spins for a mutex may sleep for it then, which is one wait.
    """
    began, found = {}, defaultdict(list)
    for line in text.splitlines():
        match = LINE.search(line)
        if match is None or not line.lstrip().startswith(name):
            continue
        task, seconds, what, lock, flags = match.groups()
        if what == "begin" and flags in KINDS:
            began.setdefault((task, lock), (KINDS[flags], float(seconds)))
        elif what == "end" and (task, lock) in began:
            kind, since = began.pop((task, lock))
            found[kind, int(lock, 16)].append(float(seconds) - since)
    return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return what anyprobe says of the program, and what the kernel's trace does."""
    folder = tmp_path_factory.mktemp("locks")
    program, results = str(build("contended_file.c", "-O1")), str(folder / "results.json")
    for _ in range(5):  # until there were waits of both kinds
        with kernel_trace() as trace:
            found = command("locks", "--kernel", "--json", "-o", results, "--", program, str(folder / "file"), TIMES)
            assert found.returncode == 0, found.stderr
            truth = waits_in(trace(), "contended_file")
        document = json.loads(Path(results).read_text())
        if {kind for kind, _ in truth} == {"rwsem", "mutex"}:
            break
    checked("locks", document)
    return document, truth


@pytest.mark.parametrize(("kind", "call"), [("rwsem", "pwrite64"), ("mutex", "write")])
def test_waits_for_a_lock_are_those_of_the_kernel_s_trace(measured, kind, call):
    document, truth = measured
    _, most = max((each for each in truth if each[0] == kind), key=lambda each: sum(truth[each]))
    (lock,) = [each for each in document["locks"] if each["address"] == most]
    times = truth[kind, most]
    assert lock["contended"] == len(times) > 0
    assert lock["wait_ns"] == pytest.approx(1e9 * sum(times), rel=0.05, abs=3000 * len(times))
    assert (lock["kind"], lock["acquisitions"], lock["holds"]) == (kind, None, 0)
    assert sum(each["count"] for each in lock["waiters"]) == lock["contended"]
    assert any(any(call in frame for frame in each["stack"]) for each in lock["waiters"])
    assert not any("lock_slowpath" in each["stack"][0] or "rwsem_" in each["stack"][0] for each in lock["waiters"])


def test_all_locks_of_these_kinds_are_there(measured):
    document, truth = measured
    found = {(each["kind"], each["address"]): each["contended"] for each in document["locks"]}
    assert {key: count for key, count in found.items() if key[0] in {"rwsem", "mutex"}} == {
        key: len(times) for key, times in truth.items()
    }


def test_the_table_says_what_is_not_known():
    found = command("locks", "--kernel", "--for", "0.2")
    assert found.returncode == 0, found.stderr
    assert re.search(r"waited for [\d,]+ times?, \S+( \S+)? of waiting", found.stdout)
    assert " taken " not in found.stdout.splitlines()[0]
    found = command("locks", "--kernel", "--no-hold", "--for", "0")
    assert found.returncode == 2
    assert "--no-hold is about locks of programs" in found.stderr
