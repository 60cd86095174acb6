"""What a target has counted between two moments, and sessions that have learnt where its calls return to."""

from typing import Any

from support.driver import Counts, Target


def since(before: Counts, after: Counts, name: str) -> dict[str, int]:
    """Return the calls, returns and returns by jumps of a function between two of a target's reports."""
    return {
        kind: getattr(after, kind)[name] - getattr(before, kind).get(name, 0) for kind in ("calls", "returns", "tails")
    }


def copied(counts: Counts) -> Counts:
    """Return a report as it is now."""
    return Counts(dict(counts.calls), dict(counts.returns), dict(counts.tails))


def learnt(session: Any, target: Target, *, signals: bool = False) -> None:
    """Have the program make calls until every return point that it has is known."""
    for _ in range(50):
        target.go(12)
        session.pump(0.05)
        learning = sum(each.learning for each in session.snapshot().functions)
        target.go(48 if signals else 12)
        if sum(each.learning for each in session.snapshot().functions) == learning:
            return
    raise AssertionError("something is learnt for ever")


def after_learning(
    session: Any, target: Target, rounds: int, *, signals: bool = False
) -> tuple[Any, Any, Counts, Counts]:
    """Have the program run rounds in which no call comes from where none has come before.

    Return the snapshots and the program's reports before and after them.
    """
    for _ in range(10):
        learnt(session, target, signals=signals)
        start, before = session.snapshot(), copied(target.counts)
        counts = target.go(rounds)
        end = session.snapshot()
        if sum(each.learning for each in end.functions) == sum(each.learning for each in start.functions):
            break
    return start, end, before, counts
