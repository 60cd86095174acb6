"""Opening a process: what it is refused for, with nothing changed, and launching one."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import anyprobe
from anyprobe.cli.doctor import target_checks
from anyprobe.core.errors import (
    NoSuchProcess,
    PermissionDenied,
    SpecError,
    StopTimeout,
    TargetError,
    TargetExited,
    UnsupportedTarget,
    UsageError,
)
from anyprobe.core.memory import MemoryFault
from anyprobe.target.process import permission
from anyprobe.target.process.launch import launch
from anyprobe.target.process.process import Process
from anyprobe.target.remote.batch import BatchedCall, batch_code
from anyprobe.target.system import procfs
from support.driver import wait_until
from support.dying_controller import dies
from support.target_driver import running

MMAP, GETPID = 9, 39


def test_bad_pids():
    with pytest.raises(UnsupportedTarget, match=r"attach_self\(\)"):
        Process.open(os.getpid())
    for pid in (0, -1, 2**22 + 5):
        with pytest.raises(NoSuchProcess):
            Process.open(pid)


def test_a_thread_is_not_a_process():
    with running("self_check") as program:
        program.line()
        with pytest.raises(NoSuchProcess, match=f"thread of process {program.pid}"):
            Process.open(max(Process.open(program.pid).threads()))


def test_zombie():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(UnsupportedTarget, match="zombie"):
        Process.open(child.pid)
    child.wait()


def test_kernel_thread():
    if not Path("/proc/2/comm").exists() or Path("/proc/2/comm").read_text() != "kthreadd\n":
        pytest.skip("no kernel threads to be seen here")
    with pytest.raises(UnsupportedTarget, match="kernel thread"):
        Process.open(2)


def test_init_of_the_machine():
    with suppress(PermissionError):  # if we may not even look at it, it is refused as well
        if os.readlink("/proc/1/ns/pid") != "pid:[4026531836]":
            pytest.skip("in a container")
    with pytest.raises(UnsupportedTarget, match="init"):
        Process.open(1)


def test_32_bit_program(tmp_path):
    #   b8 1d 00 00 00   mov $29,%eax    (pause)
    #   cd 80            int $0x80
    #   eb f7            jmp 0
    code = bytes.fromhex("b81d000000cd80ebf7")
    header = b"\x7fELF\1\1\1" + bytes(9) + b"".join(
        value.to_bytes(size, "little")
        for value, size in [
            (2, 2), (3, 2), (1, 4), (0x8048054, 4), (52, 4), (0, 4), (0, 4), (52, 2), (32, 2), (1, 2), (0, 6)
        ]
    )  # fmt: skip
    segment = b"".join(v.to_bytes(4, "little") for v in (1, 0, 0x8048000, 0x8048000, 0x1000, 0x1000, 5, 0x1000))
    program = tmp_path / "small"
    program.write_bytes((header + segment + code).ljust(4096, b"\0"))
    program.chmod(0o755)
    try:
        child = subprocess.Popen([str(program)])
    except OSError:
        pytest.skip("this kernel runs no 32-bit programs")
    try:
        with pytest.raises(UnsupportedTarget, match="32-bit"):
            Process.open(child.pid)
    finally:
        child.kill()
        child.wait()


@contextmanager
def traced(pid):
    """Let another process trace ``pid`` for a scope."""
    code = f"""
from anyprobe.target.process.process import Process
with Process.open({pid}).stop():
    print(flush=True)
    input()
