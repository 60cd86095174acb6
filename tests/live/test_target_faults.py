"""Every gateway call of a visit fails, returns short, or is the controller's last; the target is unharmed."""

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from contextlib import closing

import pytest

from anyprobe.core.errors import AnyprobeError
from anyprobe.core.memory import MemoryFault
from anyprobe.target.process.process import Process
from anyprobe.target.system import gateway
from anyprobe.target.system.gateway import FaultPlan, faults
from support.dying_controller import dies
from support.target_driver import running

MMAP, MUNMAP, GETPID = 9, 11, 39
MOST_CALLS = 1000
APART = 4
"""How far apart the calls are that go wrong; the torture has all."""


def visit(pid):
    """Do all that a controller does to a target, once."""
    with closing(Process.open(pid)) as process:
        with process.borrow() as remote:
            area = remote.syscall(MMAP, 0, 65536, 3, 0x22, -1, 0)
            assert remote.syscall(GETPID) == pid
            process.mem.write(area, b"anyprobe")
        with process.stop() as stop:
            stop.verify()
            assert process.mem.read(area, 8) == b"anyprobe"
            with stop.remote() as remote:
                assert remote.syscall(GETPID) == pid
                assert remote.syscall(MUNMAP, area, 65536) == 0


def visit_and_die(pid, plan):
    """Visit in a child that dies on the way; return whether it did."""

    def visiting():
        faults.install(plan)
        visit(pid)

    return dies(plan, visiting)


@pytest.fixture
def calls(request):
    """Numbers of calls that go wrong: all of a case by the torture; else other ones for each case."""
    if request.config.getoption("--torture"):
        return range(1, MOST_CALLS)
    return range(1 + zlib.crc32(request.node.name.encode()) % APART, MOST_CALLS, APART)


def is_well(program):
    assert program.ask().startswith("ok")


def killed_at(calls, pid, kind, check=lambda: None):
    """Kill a controller at each of some calls, until one lives; return how many were killed."""
    for killed, call in enumerate(calls):
        if not visit_and_die(pid, FaultPlan(kind, call)):
            return killed
        check()
    raise AssertionError(f"a visit has more than {MOST_CALLS} calls")


@pytest.mark.parametrize("threads", ["restartable", "alone"])
@pytest.mark.parametrize("kind", ["kill-before", "kill-after"])
def test_controller_killed_at_every_call(calls, kind, threads):
    with running("self_check", threads) as program:
        program.line()
        assert killed_at(calls, program.pid, kind, lambda: is_well(program)) > 60
        assert program.is_free()
        visit(program.pid)
        is_well(program)


@pytest.mark.parametrize("blocked", ["poll", "nanosleep", "select"])
def test_controller_killed_at_every_call_over_a_blocked_call(calls, blocked):
    with running("blocked", blocked) as program:
        program.line()
        assert killed_at(calls, program.pid, "kill-after") > 60
        time.sleep(0.1)
        program.child.send_signal(signal.SIGTERM)
        assert program.line() == "done"


@pytest.mark.parametrize(
    "fault", [f"fail:{{}}:{name}" for name in ("EIO", "ESRCH", "EPERM", "EINTR", "ENOMEM")] + ["short:{}"]
)
def test_every_call_fails_or_is_short(calls, fault):
    with running("self_check") as program:
        program.line()
        outcomes = {}
        for call in calls:
            faults.install(FaultPlan.parse(fault.format(call)), log=True)
            try:
                visit(program.pid)
            except (AnyprobeError, MemoryFault) as error:
                outcomes[type(error).__name__] = outcomes.get(type(error).__name__, 0) + 1
            except BaseException as error:
                error.add_note(f"{fault} at call {call}: {faults.log[call - 1]}")
                raise
            finally:
                log, reached = faults.log, faults.reached
                faults.clear()
            assert program.is_free(), (fault, call, log[call - 1])
            if call % 10 <= APART:
                assert program.ask().startswith("ok"), (fault, call, log[call - 1])
            if not reached:
                break
        assert call > 60
        print(outcomes)
        assert program.ask().startswith("ok")
        visit(program.pid)
        gc.collect()


@pytest.mark.parametrize("blocked", ["epoll_wait", "sigtimedwait", "recv"])
def test_controller_killed_while_it_holds_a_thread_in_a_call_that_a_stop_interrupts(blocked):
    with running("blocked", blocked) as program:
        program.line()
        for _ in range(100):
            controller = os.fork()
            if controller == 0:
                with Process.open(program.pid).stop():
                    os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(controller, 0)
        program.child.send_signal(signal.SIGTERM)
        assert program.line() == "done"


def test_controller_killed_at_every_call_of_a_static_musl_program(calls):
    if not shutil.which("musl-gcc"):
        pytest.skip("needs musl-gcc")
    with running("self_check", "restartable", compiler="musl-gcc", options=("-static",)) as program:
        program.line()
        assert killed_at(calls, program.pid, "kill-after", lambda: is_well(program)) > 60
        assert program.is_free()


@pytest.mark.parametrize("tiles", ["held", "released"])
@pytest.mark.sliced(2)
def test_controller_killed_at_every_call_of_a_program_with_tiles(calls, tiles):
    with running("tiles", tiles, options=("-mamx-tile",)) as program:
        if program.line() == "no":
            pytest.skip("needs a processor with AMX")
        assert killed_at(calls, program.pid, "kill-after", lambda: is_well(program)) > 60
        assert program.is_free()


def test_random_moments():
    with running("self_check", "restartable") as program:
        program.line()
        code = f"""
import sys; sys.path[:0] = {sys.path!r}
from live.test_target_faults import visit
print(flush=True)
while True:
    visit({program.pid})
"""
        for turn in range(30):
            controller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
            controller.stdout.read(1)
            time.sleep(0.001 + turn * 0.00037)
            controller.kill()
            controller.wait()
            controller.stdout.close()
            assert program.ask().startswith("ok")
        assert program.is_free()


def test_production_never_reads_the_fault_variable(monkeypatch):
    monkeypatch.setenv("ANYPROBE_FAULT", "kill-before:1")
    with running("self_check") as program:
        program.line()
        visit(program.pid)


def test_without_faults_the_calls_are_the_plain_ones():
    plain = gateway.pread
    faults.install(FaultPlan("fail", 1, errno.EIO))
    assert gateway.pread is not plain
    faults.clear()
    assert gateway.pread is plain is os.pread
