"""Splices of the kernel whose removal has to wait, for a task that is in a patch or for a kprobe on top."""

import errno
from types import SimpleNamespace

import pytest

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.kernel.splices.joints import Change, Joint, Numbered
from anyprobe.probes.providers.kernel.splices.late import Late
from anyprobe.probes.providers.kernel.splices.patch_memory import Piece
from anyprobe.probes.providers.kernel.splices.splicing import Splices
from anyprobe.probes.providers.kernel.splices.wanted import Tag
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.target.kernel.driver.device import TRIES, BatchRefused
from anyprobe.target.kernel.driver.layout import Verdict, Write

SITE = 0xFFFF_FFFF_8100_0000
ROUTINE = Piece(1 << 20, 2 << 20)


class BusyDriver:
    """A driver that refuses batches as told, and keeps the writes of the others."""

    def __init__(self, *verdicts):
        self.verdicts, self.tries, self.written = [*verdicts], [], []

    def apply(self, writes, fixups=(), *, tries):
        self.tries.append(tries)
        verdict = self.verdicts.pop(0) if self.verdicts else None
        if verdict is not None:
            raise BatchRefused(errno.EAGAIN, verdict, None if verdict is Verdict.BUSY else writes[0])
        self.written += [write.new for write in writes]


class FakeJoints:
    """One place with some wants; each drop makes another patch."""

    def __init__(self, *wants):
        self.there, self.asked, self.discarded, self.left = {*wants}, [], [], []
        self.memory = SimpleNamespace(leave=self.left.extend)

    def drop(self, site, wants):
        if self.there.isdisjoint(wants):
            return None
        self.asked.append([*wants])
        after = Joint(None, SimpleNamespace(wants=self.there.difference(wants)), {}, b"", b"", ROUTINE)
        return Change(Write(site, b"jump", f"left{len(self.asked)}".encode()), after=after)

    def has(self, site, wants):
        return not self.there.isdisjoint(wants)

    def commit(self, changes):
        for each in changes:
            self.there = each.after.splice.wants

    def discard(self, change):
        self.discarded.append(change.write.new)


@pytest.fixture
def want():
    return Want(SITE, WantKind.OFFSET, tag=Tag(0))


def shared_by(driver, *wants):
    """Return splices with one site, whose patch others share."""
    splices = Splices.__new__(Splices)
    joints = FakeJoints(*wants)
    shared = SimpleNamespace(joints=joints, late=Late(driver, joints))
    vars(splices).update(
        _driver=driver, _shared=shared, _sites=[SimpleNamespace(function=None)],
        _in_force=[Numbered(Change(Write(SITE, b"text", b"jump")), wants[:1])], _open={0}, _counted=[0],
        _counters=SimpleNamespace(read=lambda numbers: [7 for _ in numbers]), _lost=None, _missed=[0],
        _routines={1: (None, ROUTINE)},
    )  # fmt: skip
    splices._parts = lambda changes: iter([[*changes]])
    return splices, joints


def test_what_a_task_is_in_is_taken_out_when_it_has_left(want):
    driver = BusyDriver(Verdict.BUSY, Verdict.BUSY, Verdict.KPROBE)
    splices, joints = shared_by(driver, want)
    splices.remove([0])
    assert splices.late() == {0}
    for _ in range(2):
        assert splices.counts(range(1)) == [7]
        assert (driver.written, splices.late(), joints.left) == ([], {0}, []), "the handler still runs"
    assert splices.counts(range(1)) == [7]
    assert driver.written == [b"left1"], "the patch that was made is used"
    assert driver.tries == [TRIES, 1, 1, 1]
    assert (splices.late(), joints.left) == ((), [ROUTINE])
    splices.counts(range(1))
    assert len(driver.tries) == 4


def test_a_look_at_other_splices_is_one_as_well(want):
    driver = BusyDriver(Verdict.BUSY)
    splices, _ = shared_by(driver, want)
    splices.remove([0])
    splices._shared.late.try_again()
    assert driver.written == [b"left1"]


@pytest.mark.parametrize("again", [Verdict.BUSY, None])
def test_what_others_have_changed_meanwhile_is_taken_out_of_what_is_there_now(want, again):
    driver = BusyDriver(Verdict.BUSY, Verdict.OLD_BYTES, again)
    splices, joints = shared_by(driver, want)
    splices.remove([0])
    splices.counts(range(1))
    assert (joints.asked, joints.discarded) == ([[want], [want]], [b"left1"])
    splices.counts(range(1))
    assert driver.written == [b"left2"]
    assert splices.late() == ()


def test_two_that_wait_at_one_place_go_together(want):
    other = Want(SITE, WantKind.OFFSET, tag=Tag(1))
    driver = BusyDriver()
    late = shared_by(driver, want, other)[0]._shared.late
    for each in (want, other):
        late.add(Numbered(late.joints.drop(SITE, [each]), (each,)), Refusal(Reason.TASK_INSIDE, SITE, ""))
    assert late.wants == {want, other}
    late.try_again()
    assert late.joints.discarded == [b"left1", b"left2"]
    assert (driver.written, late.joints.there, late.wants) == ([b"left3"], set(), set())


def test_what_is_changed_by_others_for_good_is_left_to_the_driver(want):
    driver = BusyDriver(Verdict.OLD_BYTES)
    splices, joints = shared_by(driver, want)
    splices.remove([0])
    assert (joints.discarded, splices.late(), joints.left) == ([b"left1"], (), []), "its routine stays"
