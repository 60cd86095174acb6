"""What a screen shows of functions: which, in which order, in percent of which time."""

from dataclasses import replace

import pytest

from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.snapshots.nested import NestedTiming
from anyprobe.data.snapshots.taken import Taken
from anyprobe.reports import live
from support.sample_snapshots import site, snapshot, timing


def function(name, count=10, sum_ns=1e6, *, module="a.so.1", armed=True, **more):
    place = replace(site(), armed=armed)
    return timing(
        spec=f"pid:{module}:{name}:entry",
        module=module,
        function=name,
        count=count,
        sum_ns=sum_ns,
        tail_exits=0,
        places=(place,),
        **more,
    )


def of(*functions, **more):
    return snapshot(sites=(), functions=functions, **more)


MANY = of(function("seldom", 1, 5e6), function("often", 1000, 1e6), function("slow", 2, 9e6, module="libb.so"))


@pytest.mark.parametrize(
    ("order", "first"), [("calls", "often"), ("total", "slow"), ("mean", "seldom"), ("name", "often")]
)
def test_functions_are_in_the_order_that_is_asked_for(order, first):
    assert live.chosen(MANY, MANY, order, "")[0].function == first


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("", 3), ("S", 2), ("sel", 1), ("sel*", 1), ("s*", 2), ("libb:", 1), ("a:o*", 1), ("b:o*", 0), ("[", 0)],
)
def test_a_filter_is_a_part_of_the_name_or_a_glob(pattern, found):
    assert len(live.chosen(MANY, MANY, "calls", pattern)) == found


def test_what_was_never_called_has_no_row_unless_it_is_disarmed():
    idle, off, before = function("idle", 0), function("off", 0, armed=False), function("before", 0)
    last = of(idle, off, before)
    found = live.chosen(last, of(idle, off, function("before", 5)), "calls", "")
    assert {each.function for each in found} == {"off", "before"}
    assert live.cells_of(before, 1.0, 0.0) == ["-"] * len(live.COLUMNS)


def test_of_a_mean_below_its_error_it_is_shown_what_it_is_less_than():
    short = function("short", 500_000, 0.0, taken=Taken(sum_ns=9e6, error_ns=9e6))
    cells = dict(zip(live.COLUMNS, live.cells_of(short, 0.5, 0.77), strict=True))
    assert cells["mean"] == "< 18 ns"


def test_a_columns_texts_have_room_in_it():
    widest = function("wide", 99_999_999, 0.0, taken=Taken(sum_ns=1e9, error_ns=1.77e9))
    for heading, text in zip(live.COLUMNS, live.cells_of(widest, 10.0, 0.77), strict=True):
        assert len(text) < live.COLUMNS[heading], heading


def test_shares_are_of_the_time_that_has_passed():
    nested = NestedTiming(self_ns=0.5e9, outermost_ns=1.5e9, root_ns=1.5e9)
    cells = live.cells_of(function("f", 1000, 3e9, nested=nested), 2.0, 0.0)
    assert dict(zip(live.COLUMNS, cells, strict=True)) == {
        "calls/s": "500", "self %": "25.0", "total %": "75.0", "mean": "3.00 ms", "p99": cells[-1],
    }  # fmt: skip


def test_neighbours_are_those_of_all_places_in_the_tree():
    leaf = CallNode("a.so.1", "leaf", 4, 40.0, 40.0)
    tree = (CallNode("a.so.1", "one", 1, 90.0, 50.0, (leaf,)), CallNode("a.so.1", "two", 1, 50.0, 10.0, (leaf,)), leaf)
    together = of(function("leaf"), tree=tree)
    callers, callees = live.neighbours(together, function("leaf"))
    assert {(each.caller, each.count) for each in callers} == {("one", 4), ("two", 4), ("", 4)}
    assert callees == []
    (called,) = live.neighbours(together, function("one"))[1]
    assert live.call_cells(called, 0.0) == ["4", "40.0 ns", "40.0 ns"]


def test_a_curve_is_of_one_function():
    series = [replace(MANY, duration_s=0.5), replace(MANY, duration_s=2.0)]
    assert live.per_second(live.only(series, MANY.functions[1])) == [2000.0, 500.0]
