"""Ways around what a kernel does not have: links of events, and kprobes of perf."""

import errno
import os
import signal
import subprocess

import pytest

import anyprobe
from anyprobe.target.system import gateway
from support.in_kernel import EVENTS, held, in_child, left_behind

FUNCTION, NUMBER, COUNT = "__x64_sys_getppid", 110, 10_000
CREATE_LINK, DEVICE = 28, "/sys/devices/kprobe"


@pytest.fixture
def calls(system_calls):
    return lambda: subprocess.run([system_calls, str(NUMBER), str(COUNT), "2"], check=True)


@pytest.fixture
def kernel_without_links(monkeypatch):
    make = gateway.bpf

    def refuse(command, *rest):
        if command == CREATE_LINK:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return make(command, *rest)

    monkeypatch.setattr(gateway, "bpf", refuse)


@pytest.fixture
def kernel_whose_perf_has_no_kprobes():
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", DEVICE], check=True)
    yield
    subprocess.run(["umount", DEVICE], check=True)


@pytest.mark.usefixtures("kernel_without_links")
def test_programs_are_attached_to_the_events_themselves(calls):
    before = held()
    with anyprobe.kernel() as session:
        session.count(f"kprobe:{FUNCTION}", f"kretprobe:{FUNCTION}", "software:page-faults:1")
        session.count("syscall::getppid:entry", mechanism="tracepoint")
        assert not session.refused
        calls()
        *sites, faults, event = session.snapshot().sites
        assert [site.hits for site in (*sites, event)] == [2 * COUNT] * 3
        assert faults.hits > 0
        assert all("does not tell what it misses" in site.notes[0] for site in (*sites, event))
    assert not left_behind(before)


@pytest.mark.usefixtures("kernel_whose_perf_has_no_kprobes")
def test_kprobes_by_tracefs(calls):
    before = held()
    with anyprobe.kernel() as session:
        session.count(f"kprobe:{FUNCTION}", f"kretprobe:{FUNCTION}", "kprobe:vfs_read")
        assert not session.refused
        calls()
        entry, ret, _ = session.snapshot().sites
        assert (entry.hits, ret.hits) == (2 * COUNT, 2 * COUNT)
        assert EVENTS[0].read_text().count("anyprobe_") == 3
        session.count("kprobe:do_int3")
        assert session.refused
    assert not left_behind(before)


@pytest.mark.usefixtures("kernel_whose_perf_has_no_kprobes")
def test_definitions_of_a_killed_process_are_removed_by_the_next():
    before = held()

    def work():
        with anyprobe.kernel() as session:
            session.count(f"kprobe:{FUNCTION}")
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work)["status"] == signal.SIGKILL
    with anyprobe.kernel() as session:
        session.count("kprobe:vfs_read")
        assert EVENTS[0].read_text().count("anyprobe_") == 1
    assert not left_behind(before)
