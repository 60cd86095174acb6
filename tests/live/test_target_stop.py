"""A stop of the target shows nowhere in what the target can observe."""

import errno
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from anyprobe.core.errors import RemoteCallFailed, StopTimeout, TargetError, TargetExited
from anyprobe.target.process.process import Process
from anyprobe.target.process.stopping import Stopper
from anyprobe.target.remote import calls as remote_module
from anyprobe.target.remote.batch import BatchedCall, batch_code
from anyprobe.target.system import gateway, procfs
from support.driver import PATIENCE, build, wait_until
from support.target_driver import running

MMAP, MUNMAP, GETPID, GETTID = 9, 11, 39, 186
CALLS = [
    "epoll_wait",
    "semtimedop",
    "sigtimedwait",
    "recv",
    "accept",
    "poll",
    "ppoll",
    "nanosleep",
    "select",
    "futex",
    "msgrcv",
]


def test_registers_vectors_mask_and_results_survive_stops_and_injected_calls():
    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        for round_ in range(300):
            with process.stop() as stop:
                assert len(stop.threads) == 4
                with stop.remote() as remote:
                    assert remote.syscall(GETPID) == program.pid
                    assert remote.syscall(GETTID) == remote.thread.tid
            with process.borrow() as remote:
                area = remote.syscall(MMAP, 0, 65536, 3, 0x22, -1, 0)
                assert remote.syscall(MUNMAP, area, 65536) == 0
            if round_ % 50 == 0:
                assert program.ask().startswith("ok")
        assert program.is_free()
        before = int(program.ask().split()[1])
        wait_until(lambda: int(program.ask().split()[1]) > before, "its threads go on")


def test_calls_in_every_thread():
    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        for _ in range(50):
            with process.stop() as stop:
                threads = list(stop.threads)
                for thread in threads:
                    stop.threads = [thread]
                    with stop.remote() as remote:
                        assert remote.syscall(GETTID) == thread.tid
        assert program.ask().startswith("ok")


@pytest.mark.sliced(3)
@pytest.mark.parametrize("call", CALLS)
def test_a_blocked_call_does_not_fail_with_eintr(call):
    with running("blocked", call) as program:
        program.line()
        process = Process.open(program.pid)
        for turn in range(1000):
            if turn % 10 == 0:
                with process.borrow() as remote:
                    assert remote.syscall(GETPID) == program.pid
            else:
                with process.stop():
                    pass
            if turn % 20 == 0:
                time.sleep(0.04)  # longer than the call's own timeout: it must end by itself too
        assert program.child.poll() is None
        program.child.send_signal(signal.SIGTERM)
        assert program.line() == "done"


@pytest.fixture
def two_hundred():
    """A program of two hundred threads."""
    text = """#include <pthread.h>
    #include <unistd.h>
    static void *f(void *a) { for (;;) pause(); }
    int main(void) { pthread_t t; for (int i = 0; i < 199; i++) pthread_create(&t, 0, f, 0);
    write(1, "x", 1); f(0); }"""
    child = subprocess.Popen([build("two_hundred.c", text=text)], stdout=subprocess.PIPE)
    try:
        child.stdout.read(1)
        yield Process.open(child.pid)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_two_hundred_threads_are_stopped_in_milliseconds(two_hundred):
    pauses = []

    def quick():
        """Others on the machine can only make it longer."""
        with two_hundred.stop() as stop:
            assert len(stop.threads) == 200
        pauses.append(stop.pause_us)
        return len(pauses) >= 10 and min(pauses) < 30_000

    wait_until(quick, "they are stopped quickly once")
    print("pause", pauses)


def test_a_listing_of_threads_that_ended_early_is_not_the_last(two_hundred, monkeypatch):
    """The kernel ends it where a thread exits just then: what would come behind it must not be left running."""
    whole = procfs.read_tasks
    parts = iter([100, 100, 150, 199])
    monkeypatch.setattr(procfs, "read_tasks", lambda pid: whole(pid)[: next(parts, None)])
    with two_hundred.stop() as stop:
        assert len(stop.threads) == 200


def test_nothing_runs_during_a_stop_of_a_program_that_makes_threads_all_the_time():
    with running("thread_churn") as program:
        word = int(program.line(), 16)
        process = Process.open(program.pid)
        for _ in range(200):
            with process.stop(5):
                before = process.mem.read(word, 8)
                time.sleep(0.001)
                assert process.mem.read(word, 8) == before
            wait_until(lambda before=before: process.mem.read(word, 8) != before, "the program goes on")
        assert program.child.poll() is None


