"""Acceptance: probes armed and removed while all threads run on, with exact counts and no signal that anybody sees."""

import random
from collections.abc import Iterator

import pytest

import anyprobe
from live.driver import started
from live.image import Image
from live.results import missed
from live.test_controller_killed import Controller, numbers, one_death, one_failure
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
    image.assert_restored(target.pid)
    assert catches_trap(target.pid) == (kind == "handler")
    target.go(100)
    target.finish()


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    running = Controller("live_controller.py")
    yield running
    running.close()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["kill-before", "kill-after", "fail:EIO", "fail:ESRCH", "short"])
def test_every_call(controller, compiled, request, kind):
    """The controller killed, or failed by the system, at its calls: the program goes on, and all is restored."""
    with started(compiled("live_arming.c"), "3") as target:
        target.go(1)
        assert "untyped" not in controller.ask("session", target.pid, "none")
        image = Image.of(target.pid)
        answer = controller.ask("session", target.pid, "none")
        target.run_freely()
        for number in numbers(answer["classes"], kind, request):
            plan = f"{kind.partition(':')[0]}:{number}" + (f":{kind.partition(':')[2]}" if ":" in kind else "")
            (one_death if kind.startswith("kill") else one_failure)(controller, target, image, plan)
            assert not catches_trap(target.pid)
        target.halt()
        target.finish()
