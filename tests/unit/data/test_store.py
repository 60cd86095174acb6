"""Structures in one region, seen through their declarations, until the memory goes."""

import mmap
import struct

from anyprobe.data.aggregations import Count, Hist
from anyprobe.data.keys import UNKEYED, KeyPart, KeyShape
from anyprobe.data.maps import Map, MapLayout
from anyprobe.data.records import Field, RecordType
from anyprobe.data.rings import RingLayout
from anyprobe.data.store import Store, StoreLayout
from anyprobe.data.tables import ROW_HEAD_BYTES, TableLayout


def declared():
    calls, sizes, started = Count("calls"), Hist("sizes"), Map("m", capacity=4)
    layout = StoreLayout(
        [
            TableLayout(calls, UNKEYED, threads=2),
            TableLayout(sizes, UNKEYED, threads=2),
            MapLayout(started, KeyShape((KeyPart(),))),
            RingLayout(RecordType("r", (Field("a"),)), 64, rings=1, threads=2),
        ]
    )
    return calls, sizes, started, layout


def count(region, layout, number, hits):
    """Count in a row, as a thread would."""
    place = layout.offsets[0] + layout.layouts[0].rows_offset + number * layout.layouts[0].stride + ROW_HEAD_BYTES
    struct.pack_into("<Q", region, place, hits)


def test_structures_lie_side_by_side_on_pages_of_their_own():
    *_, layout = declared()
    assert all(offset % 4096 == 0 for offset in layout.offsets)
    assert list(layout.offsets) == sorted(layout.offsets)
    assert all(
        offset + each.size <= end
        for offset, each, end in zip(layout.offsets, layout.layouts, (*layout.offsets[1:], layout.size), strict=True)
    )


def test_declarations_show_all_processes_and_keep_what_was_there():
    calls, sizes, started, layout = declared()
    regions = [mmap.mmap(-1, layout.size) for _ in range(2)]
    stores = [Store(memoryview(region), layout) for region in regions]
    count(regions[0], layout, 1, 5)
    count(regions[1], layout, 0, 7)
    assert calls.result().total.count == 12
    assert [store.results()[0].total.count for store in stores] == [5, 7]
    assert started.items() == {}
    assert not sizes.result().entries
    for store, region in zip(stores, regions, strict=True):
        store.close()
        del store
        region.close()  # nobody holds the memory
    assert calls.result().total.count == 12
    calls.normalize(4)
    assert calls.result().as_json()["normalized"] == 3
    calls.clear()
    assert calls.result().total.count == 0


def test_only_the_extents_of_a_part_are_read():
    calls, _, _, layout = declared()
    region = mmap.mmap(-1, layout.size)
    rows = layout.layouts[0].rows_offset
    store = Store(
        memoryview(region), layout, extents=lambda: iter([(rows, rows + 4096), (layout.size - 4096, layout.size)])
    )
    count(region, layout, 2, 3)
    assert calls.result().total.count == 3
    assert store.tables[0]._touched() == [slice(0, 3)]
    assert store.tables[1]._touched() == []


def test_rings_have_memory_before_they_are_written():
    *_, layout = declared()
    given = []
    store = Store(memoryview(mmap.mmap(-1, layout.size)), layout, allocate=lambda *part: given.append(part))
    ring = layout.layouts[3]
    assert given == [(layout.offsets[3] + ring.rings_offset, ring.ring_bytes)]
    store.rings[0].drain()
    assert len(given) == 1
