"""What belongs together when splices are written in several stops, and counters that are read in part."""

import struct

import pytest

from anyprobe.probes.providers.kernel.splices.processor_counters import ProcessorCounters
from anyprobe.probes.providers.kernel.splices.wanted import joined


@pytest.mark.parametrize(
    ("keys", "groups"),
    [
        ([], []),
        ([{1}, {2}, {1}], [[0, 2], [1]]),
        ([{1}, {2}, {1, 2}, {3}], [[0, 1, 2], [3]]),
        ([{1}, {2}, {3}, {2, 3}, {1, 2}, {4}, {4}], [[0, 1, 2, 3, 4], [5, 6]]),
    ],
)
def test_groups_have_no_key_in_common(keys, groups):
    assert sorted(sorted(group) for group in joined(range(len(keys)), keys.__getitem__)) == groups


class Memory:
    """A driver whose two processors have counted their own addresses, the second one twice."""

    def read_per_processor(self, offset, size):
        words = range(offset // 8, (offset + size) // 8)
        return [struct.pack(f"<{len(words)}Q", *(times * word for word in words)) for times in (1, 2)]


def test_a_part_of_the_counters_is_read_where_it_is():
    given = []

    def give(size):
        given.append(size)
        return 1 << 20 if len(given) == 1 else len(given) << 24

    counters = ProcessorCounters(Memory(), 10_000, give)
    assert len(given) == 4
    for numbers in (range(10_000), range(0), range(3), range(250, 260), range(4350, 9000), range(9_999, 10_000)):
        assert counters.read(numbers) == [3 * (counters.place(number) // 8) for number in numbers]
