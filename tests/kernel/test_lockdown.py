"""A kernel that is locked down (``lockdown=confidentiality``): what works still does, the rest says why not."""

import os
import re
import subprocess

import pytest

import anyprobe
from anyprobe import Count
from anyprobe.target.kernel import switches
from support.in_kernel import held, left_behind

SECURITY = "/sys/kernel/security"
if not os.path.ismount(SECURITY) and os.environ.get("ANYPROBE_GUEST"):
    subprocess.run(["mount", "-t", "securityfs", "securityfs", SECURITY], check=False)
pytestmark = pytest.mark.skipif(switches.lockdown() != "confidentiality", reason="this kernel is not locked down")
WHY = "the kernel is locked down (confidentiality); boot without lockdown= and secure boot"
FUNCTION = "__x64_sys_getppid"


@pytest.mark.parametrize("spec", [f"kernel::{FUNCTION}:entry", f"kernel::{FUNCTION}:return", "syscall::getppid:entry"])
def test_functions_are_counted_by_their_types(spec):
    with anyprobe.kernel() as session:
        session.count(spec)
        assert not session.refused
        os.getppid()
        assert next(iter(session.snapshot().sites)).hits >= 1


def test_kprobes_are_refused():
    before = held()
    with anyprobe.kernel() as session:
        session.count(f"kprobe:{FUNCTION}")
        ((_, why),) = session.refused
        assert WHY in why.detail
        assert "\n" not in why.detail
    assert not left_behind(before)


def test_tracefs_is_not_there():
    with anyprobe.kernel() as session:
        with pytest.raises(anyprobe.TargetError) as caught:
            session.count("tracepoint:sched:sched_switch")
        assert str(caught.value) == f"tracefs cannot be read; {WHY}"
        session.count("rawtracepoint:sched_switch")
        assert not session.refused


def test_handlers_do_not_read_the_kernels_memory():
    flagged = Count("flagged")
    why = f"programs may not read the kernel's memory: {WHY}"
    with anyprobe.kernel() as session, pytest.raises(anyprobe.HandlerError, match=re.escape(why)):

        @session.entry("kernel::vfs_read")
        def reading(ctx, file):
            if file.f_flags > 0:
                flagged.add()
