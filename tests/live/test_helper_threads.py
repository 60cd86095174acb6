"""Threads made for a moment: they share all but the descriptors, and leave nothing behind; thread pointers untold."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from anyprobe.core.errors import StopTimeout
from anyprobe.target.process import helper_thread
from anyprobe.target.process.helper_thread import ROOM
from anyprobe.target.process.process import Process
from anyprobe.target.process.thread_pointers import thread_pointers
from support.driver import wait_until
from support.image import Image

GETPID, GETTID, MMAP, MUNMAP, MEMFD_CREATE, SIGPROCMASK = 39, 186, 9, 11, 319, 14
PRIVATE_ANONYMOUS, READ_WRITE = 0x22, 3


@pytest.fixture
def running(run_target) -> Iterator[tuple[object, Process]]:
    """A program whose threads call functions all the time, opened."""
    target = run_target("live_arming.c", "4", "handler")
    target.run_freely()
    process = Process.open(target.pid)
    yield target, process
    process.close()
    target.halt()
    target.go(10)
    target.finish()


def threads_of(pid: int) -> set[str]:
    return set(os.listdir(f"/proc/{pid}/task"))


def opened(pid: int) -> list[str]:
    return [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]


def check(process: Process, calls: object) -> None:
    """A helper thread is a thread of the process with the same memory, and its descriptors are its own."""
    assert calls.syscall(GETPID) == process.pid
    assert calls.syscall(GETTID) == calls.thread.tid != process.pid
    before = opened(process.pid)
    fd = calls.syscall(MEMFD_CREATE, calls.place(b"helper-thread\0"), 1)
    assert "helper-thread" in os.readlink(f"/proc/{calls.thread.tid}/fd/{fd}")
    assert not any("helper-thread" in name for name in opened(process.pid))
    assert len(opened(process.pid)) == len(before)


def test_on_the_stack_of_one_that_waits(running):
    target, process = running
    for _ in range(5):
        with process.waiting_helper_thread() as calls:
            check(process, calls)
            tid = str(calls.thread.tid)
        wait_until(lambda tid=tid: tid not in threads_of(process.pid), "the helper thread has ended")
    target.check_alive()


def test_on_a_stack_of_its_own(running):
    """The thread that makes it goes on at once; the memory is no longer in use when it has ended."""
    target, process = running
    image = Image.of(process.pid)
    with process.borrow() as remote:
        low = remote.syscall(MMAP, 0, ROOM + 4096, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    for _ in range(5):
        with process.helper_thread(low + ROOM + 4096) as calls:
            check(process, calls)
            tid = str(calls.thread.tid)
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert "TracerPid:\t0" in status or tid != str(process.pid)
        assert tid not in threads_of(process.pid)
    with process.borrow() as remote:
        remote.syscall(MUNMAP, low, ROOM + 4096)
    image.assert_restored(process.pid)
    target.check_alive()


def test_one_that_job_control_has_stopped_has_not_ended(running, monkeypatch):
    """It is still to return through its frame, which so must stay."""
    target, process = running
    monkeypatch.setattr(helper_thread, "_PATIENCE", 0.3)
    with process.borrow() as remote:
        low = remote.syscall(MMAP, 0, ROOM + 4096, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    tids = []

    def interrupted() -> None:
        with process.helper_thread(low + ROOM + 4096) as calls:
            tids.append(str(calls.thread.tid))
            os.kill(process.pid, signal.SIGSTOP)
            wait_until(lambda: "\nState:\tT" in Path(f"/proc/{process.pid}/status").read_text(), "it is stopped")

    try:
        with pytest.raises(StopTimeout, match="does not end"):
            interrupted()
        assert tids[0] in threads_of(process.pid)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: tids[0] not in threads_of(process.pid), "the helper thread has ended")
    with process.borrow() as remote:
        remote.syscall(MUNMAP, low, ROOM + 4096)
    target.check_alive()


def test_thread_pointers_are_known_without_a_stop(running):
    _, process = running

    def agree() -> bool:
        """Whether no thread came or went between the two looks, and both saw the same."""
        told = thread_pointers(process)
        with process.stop() as stop:
            seen = {thread.registers.fs_base for thread in stop.threads}
            return told is not None and set(told) == seen

    wait_until(agree, "threads stay as they are for a moment")
