"""The kernel sets a uprobe on a probed instruction, and takes it away: the program lives, and the result says so."""

import os
import subprocess
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

import anyprobe
from anyprobe.cli.doctor.target_checks import findings
from support.driver import Target, build

pytestmark = pytest.mark.live

TRACEFS = Path("/sys/kernel/tracing")
_names = count(1)


@pytest.fixture(scope="module")
def events():
    """The file by which the kernel is told of uprobes."""
    if not (TRACEFS / "uprobe_events").exists():
        subprocess.run(["mount", "-t", "tracefs", "nodev", TRACEFS], check=False, capture_output=True)
    if not os.access(TRACEFS / "uprobe_events", os.W_OK):
        pytest.skip("uprobes need root and a kernel with them")
    return TRACEFS / "uprobe_events"


def told(path, line):
    """Append a line to a file that cannot be sought in."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@contextmanager
def uprobe(events, path, offset):
    name = f"anyprobe_test_{os.getpid()}_{next(_names)}"
    told(events, f"p:{name}/u {path}:{offset:#x}\n")
    enable = events.parent / "events" / name / "u" / "enable"
    try:
        enable.write_text("1")
        yield
    finally:
        enable.write_text("0")
        told(events, f"-:{name}/u\n")


def place_of(path, function):
    """Return the file offset of a function; the text's addresses and offsets are the same in these programs."""
    for line in subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines():
        address, _, name = line.split(maxsplit=2) if line[0] != " " else ("0", "", "")
        if name == function:
            return int(address, 16)
    raise AssertionError(function)


@pytest.fixture
def program():
    return build("uprobed.c", "-O2")


def bytes_of(path, function, size=8):
    return path.read_bytes()[place_of(path, function) :][:size]


def now(pid, path, function, size=8):
    base = min(
        int(line.split("-")[0], 16) for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if str(path) in line
    )
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(base + place_of(path, function))
        return memory.read(size)


FUNCTIONS = ("pushes", "long_first", "short_first")


@pytest.fixture(params=FUNCTIONS)
def probed(request, program):
    """The program with one function counted: target, session, function, and the function's own first bytes."""
    target = Target([program])
    with anyprobe.attach(target.pid) as session:
        session.count(f"a.out:{request.param}")
        target.go(3)
        assert session.snapshot().hits == 3
        yield target, session, request.param, bytes_of(program, request.param)
    target.close()


def test_a_uprobe_that_is_seen(events, program, probed):
    target, session, function, own = probed
    with uprobe(events, program, place_of(program, function)):
        snapshot = session.snapshot()
        assert now(target.pid, program, function) == b"\xcc" + own[1:]
        assert any("uprobe" in text and "own instructions" in text for text in snapshot.warnings)
        assert [site.armed for site in snapshot.sites] == [False]
        target.go(5)
    assert now(target.pid, program, function) == own
    target.go(5)
    assert session.snapshot().hits == 3
    session.detach()
    assert session.warnings == list(snapshot.warnings)
    assert now(target.pid, program, function) == own
    target.finish()


def test_a_uprobe_that_the_probes_do_not_live_to_see(events, program, probed):
    target, session, function, own = probed
    with uprobe(events, program, place_of(program, function)):
        session.detach()
        assert now(target.pid, program, function) == b"\xcc" + own[1:]
        target.go(5)
    assert now(target.pid, program, function) == own
    target.finish()


def test_a_uprobe_that_has_come_and_gone(events, program, probed):
    target, session, function, own = probed
    with uprobe(events, program, place_of(program, function)):
        pass
    session.snapshot()
    assert now(target.pid, program, function) == own
    target.go(5)
    session.detach()
    target.finish()


def test_a_uprobe_on_a_displaced_instruction(events, program):
    target = Target([program])
    own = bytes_of(program, "short_first")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:short_first")
        target.go(3)
        with uprobe(events, program, place_of(program, "short_first") + 3):
            session.snapshot()
            assert now(target.pid, program, "short_first") == own[:3] + b"\xcc" + own[4:]
            target.go(5)
        assert session.snapshot().hits == 3
    assert now(target.pid, program, "short_first") == own
    target.finish()
    target.close()


def test_uprobes_that_are_in_use_are_told_of(events, program):
    target = Target([program])
    with uprobe(events, program, place_of(program, "short_first")):
        target.go(1)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:long_first")
        assert any("uprobes are used" in text for text in session.snapshot().warnings)
    (found,) = [each for each in findings(target.pid) if each.name == "uprobes"]
    assert found.verdict == "limited"
    target.finish()
    target.close()
