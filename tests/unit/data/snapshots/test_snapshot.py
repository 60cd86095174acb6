import dataclasses
import json
import re
from pathlib import Path

import pytest

from anyprobe.data.aggregates.results import AggregationResult, CellValue
from anyprobe.data.archives import archive
from anyprobe.data.snapshots.processes import TargetInfo
from support.sample_snapshots import refused, site, snapshot, timing


def test_the_json_of_count_is_the_documented_one():
    document = json.loads(json.dumps(snapshot().as_json()))
    assert {"target", "duration_s", "pause_us", "setup_s", "sites", "refused"} <= set(document)
    assert document["target"] == {"pid": 4194305, "exe": "/usr/bin/redis-server", "exited": None, "alive": True}
    assert document["pause_us"] == {"arm": 310, "disarm": 120}
    assert set(document["setup_s"]) == {"resolve", "plan", "prepare", "arm"}
    malloc = document["sites"][1]
    documented = {"spec", "module", "function", "offset", "address", "strategy", "armed", "hits", "nmissed"}
    assert documented <= set(malloc)
    assert malloc["hits"] == 12345
    assert set(document["refused"][0]) == {"spec", "address", "reason", "detail"}


def test_what_has_gone_with_its_library_was_not_refused():
    document = snapshot(refused=(refused("lost", "gone"), refused(), refused("late", "gone"))).as_json()
    assert [each["reason"] for each in document["refused"]] == [refused().reason]
    assert [each["spec"] for each in document["gone"]] == [refused(name, "gone").spec for name in ("lost", "late")]
    assert "gone" not in snapshot().as_json()


def test_the_json_of_time_is_the_documented_one():
    document = snapshot(functions=(timing(),)).as_json()["functions"][0]
    documented = "spec count tail_exits unmatched sum_ns min_ns max_ns mean_ns p50_ns p90_ns p99_ns buckets nmissed"
    assert {*documented.split(), "in_flight"} <= set(document)
    assert document["buckets"][0] == [10.0, 20.0, 50]
    assert document["mean_ns"] == 150.0
    assert document["p50_ns"] == 20.0


def test_a_function_without_calls_has_no_durations():
    document = timing(count=0, buckets=(), sum_ns=0.0).as_json()
    assert [document[name] for name in ("min_ns", "max_ns", "mean_ns", "p50_ns")] == [None] * 4


def test_percentiles_stay_between_minimum_and_maximum():
    slow = timing(min_ns=12.0, max_ns=1002.0)
    assert slow.percentile(0.0) == 12.0
    assert slow.percentile(1.0) == 1002.0


def test_snapshots_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot().duration_s = 1.0


def test_merge_adds_the_same_probes_and_keeps_the_others():
    left = snapshot(sites=(site("malloc", 1), site("free", 2)), refused=(refused(),))
    right = snapshot(
        target=TargetInfo(4243, "/usr/bin/redis-server"),
        sites=(site("malloc", 10, address=99, nmissed=1), site("realloc", 5)),
        pause_us={"arm": 900, "disarm": 1},
    )
    both = left.merge(right)
    assert {result.function: result.hits for result in both.sites} == {"malloc": 11, "free": 2, "realloc": 5}
    assert both.target.pid == 4194305
    assert [target.pid for target in both.merge(both).merge(right).others] == [4243]
    assert left.merge(left).others == ()
    assert both.nmissed == 1
    assert both.hits == left.hits + right.hits
    assert both.pause_us == {"arm": 900, "disarm": 120}
    assert len(both.refused) == 3


def test_what_is_known_of_the_clock_and_of_jumps_is_told_and_merged():
    plain = snapshot()
    assert not {"clock_step_ns", "tail_exits"} & plain.as_json().keys()
    left, right = snapshot(clock_step_ns=10.0204, tail_exits=0), snapshot(clock_step_ns=0.4, tail_exits=7)
    assert (left.as_json()["clock_step_ns"], left.as_json()["tail_exits"]) == (10.02, 0)
    both = left.merge(right).merge(plain)
    assert (both.clock_step_ns, both.tail_exits) == (10.0204, 7)
    assert plain.merge(plain).tail_exits is None
    assert archive.load(archive.dump(both)) == both


def test_merge_adds_what_is_known_of_callers():
    one = timing(learning=2, callers=3, callers_refused=(("not-code", 1),))
    other = timing(learning=1, callers=1, callers_refused=(("not-code", 1), ("return-point-joined", 4)))
    both = one.merged(other)
    assert (both.learning, both.callers) == (3, 4)
    assert both.callers_refused == (("not-code", 2), ("return-point-joined", 4))
    assert both.as_json()["callers"] == {"watched": 4, "refused": {"not-code": 2, "return-point-joined": 4}}
    assert "callers" not in timing().as_json()


