"""The façade of kprobes on the guest's kernel: the kernel's structures, meanings and error numbers."""

import errno
import os
import subprocess
import time

import pytest

import anyprobe
from anyprobe import Count, Sum, cstr, i32, i64, printf
from anyprobe.kprobes import (
    KPROBE_FLAG_DISABLED,
    Djprobe,
    Jprobe,
    Kprobe,
    Kretprobe,
    current,
    debugfs,
    disable_kprobe,
    dmesg,
    enable_kprobe,
    register_djprobe,
    register_jprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    regs_return_value,
    unregister_kprobe,
    unregister_kretprobe,
)
from anyprobe.target.kernel import kprobelist, symbols, tracefs
from support.in_kernel import writes_of

SIZE, TIMES = 777, 50


@pytest.fixture
def session():
    with anyprobe.kernel() as opened:
        yield opened


@pytest.fixture
def write():
    with writes_of(SIZE, TIMES) as run:
        yield run


def test_handlers_before_and_behind_an_instruction(session, write):
    before, after = Count("before", by=("pid",)), Count("behind", by=("pid",))

    def pre(p, regs):
        if regs.dx == SIZE:
            before.add(key=(current.tgid,))
        return 0

    def post(p, regs, flags):
        after.add(key=(current.tgid,))

    kp = Kprobe(symbol_name="vfs_write", pre_handler=pre, post_handler=post)
    assert register_kprobe(kp) == 0, kp.error
    assert kp.addr == symbols.running().named("vfs_write")[0].address
    write()
    pid = (os.getpid(),)
    assert session.collection.numbers(before)[pid].count == TIMES
    assert session.collection.numbers(after)[pid].count >= TIMES
    assert kp.hits >= TIMES
    assert kp.nmissed == 0
    (line,) = debugfs.listing()
    assert (line.kind, line.symbol, line.module) == ("k", "vfs_write", "")
    assert "FTRACE" in line.flags
    hits = kp.hits
    assert disable_kprobe(kp) == 0
    assert kp.flags & KPROBE_FLAG_DISABLED
    assert "DISABLED" in debugfs.listing()[0].flags
    write()
    assert kp.hits == hits
    assert enable_kprobe(kp) == 0
    write()
    assert kp.hits >= hits + TIMES
    unregister_kprobe(kp)
    assert kp.hits >= hits + TIMES
    assert kp.addr is None
    assert not [each for each in kprobelist.kprobes() if each.symbol == "vfs_write"]


@pytest.mark.thorough
def test_no_handler_before_an_instruction_runs_without_the_one_behind_it(session, system_calls):
    before, after = Count("before"), Count("behind")

    def pre(p, regs):
        before.add()
        return 0

    def post(p, regs, flags):
        after.add()

    def counts():
        return [session.collection.numbers(each)[()].count for each in (before, after)]

    threads, times = 2, 3
    under_way = threads * times  # threads that are at the instruction while the probes go
    with subprocess.Popen([system_calls, "110", str(1 << 40), str(threads)]) as calling:
        kp = Kprobe(symbol_name="__x64_sys_getppid", pre_handler=pre, post_handler=post)
        try:
            assert register_kprobe(kp) == 0, kp.error
            for _ in range(times):
                hits = kp.hits
                while kp.hits < hits + 100:
                    time.sleep(0.01)
                disable_kprobe(kp)
                assert counts()[0] <= counts()[1] + under_way
                enable_kprobe(kp)
        finally:
            calling.kill()
    unregister_kprobe(kp)
    earlier, later = counts()
    assert 300 <= earlier <= later + under_way


@pytest.mark.thorough
def test_a_call_has_data_of_its_own(session, write):
    difference, calls = Sum("difference"), Count("calls", by=("pid",))

    def entered(ri, regs):
        ri.data.size = regs.dx
        return 0

    def left(ri, regs):
        if ri.data.size == SIZE:
            calls.add(key=(ri.task.tgid,))
            difference.add(i64(regs_return_value(regs)) - SIZE)

    rp = Kretprobe(kp=Kprobe(symbol_name="vfs_write"), handler=left, entry_handler=entered)
    assert register_kretprobe(rp) == 0, rp.kp.error
    write()
    assert session.collection.numbers(calls)[os.getpid(),].count == TIMES
    assert session.collection.numbers(difference)[()].sum == 0
    assert rp.nmissed == 0
    unregister_kretprobe(rp)
    assert rp.kp.hits >= TIMES


