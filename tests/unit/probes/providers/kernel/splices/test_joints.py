"""Several handlers at one place of a kernel: patches and writes as they come and go."""

import pytest

from anyprobe.isa.decode import decode_range
from anyprobe.probes.providers.kernel.splices.joints import Change, Joints
from anyprobe.splice.kernel import planning
from anyprobe.splice.kernel.patches import PatchMaker, count
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind
from support.builder import Builder
from support.small_kernel import SmallKernel

PATCHES = 0xFFFF_FFFF_C000_0000
BODY = "push rbx\n mov rbx, rdi\n push rbp\n mov ecx, 1\n mov edx, 2\n pop rbp\n pop rbx\n ret"
FIRST, SECOND = 0x1F000, 0x1F008


class Placed:
    """A small kernel, and patches where they were written."""

    def __init__(self, kernel):
        self.kernel, self.patches, self.end = kernel, {}, PATCHES
        read = kernel.source.memory.read
        self.maker = PatchMaker(lambda low, high: read(low, high - low), (), lambda _: Clobbers(flags=True))
        self.joints = Joints({}, self.reserve, self.patches.__setitem__)

    def reserve(self, size):
        at, self.end = self.end, self.end + size
        return at

    def add(self, address, counter):
        """Have a counter come in force at an instruction; return what was wanted and the change."""
        want = Want(address, WantKind.OFFSET)
        ((splice,), refused) = planning.plan(self.kernel.map, [want], Claims())
        assert not refused
        actions = {each: (count(counter),) for each in splice.wants}
        at = self.reserve(256)
        patch = self.maker.make(splice, at, lambda each: actions[each])
        self.patches[at] = patch.code
        change = self.joints.add(self.maker, splice, actions, patch)
        assert isinstance(change, Change)
        self.joints.commit(change)
        return want, change

    def counters(self, change):
        """Return what is counted where a write leads."""
        at = decode_range(change.write.new, change.write.address)[0].target
        insns = decode_range(self.patches[at], at)
        return [insn.text.rpartition("0x")[2][:-1] for insn in insns if insn.text.startswith("inc")]


@pytest.fixture
def placed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Placed(SmallKernel.made(Builder(tmp_path), ("it", BODY), ("next", "ret\n .balign 32")))


def test_a_second_one_has_both_counted_by_one_write_over_the_first(placed):
    start = placed.kernel["it"].start
    _, first = placed.add(start, FIRST)
    _, second = placed.add(start, SECOND)
    assert placed.counters(first) == ["1f000"]
    assert placed.counters(second) == ["1f000", "1f008"]
    assert (second.write.old, second.write.boundaries) == (first.write.new, ())
    assert second.write.address == first.write.address


def test_one_that_is_removed_and_waits_for_a_task_is_not_in_the_next_patch(placed):
    """It is placed again meanwhile, by another want: each hit is one of them."""
    start = placed.kernel["it"].start
    mine, first = placed.add(start, FIRST)
    placed.joints.leaving.add(mine)
    again, second = placed.add(start, FIRST)
    assert placed.counters(second) == ["1f000"]
    _, third = placed.add(start, SECOND)
    assert placed.counters(third) == ["1f000", "1f008"]
    assert placed.joints.drop(first.write.address, [mine]) is None
    assert placed.counters(placed.joints.drop(first.write.address, [again])) == ["1f008"]


def test_what_is_left_when_one_goes_counts_on(placed):
    start = placed.kernel["it"].start
    mine, first = placed.add(start, FIRST)
    theirs, second = placed.add(start, SECOND)
    left = placed.joints.drop(first.write.address, [mine])
    assert placed.counters(left) == ["1f008"]
    assert left.write.old == second.write.new
    placed.joints.commit(left)
    last = placed.joints.drop(first.write.address, [theirs])
    assert (last.write.old, last.write.new) == (left.write.new, first.write.old)
    placed.joints.commit(last)
    assert placed.joints.at == {}


def test_nothing_changes_where_nothing_of_it_is(placed):
    start = placed.kernel["it"].start
    _, first = placed.add(start, FIRST)
    assert placed.joints.drop(first.write.address, [Want(start, WantKind.OFFSET)]) is None
    assert placed.joints.drop(first.write.address + 1, []) is None


def test_another_range_of_the_same_bytes_is_a_write_of_its_own(placed):
    start = placed.kernel["it"].start
    placed.add(start, FIRST)
    _, other = placed.add(start + 1, SECOND)
    assert other.write.address == placed.kernel.at("it") + 1  # which the driver refuses as an overlap
    assert placed.counters(other) == ["1f008"]
