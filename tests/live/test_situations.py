"""Acceptance: every situation, entry, return, both, and timing; exact counts, results unchanged, jumps only."""

from collections.abc import Iterator

import pytest

import anyprobe
from support.driver import Counts, MissingTool, Target, started
from support.results import hits, missed, refusals, strategies, timing
from support.situations import SITUATIONS, Situation

MODES = ("entry", "return", "both", "time", "time-to-exits")
TIMING = frozenset({"time", "time-to-exits"})


@pytest.fixture(params=SITUATIONS, ids=lambda s: s.name)
def situation(request: pytest.FixtureRequest) -> Situation:
    return request.param


@pytest.fixture
def target(situation: Situation) -> Iterator[Target]:
    try:
        executable = situation.build()
    except MissingTool as tool:
        pytest.skip(f"needs {tool}")
    with started(executable, *situation.arguments) as running:
        yield running


def specs_of(functions: tuple[str, ...], mode: str) -> list[str]:
    names = {"return": ("return",), "both": ("entry", "return")}.get(mode, ("entry",))
    return [f"pid:a.out:{function}:{name}" for function in functions for name in names]


def arm(session: "anyprobe.Session", functions: tuple[str, ...], mode: str) -> list["anyprobe.Probe"]:
    return (session.time if mode in TIMING else session.count)(*specs_of(functions, mode))


def compare(situation: Situation, mode: str, counts: Counts, snapshot: object, refused: dict[str, str]) -> None:
    """Compare what was counted with what the program counted itself."""
    wrong = []
    for function in situation.functions:
        if function not in counts.calls:
            continue  # needs a processor feature that this machine lacks
        if function in refused:
            allowed = "no-thread-slot" if mode in TIMING and situation.slotless else situation.refusable.get(function)
            if refused[function] != allowed:
                wrong.append(f"{function} refused: {refused[function]}")
            continue
        calls, returns, tails = counts.calls[function], counts.returns[function], counts.tails.get(function, 0)
        if mode in TIMING:
            # A call that was inside when the probe was armed has an exit without an entry.
            inside = 1 if situation.name.endswith("parked-inside") else 0
            record = timing(snapshot, function)
            # A fork child's calls are not timed: they are missed, and shown.
            timed, untimed = record.count + (record.nmissed if situation.forks else 0), record.tail_exits
            if mode == "time" and situation.name != "tail-call":  # there every call is timed to its very end
                untimed += record.learning
                if untimed > tails:
                    wrong.append(f"{function}: {untimed} of {tails} calls that left by a jump are not timed")
                timed, untimed = timed + untimed - tails, tails
            seen = timed, untimed, record.unmatched
            expected = (returns - inside, 0) if mode == "time" and situation.name == "tail-call" else None
            expected = expected or (returns - tails - inside, tails)
            if seen != (*expected, inside):
                wrong.append(f"{function}: timed {seen}, the program counted {returns} exits, {tails} of them tails")
            continue
        if mode in ("entry", "both") and hits(snapshot, function) != calls:
            wrong.append(f"{function}: {hits(snapshot, function)} entries for {calls} calls")
        if mode in ("return", "both") and hits(snapshot, function, "return") != returns:
            wrong.append(f"{function}: {hits(snapshot, function, 'return')} exits for {returns} returns")
    assert not wrong, "\n".join(wrong)
    assert missed(snapshot) == 0 or (mode in TIMING and situation.forks)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("mode", MODES)
def test_armed_before_the_calls(situation: Situation, target: Target, mode: str) -> None:
    """Armed while the program waits; then it makes all its calls: everything is counted exactly."""
    before = Counts(dict(target.go(0).calls), dict(target.counts.returns), dict(target.counts.tails))
    with anyprobe.attach(target.pid, returns="exits" if mode == "time-to-exits" else "auto") as session:
        arm(session, usable(situation, target), mode)
        assert strategies(session.snapshot()) <= {"jump", "retarget", "punned", "short"}
        counts = since(before, target.go(situation.rounds))
        compare(situation, mode, counts, session.snapshot(), refusals(session.refused))
        session.detach()
    target.go(2)
    target.finish()


def usable(situation: Situation, target: Target) -> tuple[str, ...]:
    """Return the functions that the program runs on this machine."""
    return tuple(f for f in situation.functions if f in target.counts.calls)


def since(before: Counts, after: Counts) -> Counts:
    """Return the difference of two reports."""
    return Counts(
        *(
            {name: number - getattr(before, kind).get(name, 0) for name, number in getattr(after, kind).items()}
            for kind in ("calls", "returns", "tails")
        )
    )


@pytest.mark.parametrize("mode", ["both", "time"])
def test_armed_and_removed_while_running(situation: Situation, target: Target, mode: str) -> None:
    """Armed and removed again and again while the program runs: nothing it checks is ever wrong."""
    target.go(0)
    functions = usable(situation, target)
    target.run_freely()
    with anyprobe.attach(target.pid) as session:
        for _ in range(5):
            probes = arm(session, functions, mode)
            target.check_alive()
            session.remove(*probes)
        target.check_alive()
    target.halt()
    target.go(2)
    target.finish()
