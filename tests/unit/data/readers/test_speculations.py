"""Which records are kept where handlers speculate: what ends say, nested as calls are; what has no end is counted."""

import random

import numpy as np
import pytest

from anyprobe.data.readers import speculations
from anyprobe.data.readers.speculations import Mark, Speculations

RECORD = np.dtype([("ts", "<u8"), ("n", "<i8")])
MARK = np.dtype([("ts", "<u8"), ("what", "<i8"), ("sp", "<u8"), ("tid", "<i4")])
BEGIN, COMMIT, DISCARD = Mark


def sift(found, *events, thread=1, tid=7, **options):
    """Return what is kept of events in their order: numbers are records, pairs are marks with stack pointers."""
    records = [(at, each) for at, each in enumerate(events, 100) if isinstance(each, int)]
    marks = [(at, *each, tid) for at, each in enumerate(events, 100) if not isinstance(each, int)]
    given = {"r": [(thread, np.array(records, RECORD))]}
    kept = found.sift(given, [(thread, np.array(marks, MARK))], **options)["r"]
    return [int(n) for batch in kept for n in batch["n"]]


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ((1, (BEGIN, 90), 2, (COMMIT, 90), 3), [1, 2, 3]),
        ((1, (BEGIN, 90), 2, (DISCARD, 90), 3), [1, 3]),
        (((BEGIN, 90), 1, (BEGIN, 50), 2, (COMMIT, 50), 3, (DISCARD, 90)), []),
        (((BEGIN, 90), 1, (BEGIN, 50), 2, (DISCARD, 50), 3, (COMMIT, 90)), [1, 3]),
        (((BEGIN, 90), 1, (BEGIN, 50), 2, (COMMIT, 50), 3, (COMMIT, 90)), [1, 2, 3]),
        (((BEGIN, 90), 1, (COMMIT, 98), 2), [1, 2]),  # as seen in the caller
    ],
)
def test_ends_decide(events, kept):
    found = Speculations()
    assert sorted(sift(found, *events)) == kept
    assert (found.left, found.lost, found.undecided) == (0, 0, 0)


def test_what_is_left_without_an_end_is_counted():
    found = Speculations()
    assert sift(found, (BEGIN, 90), 1, (BEGIN, 50), 2, (COMMIT, 90), 3) == [1, 3]  # the inner call is over
    assert (found.left, found.lost) == (1, 1)
    assert sift(found, (BEGIN, 50), 4, (BEGIN, 50), 5, (COMMIT, 50)) == [5]  # the same call once more
    assert (found.left, found.lost) == (2, 2)
    assert sift(found, (COMMIT, 50), 6) == [6]
    assert found.undecided == 1
    assert sift(found, (BEGIN, 50), 7) == []
    assert sift(found, 8, gone={7}) == []
    assert (found.left, found.lost) == (3, 4)
    assert sift(found, (BEGIN, 50), 9) == []
    found.finish()
    assert (found.left, found.lost) == (4, 5)


def test_decisions_come_in_whatever_piece_and_threads_do_not_meet():
    found = Speculations()
    assert sift(found, (BEGIN, 90), 1) == []
    assert sift(found, 2, thread=2) == [2]
    assert sift(found, 3, thread=0) == [3]
    assert found.threads() == {7}
    assert sift(found, 4, (COMMIT, 90)) == [1, 4]


def test_there_is_an_end_to_what_is_held(monkeypatch):
    monkeypatch.setattr(speculations, "MOST_HELD", 10)
    found = Speculations()
    assert sift(found, (BEGIN, 90), *range(11)) == []
    assert found.lost == 11
    assert sift(found, 50, (COMMIT, 90)) == [50]


@pytest.mark.parametrize("seed", range(5))
def test_any_nesting_is_decided_as_a_stack_would(seed):
    chance, found, stack, kept, events = random.Random(seed), Speculations(), [], [], []
    result = []
    for n in range(600):
        choice = chance.random()
        if choice < 0.25 and len(stack) < 8:
            events.append((BEGIN, 1000 - 16 * len(stack)))
            stack.append([])
        elif choice < 0.5 and stack:
            held, what = stack.pop(), chance.choice((COMMIT, DISCARD))
            events.append((what, 1000 - 16 * len(stack)))
            (stack[-1] if stack else kept).extend(held if what is COMMIT else [])
        else:
            events.append(n)
            (stack[-1] if stack else kept).append(n)
        if chance.random() < 0.05:
            result += sift(found, *events)
            events = []
    result += sift(found, *events)
    assert result == kept
    assert (found.left, found.lost, found.undecided) == (0, 0, 0)
