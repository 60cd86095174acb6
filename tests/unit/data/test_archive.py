import dataclasses

import pytest

from anyprobe.core.errors import UsageError
from anyprobe.data.archive import dump, load
from anyprobe.data.calltree import CallNode
from anyprobe.data.nested import NestedTiming
from anyprobe.data.processes import TargetInfo
from anyprobe.data.results import AggregationResult, CellValue
from support.sample_snapshots import refused, site, snapshot, timing

NESTED = timing("free", places=(site("free", 1),), left=2, nested=NestedTiming(5.0, 4.0, 3.0))


def full():
    cell = CellValue(3, 6, 1, 3, None, ((1.0, 2.0, 3),))
    return dataclasses.replace(
        snapshot(sites=(site("malloc", 1), site("free", 2)), functions=(timing(), NESTED), refused=(refused(),)),
        warnings=("w",),
        tree=(CallNode("a", "f", 1, 2.0, 1.0, (CallNode("a", "g", 1, 1.0, 1.0),)),),
        dropped={"r": {"ring full": 2}},
        missing={"fault": 1},
        others=(TargetInfo(4243, "/usr/bin/perl"),),
        aggregations=(AggregationResult("h", "hist", ("tid", "name"), {(5, "a"): cell}, dropped=2),),
    )


def test_a_snapshot_comes_back_as_it_was():
    assert load(dump(full())) == full()
    assert load(dump(full())).merge(full()).aggregation("h")[5, "a"].count == 6


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format": "anyprobe-snapshot-0"}', dump(full())[:-9], b"[1]"])
def test_what_is_no_snapshot_is_refused(data):
    with pytest.raises(UsageError, match="snapshot"):
        load(data)
