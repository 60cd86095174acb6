"""Memory of a session's splices: given in few pieces, and given back when the session ends."""

import pytest

from anyprobe import Count, Hist
from anyprobe.data.readers.tables import TableLayout
from anyprobe.handlers.types.storages import CallData, Stacks, Table
from anyprobe.probes.providers.kernel.splices.shared_storages import SharedStorages, of_processors
from anyprobe.splice.kernel import call_data
from anyprobe.target.kernel.driver.device import Shared

FAR = 1 << 40


class FakeDriver:
    """Gives memory of this process, and remembers of what size."""

    processors = 2

    def __init__(self):
        self.given, self.closed = [], False

    def per_processor(self, size):
        self.given.append(size)
        return FAR * len(self.given)

    def share(self, size):
        self.given.append(size)
        return Shared(FAR * len(self.given), memoryview(bytearray(size)))

    def reserve(self, size):
        self.given.append(size)
        return FAR * len(self.given)

    def close(self):
        self.closed = True


@pytest.fixture
def driver():
    return FakeDriver()


@pytest.fixture
def storages(driver):
    return SharedStorages(None, lambda: driver, lambda kind, number: f"{kind} {number}")


def test_counters_of_many_probes_come_out_of_few_pieces(driver, storages):
    found = [storages.per_processor(8) for _ in range(64 + 4096)]
    assert driver.given == [512, 32 << 10]
    assert len(set(found)) == len(found)
    assert {at // FAR for at in found} == {1, 2}


def test_counters_of_missed_hits_do_not_overlap(driver, storages):
    first, second = storages.lost(3), storages.lost(2)
    first.view.cast("Q")[2] = 7
    second.view.cast("Q")[0] = 9
    assert len(driver.given) == 1
    assert second.address == first.address + 24
    assert first.view.cast("Q").tolist() == [0, 0, 7]


def test_patches_are_packed(driver, storages):
    first, second = storages.reserve(100), storages.reserve(20)
    assert (second - first, driver.given) == (112, [64 << 10])


def test_what_was_collected_is_kept_when_the_memory_is_given_back(driver, storages):
    counted = Count("counted")
    storage = Table(TableLayout(counted))
    assert storages.place(storage) == storages.place(storage)
    layout = of_processors(storage, 2).layout
    view = storages._tables[storage]._view  # the kernel would write there
    view._words[(layout.rows_offset + layout.stride + 64) // 8] = 5
    assert counted.result().entries[()].count == 5
    storages.close()
    assert driver.closed
    assert counted.result().entries[()].count == 5
    assert not storages.has(storage)


def test_storages_have_a_row_for_each_processor():
    assert of_processors(Table(TableLayout(Hist("sizes"))), 4).layout.rows == 5
    with pytest.raises(Exception, match="no stacks"):
        of_processors(Stacks(), 4)


def test_calls_that_were_under_way_take_no_room_when_they_are_forgotten(storages):
    calls = CallData(1)
    storages.place(calls)
    view = storages._placed[calls].view
    storages.open(calls)
    view[call_data.DROPPED], view[call_data.UNDER_WAY], view[call_data.HEAD_BYTES], view[-1] = 5, 1, 8, 8
    storages.forget_calls(calls)
    assert storages.dropped(calls) == {"no room": 5}
    assert (view[call_data.OPEN], view[call_data.UNDER_WAY]) == (1, 0)
    assert not any(view[call_data.HEAD_BYTES :])