def test_vfork_child_is_stopped_and_its_waiting_parent_counts_as_stopped():
    with running("vfork_child", "20000000") as program:
        word = int(program.line(), 16)
        process = Process.open(program.pid)
        seen = 0
        for _ in range(300):
            with process.stop(5) as stop:
                before = process.mem.read(word, 8)
                time.sleep(0.0005)
                assert process.mem.read(word, 8) == before
                if stop.waiting:
                    seen += 1
                    assert stop.waiting[0].pid == program.pid
                    assert {thread.pid for thread in stop.threads} != {program.pid}
            time.sleep(0.002)
        assert seen > 10
        program.line()
        program.line()


def test_who_looks_for_a_thread_gives_way_to_who_follows_the_child():
    """The only thread waits for a child by vfork, which may wait for just the one that the other keeps out."""
    text = "#include <unistd.h>\nint main(void) { if (vfork() == 0) { sleep(600); _exit(0); } return 0; }\n"
    with subprocess.Popen([build("sleeps_in_vfork.c", text=text)], start_new_session=True) as program:

        def waits_for_its_child():  # before it has one it may be in this state too, while it is read from the disk
            children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text()
            return children and procfs.read_stat(program.pid).state == "D"

        try:
            wait_until(waits_for_its_child, "the parent waits in vfork")
            process = Process.open(program.pid)
            ends = []

            def look():
                with pytest.raises(StopTimeout), process.borrow(timeout=5.0):
                    pass
                ends.append(time.monotonic())

            looking = threading.Thread(target=look)
            begin = time.monotonic()
            looking.start()
            time.sleep(0.2)
            with process.undisturbed():
                assert not ends  # and not only when the other gives up
                time.sleep(1.0)
            looking.join()
            assert ends[0] - begin > 6.0  # for 5 seconds it has really looked
            process.close()
        finally:
            os.killpg(program.pid, signal.SIGKILL)


def test_program_in_vfork_and_exec_all_the_time():
    chance = random.Random(1)
    with running("vfork_child", "10") as program:
        program.line()
        process = Process.open(program.pid)
        for _ in range(500):
            with process.stop(5) as stop:  # a child caught in execve stops in a program of its own
                for pid in {thread.pid for thread in stop.threads}:
                    assert gateway.kcmp_vm(program.pid, pid)
            time.sleep(chance.random() * 0.002)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not program.is_free():
            pass
        for _ in range(20):
            program.line()


def test_io_uring_worker_is_left_alone():
    with running("io_uring_worker") as program:
        if program.line() == "none":
            pytest.skip("no io_uring here")
        process = Process.open(program.pid)
        assert len(process.threads()) > 1
        for _ in range(50):
            with process.stop() as stop:
                assert [thread.tid for thread in stop.threads] == [program.pid]
                with stop.remote() as remote:
                    assert remote.syscall(GETPID) == program.pid
        program.child.stdin.write(b"x")
        assert program.line() == "12345678"


def test_signals_are_delivered_once_with_what_they_carry():
    with running("signals", str(os.getpid())) as program:
        program.line()
        process = Process.open(program.pid)
        sender = _Sender(program.pid, 3000)
        while sender.left:
            sender.send(5)
            with process.stop() as stop:
                sender.send(2)
                with stop.remote() as remote:
                    sender.send(1)
                    remote.syscall(GETPID)
                    sender.send(1)
                    remote.syscall(GETPID)
            with process.borrow() as remote:
                remote.syscall(GETPID)
        deadline = time.monotonic() + 10
        while True:
            program.child.send_signal(signal.SIGUSR1)
            answer = program.line()
            if answer == f"{sender.sent} {sender.total}" or time.monotonic() > deadline:
                break
        assert answer == f"{sender.sent} {sender.total}"


class _Sender:
    """Queues signals that carry numbers."""

    def __init__(self, pid, left):
        import ctypes

        self.pid, self.left, self.sent, self.total = pid, left, 0, 0
        self.queue = ctypes.CDLL(None).sigqueue
        self.queue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]

    def send(self, count):
        for _ in range(min(count, self.left)):
            self.left -= 1
            if self.queue(self.pid, signal.SIGRTMIN, self.sent + 1) == 0:
                self.sent += 1
                self.total += self.sent