@pytest.mark.thorough
def test_maxactive_bounds_the_calls_that_are_followed_and_the_others_are_missed(session):
    followed = Count("followed")

    def left(ri, regs):
        followed.add()

    rp = Kretprobe(kp=Kprobe(symbol_name="do_nanosleep"), handler=left, maxactive=1)
    assert register_kretprobe(rp) == 0, rp.kp.error
    sleepers = [subprocess.Popen(["sleep", "1"]) for _ in range(3)]
    assert [each.wait() for each in sleepers] == [0, 0, 0]
    seen = session.collection.numbers(followed)[()].count
    assert seen >= 1
    assert rp.nmissed >= 1
    assert seen + rp.nmissed >= 3
    assert rp.kp.hits == seen


@pytest.mark.thorough
def test_jprobe_has_the_functions_parameters(session, tmp_path):
    def opened(dfd, filename):
        printf(f"{current.comm} {i32(dfd)} {cstr(filename, 100)}")

    jp = Jprobe(kp=Kprobe(symbol_name="do_sys_openat2"), entry=opened)
    assert register_jprobe(jp) == 0, jp.kp.error
    (tmp_path / "found").write_text("")
    lines = dmesg()
    assert any(line.endswith(f" -100 {tmp_path}/found") for line in lines), lines
    assert debugfs.listing()[0].kind == "j"


def blacklisted():
    return next(each[2] for each in tracefs.blacklist() if each[2] == "do_int3" or each[2].startswith("exc_"))


def test_what_the_kernel_forbids_has_its_error_numbers(session):
    def sets(p, regs):
        regs.di = 4
        return 0

    def sends_away(p, regs):
        regs.ip = 4
        return 1

    def faulted(p, regs, trapnr):
        return 0

    def bad(number, text, register=register_kprobe, **fields):
        probe = Kprobe(**fields)
        assert register(probe) == -number, probe.error
        assert text in probe.error
        assert probe.registration is None

    bad(errno.EACCES, "sets sets regs.di", symbol_name="vfs_write", pre_handler=sets)
    bad(errno.EACCES, "sends_away sets regs.ip", symbol_name="vfs_write", pre_handler=sends_away)
    bad(errno.EOPNOTSUPP, "fault handlers", symbol_name="vfs_write", fault_handler=faulted)
    bad(errno.ENOENT, "vfs_write", symbol_name="vfs_wriet")
    bad(errno.EINVAL, "exactly one", symbol_name="vfs_write", addr=5)
    bad(errno.EINVAL, "in no function", addr=0x1000)
    bad(errno.EINVAL, "may not be set", symbol_name=blacklisted())
    bad(errno.EILSEQ, "no instruction", symbol_name="vfs_write", offset=6)
    assert register_djprobe(Djprobe(addr=5, size=5)) == -errno.EOPNOTSUPP
    rp = Kretprobe(kp=Kprobe(symbol_name="vfs_write"), handler=lambda ri, regs: None, maxactive=5000)
    assert register_kretprobe(rp) == -errno.E2BIG
    kp = Kprobe(symbol_name="vfs_write")
    assert register_kprobes([kp, Kprobe(symbol_name=blacklisted())]) == -errno.EINVAL
    assert kp.registration is None
    assert not session.probes
    assert not kprobelist.kprobes()


def test_strict_sessions_raise():
    with anyprobe.kernel(strict=True) as session:
        kp = Kprobe(symbol_name="__x64_sys_getppid")
        register_kprobe(kp, session=session)
        with pytest.raises(anyprobe.KprobeError, match="EINVAL: it is registered already"):
            register_kprobe(kp)
        os.getppid()
    assert kp.hits >= 1
