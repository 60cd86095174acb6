"""Cycles are not looked for while bulk work is done, nor all of what it made right afterwards."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from anyprobe.core.collection import BULK, MUCH, collect_what_was_made, collection_paused


@pytest.fixture(autouse=True)
def _collector_as_it_was() -> Iterator[None]:
    gc.unfreeze()  # else the package leaves alone what others have frozen
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_within_nor_what_was_made_right_behind() -> None:
    """The collector works on afterwards, and takes the new objects for old ones."""
    collected = []
    gc.callbacks.append(lambda phase, info: collected.append((phase, info["generation"])))
    try:
        with collection_paused():
            kept = [[number] for number in range(2 * BULK)]
            assert collected == []
            assert not gc.isenabled()
    finally:
        gc.callbacks.pop()
    assert gc.isenabled()
    assert kept[0] not in gc.get_objects(generation=0)
    assert any(each is kept for each in gc.get_objects(generation=2))


def test_garbage_of_bulk_work_is_collected_when_enough_of_it_may_have_come_together() -> None:
    """Not at once, where somebody waits, but before the next bulk work; and anywhere once it is too much."""

    class Cyclic:
        def __init__(self) -> None:
            self.itself = self

    collect_what_was_made(0)  # what other tests of this process have made does not count
    with collection_paused():
        made = [Cyclic() for _ in range(2 * BULK)]
    watched = weakref.ref(made[0])
    del made
    collect_what_was_made()
    assert watched() is not None, "too little for that"
    with collection_paused():
        kept = [[] for _ in range(MUCH)]
    assert watched() is not None, "somebody may be waiting"
    collect_what_was_made()
    assert watched() is None
    assert kept


def test_too_much_garbage_is_collected_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that changes its probes for days keeps no more than that."""
    collect_what_was_made(0)
    monkeypatch.setattr("anyprobe.core.collection.TOO_MUCH", 2 * BULK)
    with collection_paused():
        cycle: list[object] = []
        cycle.append([cycle, weak := Anything()])
        kept = [[] for _ in range(BULK + 1000)]
    watched = weakref.ref(weak)
    del cycle, weak
    with collection_paused():
        kept += [[] for _ in range(BULK + 1000)]
    assert watched() is None
    assert len(kept) == 2 * BULK + 2000


class Anything:
    """Something that can be referred to weakly."""


def test_after_little_work_the_collector_works_as_ever() -> None:
    """So what programs leave in cycles does not wait for ours."""
    collected, often = [], gc.get_threshold()
    gc.callbacks.append(lambda phase, info: collected.append(info["generation"]))
    gc.set_threshold(700, 10, 10)  # a command that ran in this process has had it work less often
    try:
        with collection_paused():
            kept = [[number] for number in range(BULK // 4)]
        kept += [[number] for number in range(2)]
        assert collected
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*often)
    assert kept


def test_what_somebody_has_frozen_stays_frozen() -> None:
    """Whoever froze objects, before a fork for example, finds them so."""
    gc.freeze()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    with collection_paused():
        pass
    assert gc.get_freeze_count() >= frozen - 100  # some may die by their reference counts


def test_a_collector_that_is_off_stays_off() -> None:
    """Whoever has turned it off turns it on."""
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()