"""
    tracer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    tracer.stdout.read(1)
    yield tracer
    tracer.communicate(b"\n")
    assert tracer.returncode == 0


def test_traced_by_another_names_it():
    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        with traced(program.pid) as tracer:
            with pytest.raises(PermissionDenied, match=rf"python\S* \(pid {tracer.pid}\)") as error:
                Process.open(program.pid)
            assert error.value.rule == "traced"
            with pytest.raises(PermissionDenied, match=str(tracer.pid)), process.stop(0.2):
                pass
        with process.stop() as stop:
            assert len(stop.threads) == 4
        assert program.ask().startswith("ok")


def in_child(function):
    """Run a check in a child, which may drop its rights."""
    assert not dies(None, function)


@pytest.mark.root
def test_another_users_process():
    with running("self_check") as program:
        program.line()

        def check():
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            with pytest.raises(PermissionDenied, match="sudo") as error:
                Process.open(program.pid)
            assert error.value.rule == "uid"

        in_child(check)
        assert program.ask().startswith("ok")


@pytest.mark.root
def test_a_process_closed_to_inspection():
    def check():
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        code = "import ctypes,time; ctypes.CDLL(None).prctl(4, 0); print(flush=True); time.sleep(60)"
        child = subprocess.Popen(["/usr/bin/env", "python3", "-c", code], stdout=subprocess.PIPE)
        child.stdout.read(1)
        try:
            with pytest.raises(PermissionDenied) as error:
                Process.open(child.pid)
            assert error.value.rule == "dumpable"
        finally:
            child.kill()
            child.wait()
            child.stdout.close()

    in_child(check)


@pytest.mark.parametrize(("scope", "rule"), [("1", "yama"), ("2", "yama"), ("3", "yama"), (None, "security-module")])
def test_yama_is_named(monkeypatch, scope, rule):
    def read_file(path):
        if path == permission._YAMA:
            if scope is None:
                raise FileNotFoundError
            return scope.encode()
        raise AssertionError(path)

    status = {"TracerPid": "0", "CapEff": "0", "CapPrm": "0", "Uid": "\t".join([str(os.geteuid())] * 4), "Seccomp": "0"}
    monkeypatch.setattr(permission.procfs, "read_file", read_file)
    monkeypatch.setattr(permission.procfs, "read_status", lambda _: status)
    error = permission.explain(os.getpid())
    assert error.rule == rule
    if scope == "1":
        assert "ptrace_scope=0" in error.remedy


def test_memory():
    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        text = next(m for m in process.mappings() if m.executable)
        content = process.mem.read(text.start, 64)
        process.mem.write(text.start, content)
        for address, size in ((8, 8), (text.start, 1 << 40), (1 << 63, 8), (1 << 70, 8)):
            with pytest.raises(MemoryFault):
                process.mem.read(address, min(1 << 20, size))
        with pytest.raises(MemoryFault):
            process.mem.write(8, b"x")
        program.child.kill()
        program.child.wait()
        with pytest.raises(TargetExited):
            process.mem.read(text.start, 8)


def test_memory_is_written_through_ptrace_where_the_file_may_not(monkeypatch):
    import errno

    from anyprobe.target.system import gateway

    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        text = next(m for m in process.mappings() if m.executable)
        content = process.mem.read(text.start + 3, 21)

        def refuse(*_):
            raise OSError(errno.EIO, "not forceful")

        with process.stop():
            monkeypatch.setattr(gateway, "pwrite", refuse)
            process.mem.write(text.start + 3, b"\xcc" * 21)
            assert process.mem.read(text.start + 3, 21) == b"\xcc" * 21
            process.mem.write(text.start + 3, content)
        with pytest.raises(MemoryFault):
            process.mem.write(text.start, b"x")
        monkeypatch.undo()
        assert process.mem.read(text.start + 3, 21) == content


def test_launch_holds_before_the_first_instruction_and_reports_the_end(tmp_path):
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        process = launch(
            ["sh", "-c", "pwd; echo $SAID; exit 7"], stdout=stdout, env={"SAID": "hello"}, cwd=str(tmp_path)
        )
    loader = process.auxv()[7]
    with process.stop() as stop:
        (thread,) = stop.threads
        assert loader < thread.registers.rip < loader + (1 << 20)
        with stop.remote() as remote:
            assert remote.syscall(GETPID) == process.pid
    with process.borrow() as remote:
        assert remote.syscall(GETPID) == process.pid
    assert out.read_bytes() == b""
    process.resume()
    assert process.wait(180) == 7 << 8
    assert out.read_text() == f"{tmp_path}\nhello\n"
    process.close()


def test_nobody_is_attached_after_resume():
    process = launch(["sleep", "60"])
    try:
        assert permission.tracer_of(process.pid) == os.getpid()
        process.resume()
        assert permission.tracer_of(process.pid) == 0
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == signal.SIGTERM
        process.close()


def test_launch_of_nothing():
    with pytest.raises(UsageError, match="No such file"):
        launch(["/nonexistent/program"])
    with pytest.raises(UsageError, match="Permission denied"):
        launch(["/etc/passwd"])
    with pytest.raises(UsageError):
        launch([])


def test_a_held_program_runs_on_when_the_controller_dies(tmp_path):
    out = tmp_path / "out"
    controller = os.fork()
    if controller == 0:
        process = launch(["sh", "-c", f"echo fine > {out}"])
        with process.stop() as stop, stop.remote() as remote:
            remote.syscall(GETPID)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(controller, 0)
    wait_until(lambda: out.exists() and out.read_text(), "it has said something")
    assert out.read_text() == "fine\n"


def test_a_held_program_that_is_killed():
    process = launch(["sleep", "60"])
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(TargetExited), process.stop():
        pass
    assert process.exit_status == signal.SIGKILL
    process.close()


def test_a_seccomp_filter_is_suspended_or_refused():
    code = """
import ctypes, sys
libc = ctypes.CDLL(None)
class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]
class Program(ctypes.Structure): _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]
# Kill at getpid, allow everything else.
load, equal, end = 0x20, 0x15, 0x06
filters = (Filter * 4)(
    Filter(load, 0, 0, 0), Filter(equal, 0, 1, 39), Filter(end, 0, 0, 0x80000000), Filter(end, 0, 0, 0x7fff0000))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.byref(Program(4, filters)), 0, 0) == 0