def _attach_in_another_process(pid, rounds):
    code = f"""
from anyprobe.target.process.process import Process
process = Process.open({pid})
for _ in range({rounds}):
    with process.stop() as stop:
        with stop.remote() as remote:
            assert remote.syscall(39) == {pid}
    with process.borrow() as remote:
        remote.syscall(39)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)


def test_a_target_stopped_by_job_control_stays_stopped_and_its_parent_hears_nothing():
    with running("self_check") as program:
        program.line()
        program.child.send_signal(signal.SIGSTOP)
        result = os.waitid(os.P_PID, program.pid, os.WSTOPPED)
        assert result.si_status == signal.SIGSTOP
        _attach_in_another_process(program.pid, 20)
        assert os.waitid(os.P_PID, program.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG) is None
        assert program.state() == "T"
        assert program.is_free()
        program.child.send_signal(signal.SIGCONT)
        assert program.ask().startswith("ok")


def test_a_stop_signal_that_comes_during_a_stop_takes_effect_after_it():
    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        for _ in range(20):
            with process.stop() as stop, stop.remote() as remote:
                remote.syscall(GETPID)
                program.child.send_signal(signal.SIGSTOP)
                remote.syscall(GETPID)
            wait_until(lambda: program.state() == "T", "the signal takes effect")
            with process.stop() as stop, stop.remote() as remote:
                program.child.send_signal(signal.SIGCONT)
                remote.syscall(GETPID)
            assert program.ask().startswith("ok")


def test_a_target_killed_during_a_stop_is_an_ordinary_end():
    for moment in ("stop", "remote", "borrow", "before"):
        with running("self_check") as program:
            program.line()
            process = Process.open(program.pid)
            with pytest.raises(TargetExited):  # noqa: PT012 - the moment is the point
                if moment == "before":
                    program.child.kill()
                    with process.stop():
                        pass
                elif moment == "borrow":
                    with process.borrow() as remote:
                        program.child.kill()
                        remote.syscall(GETPID)
                else:
                    with process.stop() as stop:
                        if moment == "stop":
                            program.child.kill()
                        with stop.remote() as remote:
                            program.child.kill()
                            remote.syscall(GETPID)
                            remote.syscall(GETPID)
            assert program.child.wait(PATIENCE) == -signal.SIGKILL
            assert process.exited()


def test_exec_is_noticed():
    child = subprocess.Popen(["sh", "-c", "read x; exec sleep 100"], stdin=subprocess.PIPE)
    try:
        process = Process.open(child.pid)
        with process.stop() as stop:
            stop.verify()
        child.stdin.write(b"\n")
        child.stdin.close()
        wait_until(lambda: re.search("sleep", os.readlink(f"/proc/{child.pid}/exe")), "it executes another program")
        with pytest.raises(Exception, match="another program"), process.stop() as stop:
            stop.verify()
        with pytest.raises(TargetExited):
            process.mem.read(process.mappings()[0].start, 8)
    finally:
        child.kill()
        child.wait()
        child.stdin.close()


def test_an_exec_under_way_is_waited_for(monkeypatch):
    """Whoever starts a program may be told so before the kernel has laid it out: text, stack, and the stack moved."""
    with subprocess.Popen(["sleep", "100"]) as child:
        try:
            settled = Process.open(child.pid)
            stat, real = procfs.read_stat(child.pid), procfs.read_stat
            moving = stat._replace(start_stack=stat.start_stack + 64)
            under_way = [stat._replace(start_code=0, start_stack=0), moving._replace(start_code=0), moving]
            monkeypatch.setattr(procfs, "read_stat", lambda *of: under_way.pop(0) if under_way else real(*of))
            process = Process.open(child.pid)
            assert not under_way
            process.verify()
            settled.verify()
        finally:
            child.kill()


@pytest.fixture
def heeding_ctrl_c():
    """Have Ctrl-C raise here, though who runs the tests in the background may have had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_comes_after_the_stop():
    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        reached = False
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - where it comes is the point
            with process.stop():
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
                reached = True
            time.sleep(1)
        assert reached
        assert program.is_free()
        assert program.ask().startswith("ok")


def test_two_controllers_take_turns():
    with running("self_check") as program:
        program.line()
        code = f"""
from anyprobe.target.process.process import Process
process = Process.open({program.pid})
for _ in range(200):
    with process.stop(5) as stop, stop.remote() as remote:
        remote.syscall(39)
"""
        others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
        assert [other.wait(150) for other in others] == [0, 0]
        assert program.ask().startswith("ok")


def test_a_timeout_undoes_everything_and_names_the_thread(monkeypatch):
    from anyprobe.target.system import ptrace

    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        real = ptrace.interrupt
        skipped = []

        def forgetful(tid):
            if tid == max(process.threads()) and not skipped:
                skipped.append(tid)
                return
            real(tid)

        monkeypatch.setattr(ptrace, "interrupt", forgetful)
        with pytest.raises(StopTimeout, match=r"did not stop in time"), process.stop(1.0):
            pass
        assert skipped
        assert not process.unreleased
        assert program.is_free()
        with process.stop():
            pass
        assert program.ask().startswith("ok")


