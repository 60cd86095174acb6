"""What the kernel does not do: one clear line for each, and nothing is left."""

import os
import resource
import subprocess

import pytest

import anyprobe
from anyprobe.target.kernel import btf, switches, tracefs
from support.in_kernel import held, in_child, left_behind

FUNCTION = "__x64_sys_getppid"
TYPES = "/sys/kernel/btf/vmlinux"


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = held()
    yield
    assert not left_behind(before)


def told(work):
    """Return the error that something meets with in a child, which has one line."""
    answer = in_child(work)
    assert "untyped" not in answer, answer
    error = answer.get("error", "")
    assert "\n" not in error
    return error


def refused(session):
    """Return the one refusal of a session, which has one line."""
    ((_, why),) = session.refused
    assert "\n" not in str(why)
    return why


def test_ordinary_user():
    switches.lockdown()  # imported before: another user may not be able to read modules of Python
    open_session = anyprobe.kernel

    def work():
        os.setgid(65534)
        os.setuid(65534)
        open_session()

    assert told(work).startswith("PermissionDenied: the kernel takes no probes from this user (bpf(2)); be root")


# a program, an event or a link is one too many
@pytest.mark.parametrize("most", [60, *(pytest.param(each, marks=pytest.mark.thorough) for each in (58, 59))])
def test_more_places_than_files_may_be_open(most):
    def work():
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, most))
        with anyprobe.kernel() as session:
            session.count(*[f"kprobe:{FUNCTION}"] * 40)

    assert f"this process may have {most} open files; ask for fewer places, or raise RLIMIT_NOFILE" in told(work)


def test_soft_limit_on_files_is_raised():
    def work():
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 400))
        with anyprobe.kernel() as session:
            session.count(*[f"kprobe:{FUNCTION}"] * 30)
            assert not session.refused
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (400, 400)

    assert told(work) == ""


def test_kernel_without_types():
    subprocess.run(["mount", "--bind", "/dev/null", TYPES], check=True)
    try:

        def demanded():
            btf.running.cache_clear()
            with anyprobe.kernel() as session:
                session.count(f"fentry:{FUNCTION}")
                why = refused(session)
                assert why.reason is anyprobe.Reason.KERNEL_REFUSES
                assert "fentry: the types of vmlinux are no BTF" in why.detail, why.detail

        def another():
            btf.running.cache_clear()
            with anyprobe.kernel() as session:
                (probe,) = session.count(f"kernel::{FUNCTION}:entry")
                assert not session.refused
                assert probe.mechanisms != ["fentry"]

        def handler():
            btf.running.cache_clear()
            with anyprobe.kernel() as session:

                @session.entry("kernel::vfs_read")
                def entered(ctx, count):
                    pass

        assert told(demanded) == ""
        assert told(another) == ""
        assert "HandlerError" in in_child(handler)["error"]
    finally:
        subprocess.run(["umount", TYPES], check=True)


def test_unknown_function_has_the_nearest_names():
    with anyprobe.kernel() as session:
        with pytest.raises(anyprobe.SpecError) as caught:
            session.count("kernel::vfs_raed:entry")
        assert "it may be inlined" in str(caught.value)
        assert "vfs_read" in str(caught.value)
        with pytest.raises(anyprobe.SpecError, match="vfs_read is in vmlinux"):
            session.count("kernel:overlay:vfs_read:entry")
        with pytest.raises(anyprobe.SpecError, match="no such module is loaded"):
            session.count("kernel:no_such_module:*:entry")
        with pytest.raises(anyprobe.SpecError, match="no tracepoint of this category"):
            session.count("tracepoint:sched:sched_swich")


def test_places_that_there_are_not():
    with anyprobe.kernel() as session:
        with pytest.raises(anyprobe.SpecError, match="has no more than"):
            session.count(f"kernel::{FUNCTION}:0x1000")
        for offset in range(1, 12):
            session.count(f"kernel::{FUNCTION}:{offset:#x}")
        reasons = [why.reason for _, why in session.refused]
        assert anyprobe.Reason.NOT_A_BOUNDARY in reasons
        assert all("\n" not in str(why) for _, why in session.refused)


def test_blacklisted_function():
    name = next(name for _, _, name in tracefs.blacklist() if name.startswith("exc_"))
    with anyprobe.kernel() as session:
        session.count(f"kprobe:{name}")
        why = refused(session)
        assert why.reason is anyprobe.Reason.KPROBE_BLACKLIST
        assert f"kprobes may not be set in {name}" in why.detail


def test_tracepoint_that_there_is_not_in_the_kernel():
    with anyprobe.kernel() as session:
        session.count("rawtracepoint:sched_swich")
        detail = refused(session).detail
    assert detail.startswith("no tracepoint of the kernel has this name; nearest: sched_switch, ")
    assert "ENOENT" in detail


def test_mechanism_that_is_not_for_this():
    with anyprobe.kernel() as session:
        with pytest.raises(anyprobe.SpecError, match="kprobe is not for this; possible: perf_event"):
            session.count("interval:s:1", mechanism="kprobe")
        with pytest.raises(anyprobe.SpecError, match="fentry is not for this; possible: kprobe"):
            session.count(f"kernel::{FUNCTION}:0x10", mechanism="fentry")