print(flush=True)
sys.stdin.read(1)
print("end", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.read(1)
        process = Process.open(child.pid)
        try:
            with process.borrow() as remote:
                assert remote.syscall(GETPID) == child.pid
        except PermissionDenied as error:
            assert error.rule == "seccomp"  # noqa: PT017 - either is right, by what we may do
        assert child.communicate(b"x")[0] == b"end\n"
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()


def test_shadow_stacks_are_refused(monkeypatch):
    """What returns to where it was not called from would end the program."""
    read, status = procfs.read_file, procfs.read_status

    def read_file(path, *more):
        return read(path, *more) + (b"x86_Thread_features:\tshstk wrss\n" if str(path).endswith("/status") else b"")

    with running("thread_churn") as program:
        program.line()
        monkeypatch.setattr(procfs, "read_file", read_file)
        monkeypatch.setattr(procfs, "read_status", lambda pid: status(pid) | {"x86_Thread_features": "shstk"})
        process = Process.open(program.pid)
        with pytest.raises(UnsupportedTarget, match="shadow stacks"), process.borrow():
            pass
        process.close()
        (found,) = (each for each in target_checks.findings(program.pid) if each.name == "shadow stack")
        assert found.verdict == "no"


def stack_in_memory(pid):
    """Return how many KiB of its main stack a process has touched."""
    content = Path(f"/proc/{pid}/smaps").read_text().partition("[stack]")[2]
    return int(content.partition("Rss:")[2].split()[0])


def test_calls_in_a_thread_on_an_alternate_stack_leave_living_frames_alone():
    with running("no_place_for_calls", "alternate", options=("-Wl,-z,now",)) as program:
        assert program.line() == "ready"
        process = Process.open(program.pid)
        stack = stack_in_memory(program.pid)
        with process.borrow() as remote:
            assert remote.syscall(GETPID) == program.pid
        for _ in range(100):
            with process.stop() as stop, stop.remote() as remote:
                assert remote.syscall(GETPID) == program.pid
        assert stack_in_memory(program.pid) <= stack + 20, "each use takes other memory"
        process.close()
        assert program.ask() == "fine"


def test_a_thread_that_went_on_alone_makes_calls_only_where_there_is_room_then():
    """Nobody looked for it in time: the memory it was on may have become the program's."""
    with running("no_place_for_calls", "alternate", options=("-Wl,-z,now",)) as program:
        assert program.line() == "ready"
        process = Process.open(program.pid)
        calls = [BatchedCall(GETPID, (), program.pid)]
        with process.stop() as stop, stop.remote() as remote:
            area = remote.syscall(MMAP, 0, 4096, 5, 0x22, -1, 0)
        process.mem.write(area, batch_code(calls))
        alone, rounds = False, 0
        while not alone:
            assert (rounds := rounds + 1) < 100
            with process.stop() as stop, stop.remote() as remote:
                remote._wait_us = 0
                remote.run(calls, area)
                alone = not remote._running
                assert remote.syscall(GETPID) == program.pid
        process.close()
        assert program.ask() == "fine"


def test_no_call_is_made_where_it_would_come_back_as_a_signal():
    with running("no_place_for_calls", "dispatching") as program:
        if program.line() == "no":
            pytest.skip("a kernel without PR_SET_SYSCALL_USER_DISPATCH")
        process = Process.open(program.pid)
        refused = 0
        for _ in range(20):
            try:
                with process.stop() as stop, stop.remote() as remote:
                    assert remote.syscall(GETPID) == program.pid
            except StopTimeout as error:
                refused += "PR_SET_SYSCALL_USER_DISPATCH" in str(error)
            time.sleep(0.01)
        process.close()
        assert refused
        assert program.ask() == "fine"


def test_our_own_child_keeps_its_exit_status_for_whoever_started_it():
    child = subprocess.Popen(["sleep", "60"])
    process = Process.open(child.pid)
    with process.stop():
        pass
    child.terminate()
    assert process.wait(180) == signal.SIGTERM
    assert child.wait() == -signal.SIGTERM


def test_a_program_that_executes_itself_again_and_again():
    """It is attached to, or what it has executed is said; that it has ended is said of none that runs."""
    loop = 'exec sh -c "$0" "$0"'
    placed, met = 0, []
    with subprocess.Popen(["sh", "-c", loop, loop]) as program:
        try:
            for _ in range(40):
                try:
                    with anyprobe.attach(program.pid) as session:
                        session.count("libc:malloc")
                        placed += 1
                except SpecError:
                    pass  # its libraries are not mapped yet
                except TargetError as error:
                    met.append(str(error))
        finally:
            program.kill()
    assert [each for each in met if "has exited" in each] == []
    assert [each for each in met if "has executed" not in each and "vanished" not in each] == []
    assert placed + len(met) > 0