def _batch_area(remote, calls):
    """Map executable memory of ours in the target and put a batch there."""
    size = 65536
    area = remote.syscall(MMAP, 0, size, 5, 0x22, -1, 0)
    return area, size, batch_code(calls)


def test_a_thread_that_ends_as_time_runs_out_is_not_the_end_of_the_program():
    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        with pytest.raises(TargetError, match="vanished") as met:
            Stopper(process, 0)._give_up([(program.pid, 1 << 22)])
        assert not isinstance(met.value, TargetExited)
        process.close()


def test_a_batch_makes_many_calls_in_one_run():
    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        before = len(process.mappings())
        for round_ in range(50):
            with process.stop() as stop, stop.remote() as remote:
                free = remote.syscall(MMAP, 0, 1 << 20, 0, 0x22, -1, 0)
                remote.syscall(MUNMAP, free, 1 << 20)
                places = range(free, free + 40 * 8192, 8192)
                calls = [BatchedCall(MMAP, (at, 4096, 3, 0x100022, -1, 0), at) for at in places]
                area, size, code = _batch_area(remote, calls)
                process.mem.write(area, code)
                remote.run(calls, area)
                assert {m.start for m in process.mappings()} >= set(places)
                calls = [BatchedCall(MUNMAP, (at, 4096)) for at in places]
                process.mem.write(area, batch_code(calls))
                remote.run(calls, area)
                assert remote.syscall(GETPID) == program.pid
                assert remote.syscall(MUNMAP, area, size) == 0
            if round_ % 10 == 0:
                assert program.ask().startswith("ok")
        assert program.is_free()
        assert len(process.mappings()) == before
        assert program.ask().startswith("ok")


def test_a_batch_ends_at_the_first_call_that_fails():
    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        with process.stop() as stop, stop.remote() as remote:
            calls = [BatchedCall(GETPID, (), program.pid), BatchedCall(MUNMAP, (1, 4096)), BatchedCall(GETPID, (), 0)]
            area, size, code = _batch_area(remote, calls)
            process.mem.write(area, code)
            with pytest.raises(RemoteCallFailed) as failure:
                remote.run(calls, area)
            assert failure.value.errno == errno.EINVAL
            assert remote.syscall(MUNMAP, area, size) == 0
        assert program.ask().startswith("ok")


def _all_blocked(pid, tid):
    text = Path(f"/proc/{pid}/task/{tid}/status").read_text()
    return re.search(r"SigBlk:\s*fffffff", text) is not None


def test_a_batch_that_nobody_waits_for_leaves_by_itself(monkeypatch):
    """The controller is kept from running for longer than the code waits."""
    with running("self_check") as program:
        program.line()
        process = Process.open(program.pid)
        read_outcome = remote_module.read_outcome
        for _ in range(5):
            with process.stop() as stop, stop.remote() as remote:
                calls = [BatchedCall(GETPID, (), program.pid)]
                area, size, code = _batch_area(remote, calls)
                process.mem.write(area, code)

                def late(content):
                    outcome = read_outcome(content)
                    deadline = time.monotonic() + 2
                    tid = remote.thread.tid
                    while outcome.done and time.monotonic() < deadline and _all_blocked(process.pid, tid):
                        time.sleep(0.01)
                    return outcome

                monkeypatch.setattr(remote_module, "read_outcome", late)
                remote.run(calls, area)
                monkeypatch.setattr(remote_module, "read_outcome", read_outcome)
                assert remote.syscall(GETPID) == program.pid
                assert remote.syscall(MUNMAP, area, size) == 0
            assert program.ask().startswith("ok")
        assert program.is_free()


def test_who_waits_to_be_undisturbed_comes_next():
    """A thread that stops a program again and again would mostly have its turn again, and an execution wait long."""
    with running("self_check") as program:
        program.line()
        process, stops, over = Process.open(program.pid), [], threading.Event()

        def stop_often():
            while not over.is_set():
                with process.stop():
                    stops.append(None)

        thread = threading.Thread(target=stop_often)
        thread.start()
        try:
            for _ in range(20):
                wait_until(lambda: stops, "nothing is stopped")
                before = len(stops)
                with process.undisturbed():
                    assert len(stops) - before <= 2
        finally:
            over.set()
            thread.join(180)
            process.close()
