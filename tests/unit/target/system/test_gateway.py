"""Fault plans."""

import errno
import os

import pytest

from anyprobe.target.system import gateway
from anyprobe.target.system.gateway import FaultPlan, faults


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("kill-before:17", FaultPlan("kill-before", 17)),
        ("kill-after:1", FaultPlan("kill-after", 1)),
        ("fail:3:ESRCH", FaultPlan("fail", 3, errno.ESRCH)),
        ("fail:3:5", FaultPlan("fail", 3, 5)),
        ("short:2", FaultPlan("short", 2)),
    ],
)
def test_plans_are_read(text, plan):
    assert FaultPlan.parse(text) == plan


@pytest.mark.parametrize("text", ["", "kill", "kill-before:", "fall:1", "short:x"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="not a fault"):
        FaultPlan.parse(text)


def test_the_planned_call_fails_and_no_other(tmp_path):
    (tmp_path / "x").write_bytes(b"12345678")
    fd = os.open(tmp_path / "x", os.O_RDWR)
    faults.install(FaultPlan("fail", 2, errno.EIO))
    try:
        assert gateway.pread(fd, 8, 0) == b"12345678"
        with pytest.raises(OSError, match="Input/output"):
            gateway.pread(fd, 8, 0)
        assert gateway.pread(fd, 8, 0) == b"12345678"
        assert faults.calls == 3
        assert faults.reached
        faults.install(FaultPlan("short", 1))
        assert gateway.pwrite(fd, b"abcdefgh", 0) == 4
    finally:
        faults.clear()
        os.close(fd)
    assert gateway.pread is os.pread
