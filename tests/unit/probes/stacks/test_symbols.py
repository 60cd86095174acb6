"""Names of addresses, and how often it is read what a program has loaded."""

import pytest

from anyprobe.probes.stacks.symbols import Symbols

HEAP = 0x7F00_0000_0000


class Objects:
    """A process that has loaded nothing."""

    def __init__(self):
        self.refreshed = 0

    def holding(self, address):
        return None

    def refresh(self):
        self.refreshed += 1


@pytest.fixture
def symbols():
    return Symbols(Objects())


def test_many_addresses_in_no_object_are_one_look_at_what_is_loaded(symbols):
    with symbols.looking_once():
        assert [symbols.name(HEAP + at) for at in (16, 32)] == [f"{HEAP + at:#x}" for at in (16, 32)]
        assert symbols.stack([HEAP, HEAP + 5]) == f"{HEAP:#x} < {HEAP + 5:#x}"
        assert symbols.go_type(HEAP + 64) == f"{HEAP + 64:#x}"
    assert symbols.objects.refreshed == 1


def test_what_was_in_no_object_is_looked_for_again_the_next_time(symbols):
    with symbols.looking_once():
        symbols.name(HEAP)
        symbols.name(HEAP + 8)
        symbols.name_of_caller(HEAP + 16)
    symbols.name(HEAP + 8)
    symbols.name_of_caller(HEAP + 16)
    assert symbols.objects.refreshed == 3
