"""Probes that are jumps: where the original could not have one, and where we can."""

import errno

import pytest

from anyprobe import Count
from anyprobe.kprobes import (
    KPROBE_FLAG_OPTIMIZED,
    Djprobe,
    Kprobe,
    Kretprobe,
    debugfs,
    register_djprobe,
    register_djprobes,
    register_kprobe,
    register_kretprobe,
    unregister_djprobe,
    unregister_djprobes,
)

pytestmark = pytest.mark.live


@pytest.fixture
def shapes(session):
    (site,), _ = session.resolve("a.out:shapes")
    return site.address


def test_a_djprobe_is_a_jump_and_sees_registers(target, session, shapes):
    seen = Count("seen", by=("n",))

    def handler(djp, regs):
        seen[regs.di].add()

    djp = Djprobe(handler=handler)
    assert register_djprobe(djp, shapes, 7) == 0
    assert djp.kp.flags & KPROBE_FLAG_OPTIMIZED
    target.go(2)
    assert {key: cell.count for key, cell in seen.result().entries.items()} == {(0,): 2, (3,): 2}
    unregister_djprobe(djp)
    target.go(1)
    target.finish()
    assert seen.result().entries[3,].count == 2


def test_several_at_one_address_and_within_each_others_bytes(target, session, shapes):
    probes = [Djprobe(shapes + offset) for offset in (0, 0, 4, 7, 10)]
    assert register_djprobes(probes) == 0
    target.go(3)
    assert [djp.kp.hits for djp in probes] == [6] * 5
    unregister_djprobes(probes)
    target.go(1)
    target.finish()


def test_the_original_refuses_what_overlaps(target, session, shapes):
    assert register_djprobe(Djprobe(), shapes, 7, strict_djprobe=True) == 0
    assert register_djprobe(Djprobe(), shapes + 4, 6, strict_djprobe=True) == -errno.EEXIST
    assert register_djprobe(Djprobe(), shapes, 7, strict_djprobe=True) == 0
    target.go(1)
    target.finish()


@pytest.mark.parametrize(
    ("offset", "size", "number", "said"),
    [
        (1, 7, errno.EILSEQ, "assumption i:"),
        (0x18, 7, errno.EINVAL, "assumption ii:"),
        (7, 5, errno.EINVAL, "assumption ii:"),
        (0x11, 5, errno.EINVAL, "assumption iii:"),
        (0, 5, errno.EINVAL, "no whole instructions"),
        (0, 4, errno.EINVAL, "takes 5 bytes"),
    ],
)
def test_what_the_original_refuses_by_its_assumptions(target, session, shapes, offset, size, number, said):
    djp = Djprobe()
    assert register_djprobe(djp, shapes + offset, size, strict_djprobe=True) == -number
    assert said in djp.kp.error
    target.go(1)
    target.finish()


def test_a_jump_into_the_jtpr_is_assumption_iv(target, session):
    (site,), _ = session.resolve("a.out:chosen")
    djp = Djprobe()
    # the branch at +b leads to +11, which is in the JTPR of +d
    assert register_djprobe(djp, site.address + 0xD, 8, strict_djprobe=True) == -errno.EINVAL
    assert "assumption iv" in djp.kp.error
    assert register_djprobe(djp, site.address + 0xD) == 0
    target.go(1)
    assert djp.kp.hits == 99
    target.finish()


def test_insertion_and_removal_under_load_lose_nothing(target, session):
    (site,), _ = session.resolve("a.out:stepped")
    kept, others = Djprobe(site.address), [Djprobe(site.address) for _ in range(3)]
    assert register_djprobe(kept) == 0
    target.run_freely()
    for _ in range(10):
        assert register_djprobes(others) == 0
        unregister_djprobes(others)
    counts = target.halt()
    assert kept.kp.hits == counts.calls["stepped"]
    target.finish()


def test_without_optimization_there_is_none(session, shapes):
    debugfs.set_optimization(False)
    assert register_djprobe(Djprobe(), shapes, 7) == -errno.EINVAL


@pytest.mark.parametrize(
    ("offset", "size", "why"),
    [(1, 0, "assumption i:"), (0, 3, "a jump takes 5 bytes, not 3"), (0, 6, "6 bytes are no whole instructions")],
)
def test_what_is_refused_says_why(session, shapes, offset, size, why):
    djp = Djprobe()
    assert register_djprobe(djp, shapes + offset, size) < 0
    assert djp.error.startswith(why)
    assert register_djprobe(djp, shapes, 7) == 0
    assert djp.error == ""


@pytest.mark.parametrize("kind", ["kprobe", "kretprobe", "djprobe"])
def test_a_program_that_has_ended_is_why(target, session, shapes, kind):
    target.finish()
    place = Kprobe(addr=shapes)
    probe, register = {
        "kprobe": (place, register_kprobe),
        "kretprobe": (Kretprobe(kp=place), register_kretprobe),
        "djprobe": (Djprobe(shapes), register_djprobe),
    }[kind]
    assert register(probe) == -errno.ESRCH
    assert str(target.pid) in getattr(probe, "kp", probe).error
