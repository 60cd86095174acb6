import os
from types import SimpleNamespace

import pytest

from anyprobe.core.errors import UsageError
from anyprobe.data.layouts import layout
from anyprobe.splice.regions.banks import (
    Counting,
    Demand,
    Threads,
    bank_layout,
    with_fewer_threads,
    with_records_ahead,
)
from anyprobe.target.system import procfs

COUNTING = Counting(layout.MAXACTIVE)
NESTED = Counting(layout.MAXACTIVE, nested=True)


def threads(monkeypatch, now, *, may_lock=False, locks=False, limited=False):
    monkeypatch.setattr(procfs, "count_threads", lambda _: now)
    monkeypatch.setattr(procfs, "locks_memory", lambda _: locks)
    monkeypatch.setattr(procfs, "limits_address_space", lambda _: limited)
    return Threads.of(os.getpid(), apart=False, may_lock=may_lock)


def made(records, room, counting=COUNTING):
    return bank_layout(Demand(10, records), counting, room, handled=False, adopting=True, apart=False)


@pytest.mark.parametrize("records", [5, 500, 5000, 10_000, 50_000, 75_000])
@pytest.mark.parametrize("now", [1, 25, 60])
def test_blocks_for_a_thousand_threads_in_a_terabyte_of_address_space(monkeypatch, records, now):
    bank = made(records, threads(monkeypatch, now))
    assert bank.blocks == 1024 if records <= 50_000 else 650 < bank.blocks < 1024
    assert bank.size < (1 << 40) + bank.stride
    assert bank.children >= 512
    assert bank.file_bytes < 1 << 53


def test_a_block_for_each_of_many_threads(monkeypatch):
    assert made(5, threads(monkeypatch, 3000)).blocks >= 6000
    assert made(500, threads(monkeypatch, 3000)).blocks == 6000


@pytest.mark.parametrize("circumstances", [{"may_lock": True}, {"locks": True}, {"limited": True}])
def test_little_where_all_may_come_to_be_in_memory_or_address_space_is_limited(monkeypatch, circumstances):
    assert made(5000, threads(monkeypatch, 60, **circumstances)).size < 3 << 30
    monkeypatch.setattr(procfs, "count_threads", lambda _: 60)
    room = Threads.of(os.getpid(), apart=True, may_lock=True)
    assert bank_layout(Demand(10, 500), COUNTING, room, handled=False, adopting=True, apart=True).size < 3 << 30


@pytest.mark.parametrize("counting", [COUNTING, NESTED])
def test_offsets_of_any_bank_are_operands_of_instructions(monkeypatch, counting):
    room = threads(monkeypatch, 1)
    for records in (53_000, 80_000, 100_000):
        bank = made(records, room, counting)
        assert bank.records >= records
        assert bank.stride < 1 << 31
    with pytest.raises(UsageError, match="120,000 functions cannot be timed at once"):
        made(120_000, room, counting)
    with pytest.raises(UsageError, match="more than there is room for"):
        made(1, room, Counting(1 << 26))


def test_fewer_blocks_where_the_address_space_has_no_room(monkeypatch):
    bank, sizes = made(75_000, threads(monkeypatch, 57)), []
    while bank is not None:
        sizes.append(bank.blocks)
        bank = with_fewer_threads(bank)
    assert sizes == [693, 346, 173, 86, 43, 21, layout.LEAST_THREADS]


def test_a_session_that_uses_up_one_bank_after_the_other_gets_larger_ones(monkeypatch):
    room, banks = threads(monkeypatch, 60), []
    for _ in range(16):  # there are words for as many
        banks.append(SimpleNamespace(layout=with_records_ahead(made(7, room), banks)))
    sizes = [bank.layout.records for bank in banks]
    assert sizes[:3] == [16, 16, 32]
    assert max(sizes) == 256
    assert sum(sizes) > 400 * 7
    assert all(bank.layout.blocks == 1024 and bank.layout.size < 6 << 30 for bank in banks)
    assert with_records_ahead(made(300, room), banks).records == 300


def test_no_larger_ones_where_address_space_is_scarce_or_nothing_is_timed(monkeypatch):
    banks = [SimpleNamespace(layout=made(200, threads(monkeypatch, 1)))]
    assert with_records_ahead(made(7, threads(monkeypatch, 1, may_lock=True)), banks).records == 16
    assert with_records_ahead(made(0, threads(monkeypatch, 1)), banks).records == 0
