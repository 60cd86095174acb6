"""Programs that change instructions of their own: what can be seen in time is refused or taken out, and told."""

import subprocess
from contextlib import contextmanager

import pytest

import anyprobe
from support.driver import build

pytestmark = pytest.mark.live
FUNCTIONS = ("near", "far", "plain")


@contextmanager
def patching(*arguments):
    command = [build("patches_itself.c", "-O1"), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
            process.stdin.close()
            assert process.wait(180) == 0
        finally:
            if process.poll() is None:
                process.kill()


def tell(process, line):
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def sites(session):
    return {site.function: (site.hits, site.armed) for site in session.snapshot().sites}


@pytest.mark.parametrize("form", ["", ":insn", "%return"])
def test_text_that_is_writable_is_refused(form):
    with patching("writable") as process, anyprobe.attach(process.pid) as session:
        session.count(*(f"a.out:{name}{form}" for name in FUNCTIONS), "libc:getppid")
        snapshot = session.snapshot()
        assert {each.reason for each in snapshot.refused} == {"writable-text"}
        assert {site.function for site in snapshot.sites if site.armed} <= {"getppid", "__getppid"}
        for line in ("r", "k near", "k far", "r", "k near", "r"):
            assert tell(process, line) == "right"


def test_text_that_becomes_writable_loses_its_probes():
    with patching() as process, anyprobe.attach(process.pid) as session:
        session.count(*(f"a.out:{name}" for name in FUNCTIONS))
        session.time("a.out:far")
        assert tell(process, "r") == "right"
        assert tell(process, "w") == "right"
        assert sites(session) == {"near": (200, False), "far": (100, False), "plain": (200, False)}
        assert any("made its text writable" in text for text in session.warnings)
        assert {each.reason for each in session.snapshot().refused} == {"writable-text"}
        for line in ("k near", "k far", "r", "k far", "r"):
            assert tell(process, line) == "right"
        session.count("a.out:plain:insn")
        assert sites(session) == {"near": (200, False), "far": (100, False), "plain": (200, False)}


def test_a_changed_instruction_that_runs_as_a_copy_is_seen():
    with patching() as process, anyprobe.attach(process.pid) as session:
        session.count("a.out:far", "a.out:plain")
        assert tell(process, "r") == "right"
        assert tell(process, "k far") == "right"
        assert sites(session) == {"far": (100, False), "plain": (200, True)}
        assert any("run as copies" in text for text in session.warnings)
        assert tell(process, "r") == "right"
        assert tell(process, "k far") == "right"
        assert tell(process, "r") == "right"
        assert sites(session) == {"far": (100, False), "plain": (500, True)}
