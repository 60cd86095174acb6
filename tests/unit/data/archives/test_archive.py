import dataclasses
import json

import pytest

from anyprobe.core.errors import UsageError
from anyprobe.data.aggregates.results import AggregationResult, CellValue, MapResult
from anyprobe.data.archives.archive import document_of, dump, load, value_of
from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.findings.coverage import Coverage, CoveredFunction, CoveredModule
from anyprobe.data.findings.pending import PendingSpec
from anyprobe.data.layouts.keys import Place
from anyprobe.data.snapshots.cpu_time import CpuTime
from anyprobe.data.snapshots.interval import since
from anyprobe.data.snapshots.nested import NestedTiming
from anyprobe.data.snapshots.processes import ProcessCounts, ProcessInfo, TargetInfo, ThreadTimes
from anyprobe.data.snapshots.profile import Profile, ProfiledStack, ProfileFrame
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.data.snapshots.taken import Taken
from support.sample_snapshots import refused, site, snapshot, timing

NESTED = timing(
    "free",
    places=(site("free", 1),),
    left=2,
    nested=NestedTiming(5.0, 4.0, 3.0),
    taken=Taken(1.0, 0.5),
    cpu=CpuTime(1.0, 2.0, 0.5),
)
INFO = ProcessInfo(71, "/usr/bin/a", 2, 1.5)


def full():
    cell = CellValue(3, 6, 1, 3, None, ((1.0, 2.0, 3),))
    covered = CoveredModule("a", "/a", "abc", (CoveredFunction("f", 16, {0: 3, 4: None}, "f.c", 7),), {"f.c": {7: 3}})
    return dataclasses.replace(
        snapshot(sites=(site("malloc", 1), site("free", 2)), functions=(timing(), NESTED), refused=(refused(),)),
        warnings=("w",),
        tree=(
            CallNode("a", "f", 1, 2.0, 1.0, (CallNode("a", "g", 1, 1.0, 1.0), CallNode("a", "h"))),
            CallNode("b", "i"),
        ),
        dropped={"r": {"ring full": 2}},
        missing={"fault": 1},
        others=(TargetInfo(4243, "/usr/bin/perl"),),
        aggregations=(AggregationResult("h", "hist", ("tid", "name"), {(5, "a"): cell}, dropped=2),),
        maps=(MapResult("m", ("at",), {(Place(64, "f+0x4"),): "x", (1,): 2}),),
        pending=(PendingSpec("libz:inflate", "libz"),),
        processes=(ProcessCounts(INFO, {site("free").key: 3}, (timing(),), (CallNode("a", "f"),)),),
        threads=(ThreadTimes(INFO, 72, "work\udcff", (timing(),)),),
        coverage=Coverage((covered,)),
        in_no_row=NestedTiming(1.0, 2.0, 3.0),
        learning=0,
        to_place=3,
        on_processors=True,
    )


def test_a_snapshot_comes_back_as_it_was():
    assert load(dump(full())) == full()
    assert load(dump(full())).merge(full()).aggregation("h")[5, "a"].count == 6
    assert load(dump(full())).as_json() == full().as_json()


def test_each_field_of_the_sample_is_kept():
    """A field that the sample lacks would be lost unseen."""
    without = {"interval", "waited", "stolen", "clock_step_ns", "tail_exits"}
    assert set(document_of(full())) == {each.name for each in dataclasses.fields(Snapshot)} - without


def test_an_interval_comes_back_with_its_time():
    added = since(full(), None, "12:00:00")
    read = load(dump(added))
    assert (read.interval.moment, read.interval.seconds) == ("12:00:00", 5.0)
    assert read.functions == added.functions


def test_addresses_in_keys_are_shown_by_their_names_again():
    ((key, *_), *_) = load(dump(full())).maps[0].entries.items()
    assert (int(key[0]), str(key[0])) == (64, "f+0x4")


def test_trees_may_be_deeper_than_pythons_stack():
    node = CallNode("a", "last", 1, 1.0, 1.0)
    for level in range(5_000):
        node = CallNode("a", "again", level, 1.0, 0.0, (node, CallNode("a", "leaf")))
    rows = document_of(snapshot(tree=(node, CallNode("b", "c"))))["tree"]
    assert document_of(load(dump(snapshot(tree=(node, CallNode("b", "c"))))))["tree"] == rows
    assert len(rows) == 10_002


def test_samples_come_back_as_they_were():
    stack = ProfiledStack((ProfileFrame("a", "f", probed=True), ProfileFrame("", "g", kernel=True)), 3, key=7, pid=7)
    found = Profile((TargetInfo(7, "/bin/a"),), (INFO,), 1.0, 99, (stack,), 1, kernel=True, processor_s=0.5, by="pid")
    assert value_of(Profile, json.loads(json.dumps(document_of(found)))) == found


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format": "anyprobe-snapshot-0"}', dump(full())[:-9], b"[1]"])
def test_what_is_no_snapshot_is_refused(data):
    with pytest.raises(UsageError, match="snapshot"):
        load(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("duration_s", "5"), ("duration_s", None), ("target", []), ("target", {"pid": True, "exe": ""}), ("sites", {}),
        ("sites", [{"spec": 1}]), ("functions", [{}]), ("tree", [{"depth": 1, "module": "", "function": ""}]),
        ("tree", [{"depth": -1, "module": "", "function": ""}]), ("tree", [{"depth": 1 << 60}]), ("warnings", "abc"),
        ("processes", [{"process": 1}]), ("pause_us", {"arm": "x"}), ("aggregations", [{"entries": [[[[]], {}]]}]),
        ("functions", [document_of(timing()) | {"buckets": [1, 2]}]),
    ],
)  # fmt: skip
def test_values_of_another_kind_are_refused(field, value):
    document = json.loads(json.dumps(document_of(full()) | {field: value}))
    with pytest.raises((ValueError, KeyError, TypeError)):
        value_of(Snapshot, document)


def test_fields_that_are_not_known_are_left_out_and_told():
    document = json.loads(json.dumps(document_of(full()) | {"colour": 7}))
    document["target"]["mood"] = "good"
    unknown = set()
    assert value_of(Snapshot, document, unknown) == full()
    assert unknown == {"Snapshot.colour", "TargetInfo.mood"}
