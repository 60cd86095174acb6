"""Ranges with reasons, looked up by address."""

import random

import pytest

from anyprobe.core.address import AddressRange
from anyprobe.core.areas import Areas


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_the_same_is_found_as_one_after_the_other(count):
    """Ranges that overlap, lie in each other, touch or are empty, in any order."""
    choose = random.Random(count)
    for _ in range(40):
        areas = []
        for number in range(count):
            start = choose.randrange(400)
            areas.append((AddressRange(start, start + choose.choice((0, 1, 4, 8, 8, 120))), f"reason {number}"))
        found = Areas(areas)
        for _ in range(100):
            low = choose.randrange(-4, 540)
            high = low + choose.randrange(1, 16)
            expected = [reason for area, reason in areas if area.start < high and low < area.end]
            assert found.overlapping(low, high) == expected


class CountedEnds(list):
    """The ends of ranges, which count how many of them are looked at."""

    looks = 0

    def __getitem__(self, number):
        self.looks += 1
        return super().__getitem__(number)


def test_only_what_may_overlap_is_looked_at():
    """Text relocations of a large module are tens of thousands of ranges, asked about at each site."""
    areas = Areas([(AddressRange(0x1000 + 64 * number, 0x1008 + 64 * number), "text") for number in range(50_000)])
    areas._ends = ends = CountedEnds(areas._ends)
    for number in range(1_000):
        site = 0x1000 + 64 * 50 * number
        assert areas.overlapping(site + 4, site + 9) == ["text"]
        assert areas.overlapping(site + 8, site + 40) == []
    assert ends.looks <= 2_000