def test_merge_adds_timings():
    left = snapshot(functions=(timing(count=0, buckets=(), sum_ns=0.0, min_ns=0.0, max_ns=0.0),))
    right = snapshot(functions=(timing(), timing("free")))
    malloc, free = left.merge(right).merge(right).functions
    assert (malloc.count, malloc.min_ns, malloc.max_ns) == (200, 10.0, 1005.0)
    assert malloc.buckets[0] == (10.0, 20.0, 100)
    assert free.count == 200


def test_folded_sites_are_one_for_each_function():
    whole = snapshot(
        sites=(
            site(spec="pid:libc.so.6:f:insn", function="f", kind="insn", offset=4, address=0x1004, hits=3),
            site(
                spec="pid:libc.so.6:f:insn",
                function="f",
                kind="insn",
                offset=0,
                address=0x1000,
                hits=5,
                strategy="punned",
            ),
            site(spec="pid:libc.so.6:g:insn", function="g", kind="insn", offset=0, address=0x2000, hits=7),
            site(spec="pid:libc.so.6:f:entry", function="f", offset=0, address=0x1000, hits=5),
        )
    ).folded()
    assert [(each.function, each.kind, each.offset, each.hits, each.strategy) for each in whole.sites] == [
        ("f", "insn", 0, 8, "mixed"),
        ("g", "insn", 0, 7, "jump"),
        ("f", "entry", 0, 5, "jump"),
    ]
    assert whole.sites[0].address == 0x1000
    assert [each.folded_sites for each in whole.sites] == [2, 1, 0]
    assert [each.as_json().get("folded_sites") for each in whole.sites] == [2, 1, None]


def test_distinct_is_each_probe_once():
    entry, first = site("f", 5, address=0x1000), site("f", 5, address=0x1000, kind="offset")
    twin = timing("twin", address=0x3000)
    whole = snapshot(
        sites=(entry, first, entry, site("g", 1, address=0x2000)),
        functions=(timing("twin", address=0x2000), twin, twin),
        refused=(refused(), refused()),
    ).distinct()
    assert [(each.function, each.kind) for each in whole.sites] == [("f", "entry"), ("f", "offset"), ("g", "entry")]
    assert [each.address for each in whole.functions] == [0x2000, 0x3000]
    assert whole.hits == 11
    assert len(whole.refused) == 1


def test_two_aggregations_of_one_name_are_both_in_the_json():
    first, second = (AggregationResult("x", "sum", (), {(): CellValue(1, total)}) for total in (5, 7))
    found = snapshot(aggregations=(first, second)).as_json()["aggregations"]
    assert {name: each["sum"] for name, each in found.items()} == {"x": 5, "x (2)": 7}


def test_aggregations_are_in_the_json_by_name_and_merged_by_name():
    sizes = AggregationResult("sizes", "hist", (), {(): CellValue(1, 8, 8, 8, None, ((8, 9, 1),))})
    slow = AggregationResult("slow", "sum", ("tid",), {(7,): CellValue(2, 10)}, dropped=3)
    both = snapshot(aggregations=(sizes, slow)).merge(snapshot(aggregations=(slow,)))
    document = json.loads(json.dumps(both.as_json()))
    documented = {"count": 1, "sum": 8, "min": 8, "max": 8, "buckets": [[8, 9, 1]]}
    assert documented.items() <= document["aggregations"]["sizes"].items()
    assert document["aggregations"]["slow"][0]["key"] == [7]
    assert document["aggregations"]["slow"][0]["sum"] == 20
    assert document["dropped"] == {"slow": {"no room": 6}}
    assert both.aggregation("slow")[7].count == 4
    assert "aggregations" not in snapshot().as_json()


def test_losses_of_handlers_are_in_the_json_and_added_up():
    left = snapshot(dropped={"m": {"no room": 1}}, missing={"fault": 2})
    right = snapshot(dropped={"m": {"no room": 2, "contended": 1}, "r": {"ring full": 5}}, missing={"division": 1})
    document = left.merge(right).as_json()
    assert document["dropped"] == {"m": {"no room": 3, "contended": 1}, "r": {"ring full": 5}}
    assert document["missing"] == {"fault": 2, "division": 1}
    assert not {"dropped", "missing"} & snapshot().as_json().keys()


def test_every_key_of_the_json_is_documented():
    """In docs/counting.md, for whoever reads it with a program."""
    documented = set(re.findall(r"`(\w+)`", (Path(__file__).parents[4] / "docs" / "counting.md").read_text()))
    full = site(exit_kind="tail", arming="live", notes=("a note",), folded_sites=2)
    whole = snapshot(sites=(full,), functions=(timing(exit_kind="trampoline"),), warnings=("a warning",)).as_json()
    parts = [whole["target"], whole["pause_us"], whole["setup_s"], whole["refused"][0]]
    keys = {key for part in (whole, *parts, *whole["sites"], *whole["functions"]) for key in part}
    assert keys <= documented
