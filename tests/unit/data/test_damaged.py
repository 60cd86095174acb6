"""What is read from the target is untrusted: whatever it has written over our memory, reading ends and never fails."""

import random

import pytest

from anyprobe.data.aggregates.aggregations import Count, Hist, Stddev
from anyprobe.data.aggregates.records import Field, RecordType
from anyprobe.data.layouts.keys import UNKEYED, KeyPart, KeyShape
from anyprobe.data.readers.maps import HEAD_BYTES as MAP_HEAD
from anyprobe.data.readers.maps import Map, MapLayout, MapView
from anyprobe.data.readers.rings import HEAD_BYTES, ROW_BYTES, RingLayout, RingReader
from anyprobe.data.readers.tables import TableLayout, TableView

KEY = KeyShape((KeyPart("signed"), KeyPart("string", 2)))


def damaged(size, seed):
    """Return memory of which some words are anything, and some small numbers."""
    random.seed(seed)
    region = bytearray(size)
    for _ in range(random.randrange(1, 2000)):
        place = random.choice([random.randrange(0, size, 8), random.randrange(0, min(size, 8192), 8)])
        value = random.choice(
            [random.getrandbits(64), random.randrange(300), 1 << 32 | random.randrange(9), (1 << 64) - 1]
        )
        region[place : place + 8] = value.to_bytes(8, "little")
    return memoryview(region)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "layout",
    [
        TableLayout(Count("c", capacity=50), KEY, threads=4),
        TableLayout(Stddev("s", capacity=9), KEY, threads=4),
        TableLayout(Hist("h"), UNKEYED, threads=4),
    ],
    ids=lambda layout: layout.aggregation.kind,
)
def test_tables(layout, seed):
    view = TableView(damaged(layout.size, seed), layout)
    view.result().as_json()
    view.trunc(3)
    view.clear()


@pytest.mark.parametrize("seed", range(40))
def test_maps(seed):
    layout = MapLayout(Map("m", capacity=20), KEY)
    region = damaged(layout.size, seed)
    for bucket in range(0, 8 * layout.buckets, 8):
        if random.random() < 0.5:
            place = MAP_HEAD + bucket
            region[place : place + 8] = random.randrange(100).to_bytes(8, "little")
    MapView(region, layout).items()


@pytest.mark.parametrize("seed", range(40))
def test_rings(seed):
    layout = RingLayout(RecordType("r", (Field("a"), Field("t", "text", 5))), 64, rings=4, threads=8)
    region = damaged(layout.size, seed)
    for thread in range(9):
        row = HEAD_BYTES + thread * ROW_BYTES
        ring = layout.rings_offset + random.randrange(5) * layout.ring_bytes + random.choice([0, 0, 8])
        for offset, value in (
            (0, random.choice([50, 64, 65, 1 << 63])),
            (16, ring),
            (64, random.choice([0, 40, 1 << 62])),
        ):
            if random.random() < 0.9:
                region[row + offset : row + offset + 8] = value.to_bytes(8, "little")
    reader = RingReader(region, layout, nanoseconds=1 << 30)
    for final in (False, True, True):
        assert len(reader.drain(final=final)) <= 9 * 64
    assert reader.drops().total >= 0
