"""Results at the end of a session, in which what was armed until then is armed."""

from dataclasses import replace

import pytest

from anyprobe.data.snapshots.last_results import results_at_end
from support.sample_snapshots import site, snapshot, timing


class Session:
    """A session in which a library is loaded between the last look and its end."""

    def __init__(self, before, after):
        self.looks = [before, after]

    def detach(self):
        assert len(self.looks) == 1

    def snapshot(self):
        return self.looks.pop(0)


ENTRY = site("malloc", 0)


def test_what_was_armed_until_the_end_is_armed():
    before = snapshot(sites=(site("a", 1), site("b", 2, armed=False)), functions=(timing("f", places=(ENTRY,)),))
    gone = replace(ENTRY, armed=False)
    after = snapshot(
        sites=(site("a", 3, armed=False), site("b", 2, armed=False)), functions=(timing("f", count=9, places=(gone,)),)
    )
    found = results_at_end(Session(before, after))
    assert [(each.hits, each.armed) for each in found.sites] == [(3, True), (2, False)]
    assert [(each.count, each.places[0].armed) for each in found.functions] == [(9, True)]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_places_that_came_meanwhile_are_there_and_were_armed(position):
    """A thread waited where it had loaded a library: each spec may have got places, in the middle of all."""
    known = [site("a", 1), site("b", 2, armed=False)]
    after = [replace(each, armed=False, hits=each.hits + 10) for each in known]
    after.insert(position, site("fresh", 5, armed=False))
    times = [timing("fresh", places=(replace(ENTRY, armed=False),)), timing("f", places=(replace(ENTRY, armed=False),))]
    found = results_at_end(
        Session(
            snapshot(sites=tuple(known), functions=(timing("f", places=(ENTRY,)),)),
            snapshot(sites=tuple(after), functions=tuple(times)),
        )
    )
    assert {each.function: (each.hits, each.armed) for each in found.sites} == {
        "a": (11, True), "b": (12, False), "fresh": (5, True),
    }  # fmt: skip
    assert all(each.places[0].armed for each in found.functions)


def test_sites_of_specs_that_overlap_keep_their_order():
    before = snapshot(sites=(site("a", 1), site("a", 1, armed=False)))
    after = snapshot(sites=(site("a", 2, armed=False), site("a", 2, armed=False)))
    assert [each.armed for each in results_at_end(Session(before, after)).sites] == [True, False]
