"""What several sessions have counted at one moment, which is read when there is time."""

import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anyprobe.splice.regions.code_region import NearBank, SlotBank, Still

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost

_NORESERVE = 0x4000
"""``MAP_NORESERVE``: a bank may be larger than memory, and next to nothing of it is used."""


@contextmanager
def still(hosts: "Iterable[ProbeHost]") -> Iterator[None]:
    """Have all that is read within a ``with`` block be what there was at its beginning, but for fork children's own."""
    banks = [bank for host in hosts for bank in _banks(host)]
    try:
        for bank in banks:
            bank.still = _copied(bank)
        yield
    finally:
        for bank in banks:
            bank.still = None


def _banks(host: "ProbeHost") -> "Iterator[SlotBank | NearBank]":
    holdings = host.splicing.holdings
    yield from holdings.banks
    yield from holdings.goroutine_banks
    yield from (region.near for region in holdings.code_regions if region.near is not None)


def _copied(bank: SlotBank | NearBank) -> Still:
    """Copy the pages that hold data: most of a bank was never touched."""
    extents = tuple(bank.arena.data_extents(bank.piece.offset, bank.piece.size))
    now = bank.arena.view(bank.piece.offset, bank.piece.size)
    content = memoryview(mmap.mmap(-1, bank.piece.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE))
    for low, high in extents:
        content[low:high] = now[low : min(high, bank.piece.size)]
    return Still(content, extents)
