"""Splices of the kernel whose removal has to wait for a task that is in a patch."""

import errno
from types import SimpleNamespace

import pytest

from anyprobe.probes.providers.kernel.splices.joints import Change, Numbered
from anyprobe.probes.providers.kernel.splices.splicing import Splices
from anyprobe.probes.providers.kernel.splices.wanted import Tag
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.target.kernel.driver.device import TRIES, BatchRefused
from anyprobe.target.kernel.driver.layout import Verdict, Write

SITE = 0xFFFF_FFFF_8100_0000
WANT = Want(SITE, WantKind.OFFSET, tag=Tag(0))


class BusyDriver:
    """A driver that refuses batches as told, and keeps the writes of the others."""

    is_open = True

    def __init__(self, *verdicts):
        self.verdicts, self.tries, self.written = [*verdicts], [], []

    def apply(self, writes, fixups=(), *, tries):
        self.tries.append(tries)
        verdict = self.verdicts.pop(0) if self.verdicts else None
        if verdict is not None:
            raise BatchRefused(errno.EAGAIN, verdict, None if verdict is Verdict.BUSY else writes[0])
        self.written += writes


def shared_by(driver):
    """Return splices with one site, whose patch others share, and what the joint is asked for."""
    asked = []

    def drop(site, wants):
        asked.append([*wants])
        return Change(Write(site, b"jump", f"left{len(asked)}".encode()))

    splices = Splices.__new__(Splices)
    joints = SimpleNamespace(drop=drop, commit=lambda change: None, leaving=set())
    vars(splices).update(
        _driver=driver, _shared=SimpleNamespace(joints=joints), _sites=[SimpleNamespace(function=None)],
        _in_force=[Numbered(Change(Write(SITE, b"text", b"jump")), (WANT,))], _late={}, _open={0}, _counted=[0],
        _counters=SimpleNamespace(read=lambda numbers: [7 for _ in numbers]), _lost=None, _missed=[0],
    )  # fmt: skip
    splices._parts = lambda changes: iter([[*changes]])
    return splices, asked


def test_what_a_task_is_in_is_taken_out_when_it_has_left():
    driver = BusyDriver(Verdict.BUSY, Verdict.BUSY, Verdict.BUSY)
    splices, asked = shared_by(driver)
    splices.remove([0])
    assert splices.counts(range(1)) == [7]
    assert driver.written == []
    assert splices._shared.joints.leaving == {WANT}
    assert splices._driver is driver, "the handler still runs"
    assert splices.counts(range(1)) == [7]
    assert [write.new for write in driver.written] == [b"left1"]
    assert driver.tries == [TRIES, 1, 1, 1]
    assert asked == [[WANT]], "the patch that was made is used"
    assert splices._shared.joints.leaving == set()
    assert splices._driver is None


@pytest.mark.parametrize("again", [Verdict.BUSY, None])
def test_what_others_have_changed_meanwhile_is_taken_out_of_what_is_there_now(again):
    driver = BusyDriver(Verdict.BUSY, Verdict.BUSY, Verdict.OLD_BYTES, again)
    splices, asked = shared_by(driver)
    splices.remove([0])
    splices.counts(range(1))
    assert asked == [[WANT], [WANT]]
    assert splices.counts(range(1)) == [7]
    assert driver.written
    assert splices._driver is None
