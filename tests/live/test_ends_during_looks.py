"""A program that ends while a look at it is under way, soon after it has set signal handlers: it ends as it would."""

import random
import subprocess
import time

import pytest

import anyprobe
from anyprobe.target.process import tracee
from anyprobe.target.process.process import Process
from support.driver import build
from support.results import hits

pytestmark = pytest.mark.live

SPECS = (
    "a.out:bye", "a.out:on_signal", "a.out:main%return", "libc:exit", "libc:__run_exit_handlers", "libc:raise",
    "libc:sigaction", "libc:_exit", "ld-linux-x86-64.so.2:_dl_fini",
)  # fmt: skip


@pytest.mark.parametrize("times", [25, pytest.param(2000, marks=pytest.mark.torture)])
def test_every_end_is_the_programs_own(times):
    program = build("ends_during_looks.c", "-O1")
    chance = random.Random(times)
    for number in range(times):
        with anyprobe.run([program, str(chance.randrange(60_000))]) as session:
            session.count(*SPECS)
            session.resume()
            while not session.exited:
                session.snapshot()
                session.wait(chance.random() * 0.004)
            assert session.wait(180) == 7 << 8, f"run {number}"
            snapshot = session.snapshot()
            assert (hits(snapshot, "bye"), hits(snapshot, "_dl_fini")) == (20, 1), f"run {number}"


def test_one_without_memory_that_has_not_quite_ended_ends(monkeypatch):
    """On a busy machine it may take a while from the one to the other."""
    with subprocess.Popen(["sleep", "100"]) as program:
        process = Process.open(program.pid)
        ended, begin = process.ended, time.monotonic()
        monkeypatch.setattr(tracee.procfs, "read_mappings", lambda _: [])
        monkeypatch.setattr(process, "ended", lambda: time.monotonic() > begin + 0.3 and (program.kill(), ended())[1])
        with pytest.raises(anyprobe.TargetExited):
            process.mappings()
        process.close()


def test_one_that_is_killed_has_its_time_to_end(monkeypatch):
    """What vanishes meanwhile is no fault: a busy machine ends it when it has its turn."""
    with subprocess.Popen(["sleep", "100"]) as program:
        process = Process.open(program.pid)
        ended, begin = process.ended, time.monotonic()
        program.kill()
        monkeypatch.setattr(process, "ended", lambda: time.monotonic() > begin + 0.5 and ended())
        assert isinstance(process.gone(), anyprobe.TargetExited)
        process.close()
