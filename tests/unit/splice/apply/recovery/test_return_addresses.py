"""What stubs stand for, as detaching reads it from the target's memory."""

import numpy as np
import pytest

from anyprobe.splice.apply.recovery.return_addresses import StubTable, true_address

FIRST = StubTable(0x10000, np.array([0x5555, 0, 0x20008, 0x10018], dtype=np.uint64))
SECOND = StubTable(0x20000, np.array([0, 0x7777], dtype=np.uint64))
TABLES = (FIRST, SECOND)


@pytest.mark.parametrize(
    ("word", "address"),
    [
        (0x10000, 0x5555),
        (0x10008, None),  # not in use
        (0x10001, None),  # inside a stub: nothing that a program would hold
        (0x10010, 0x7777),  # a stub that leads to a stub
        (0x20008, 0x7777),
        (0x10020, None),
        (0xFFF8, None),
        (0, None),
        (0x5555, None),
    ],
)
def test_words_and_what_they_stand_for(word, address):
    assert true_address(word, TABLES) == address


def test_damaged_tables_do_not_lead_in_circles():
    assert true_address(0x10018, TABLES) is None
