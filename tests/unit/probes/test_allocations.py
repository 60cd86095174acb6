"""Allocations of glibc's malloc by what its chunks say of themselves."""

from types import SimpleNamespace

import pytest

from anyprobe.core.errors import SpecError
from anyprobe.core.memory import MemoryFault
from anyprobe.probes.watching.heap import Allocation, allocation_at

HEAP = 0x5000_0000
SIZES = (0x290, 0x20, 0x70, 0x20010)


@pytest.fixture
def heap():
    content = b"".join(bytes(8) + (size | 1).to_bytes(8, "little") + bytes(size - 16) for size in SIZES)
    end = HEAP + len(content)
    mappings = [SimpleNamespace(start=HEAP, end=end, path="[heap]")]

    def read(address, size):
        if not HEAP <= address < address + size <= end:
            raise MemoryFault(address, size)
        return content[address - HEAP :][:size]

    return mappings, read


def test_any_address_within_belongs_to_it(heap):
    first = HEAP + 0x290 + 16
    for address in (first, first + 5, first + 23):
        assert allocation_at("x", address, *heap) == Allocation(first, first + 24)
    second = HEAP + 0x290 + 0x20 + 16
    assert allocation_at("x", second, *heap) == Allocation(second, second + 0x68)


def test_what_is_around_it(heap):
    first = HEAP + 0x290 + 16
    before, after = Allocation(first, first + 24).outside(0)
    assert (before.address, before.size, after.address, after.size) == (first - 8, 8, first + 24, 8)
    _, after = Allocation(first, first + 24).outside(20)
    assert (after.address, after.size) == (first + 20, 12)


def test_elsewhere_what_malloc_has_returned(heap):
    first = HEAP + 0x290 + 16
    mappings = [SimpleNamespace(start=HEAP, end=heap[0][0].end, path="")]
    assert allocation_at("x", first, mappings, heap[1]) == Allocation(first, first + 24)
    for address in (first + 1, first + 16, 0x10):
        with pytest.raises(SpecError):
            allocation_at("x", address, mappings, heap[1])
