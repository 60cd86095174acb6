"""Threads that throw and are interrupted, while probes in them and their runtime come and go; the torture has more."""

import pytest

import anyprobe
from live.image import Image
from live.results import hits
from live.thrown_in_threads import check_session


@pytest.mark.parametrize(("seed", "live"), [(4, True), (5, False)])
def test_random_session(seed, live):
    assert check_session(seed, {}, steps=2, live=live) > 0


@pytest.mark.xfail(reason="a stale frame on an alternate stack above the stack pointer is taken for one to return by")
def test_a_trap_on_an_alternate_stack_within_the_stack(run_target):
    """Nobody overwrites what the kernel saved for the trap; it keeps the patch from being given back for good."""
    target = run_target("alternate_stack_within.c")
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count("a.out:handled")
        assert target.go(3).calls["handled"] == hits(session.snapshot(), "handled") == 3
    target.go(3)
    assert not any("quiet" in text for text in session.warnings)
    before.assert_restored(target.pid)
    target.finish()
