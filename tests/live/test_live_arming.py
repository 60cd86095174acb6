"""Acceptance: probes armed and removed while all threads run on, with exact counts and no signal that anybody sees."""

import random

import pytest

import anyprobe
from live.image import Image
from live.results import missed
from live.test_traps import catches_trap

FUNCTIONS = ("one_byte", "loaded", "scaled")
WINDOWS = ("loaded",)
"""Functions whose first instruction is long enough for a jump, so that ``jump`` changes several of its bytes."""


def arming(probes: list) -> set[str]:
    """How the places of some probes were armed."""
    return {place.hook.arming for probe in probes for place in probe.all_places}


@pytest.mark.parametrize(("strategy", "names"), [("auto", FUNCTIONS), ("jump", WINDOWS)])
@pytest.mark.parametrize("kind", ["plain", "handler"])
@pytest.mark.parametrize("threads", [1, 8])
def test_exact_while_others_come_and_go(run_target, threads, kind, strategy, names):
    """One function is counted all the time; others are armed and removed at random while it runs."""
    target = run_target("live_arming.c", str(threads), kind)
    image = Image.of(target.pid)
    chance = random.Random(threads)
    with anyprobe.attach(target.pid, live=True, strategy=strategy) as session:
        first = session.count("a.out:loaded")
        for _ in range(4):
            target.start(2_000_000 // threads)
            while not target.answers():
                probes = session.count(*(f"a.out:{name}" for name in chance.sample(names, len(names))))
                assert arming(probes) == {"live"}
                target.idle(chance.random() * 0.02)
                session.remove(*probes)
            counts = target.wait_done()
        snapshot = session.snapshot()
        assert arming(first) == {"live"}
        assert snapshot.sites[0].hits == counts.calls["loaded"]
        assert missed(snapshot) == 0
        assert session.engine.live.reasons == {}
    image.assert_restored(target.pid)
    assert catches_trap(target.pid) == (kind == "handler")
    target.go(100)
    target.finish()
