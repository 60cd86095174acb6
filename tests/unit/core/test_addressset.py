"""Sets and counts of addresses against Python's own."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from anyprobe.core.addressset import AddressCounts, AddressSet

EDGE = 0x41F000
places = st.integers(EDGE - 20, EDGE + 20) | st.integers(0, 1 << 47)
short = st.builds(range, places, places).filter(lambda each: len(each) < 50) | st.builds(
    lambda start, size: range(start, start + size), places, st.integers(0, 5000)
)
changes = st.lists(st.tuples(st.booleans(), short), max_size=6)


@given(changes, short)
def test_it_has_what_was_added_and_not_removed(changes, asked):
    found, expected = AddressSet(), set()
    for adds, addresses in changes:
        if adds:
            found.add_range(addresses.start, addresses.stop)
            expected.update(addresses)
        else:
            found.discard_range(addresses.start, addresses.stop)
            expected.difference_update(addresses)
    assert found == expected
    assert list(found) == sorted(expected)
    assert len(found) == len(expected)
    assert found.has_any(asked.start, asked.stop) == (not expected.isdisjoint(asked))
    assert [at in found for at in asked] == [at in expected for at in asked]


@given(st.lists(short, max_size=6), st.booleans())
def test_a_range_is_taken_as_a_whole_or_not_at_all(ranges, shared):
    found, expected = AddressSet(), set()
    for addresses in ranges:
        kept = found.copy() if shared else None
        free = expected.isdisjoint(addresses)
        before = set(expected)
        expected.update(addresses if free else ())
        assert found.take_range(addresses.start, addresses.stop) == free
        assert found == expected
        assert kept is None or kept == before


def test_ranges_without_addresses_have_none():
    found = AddressSet(range(EDGE - 8, EDGE + 8))
    assert not found.has_any(EDGE + 2, EDGE - 2)
    assert not found.has_any(EDGE, EDGE)
    found.add_range(EDGE + 20, EDGE + 10)
    found.discard_range(EDGE + 2, EDGE - 2)
    found.discard(EDGE + 20)
    assert found == set(range(EDGE - 8, EDGE + 8))
    assert None not in found


@given(changes, short)
def test_it_counts_uses(changes, asked):
    found, expected = AddressCounts(), Counter()
    for adds, addresses in changes:
        if adds:
            found.add_range(addresses.start, addresses.stop)
            expected.update(addresses)
        else:
            found.discard_range(addresses.start, addresses.stop)
            expected = +(expected - Counter(addresses))
    assert dict(found.items()) == dict(expected)
    assert found.has_any(asked.start, asked.stop) == (not expected.keys().isdisjoint(asked))
    assert [found[at] for at in asked] == [expected[at] for at in asked]


def test_what_is_used_too_often_stays_used():
    found = AddressCounts()
    for _ in range(300):
        found.add_range(EDGE, EDGE + 1)
    found.keep_range(EDGE + 1, EDGE + 2)
    for _ in range(300):
        found.discard_range(EDGE, EDGE + 2)
    assert [*found] == [EDGE, EDGE + 1]


@given(changes, changes, changes)
def test_copies_change_by_themselves(before, ours, theirs):
    for kind in (AddressSet, AddressCounts):
        base, alone, other = kind(), kind(), kind()
        _change(base, before)
        for each in (alone, other):
            _change(each, before)
        copy = base.copy()
        _change(copy, theirs)
        _change(base, ours)
        _change(alone, ours)
        _change(other, theirs)
        assert (base, copy) == (alone, other)
        assert base.copy() == base


def _change(addresses, changes):
    for adds, each in changes:
        (addresses.add_range if adds else addresses.discard_range)(each.start, each.stop)
