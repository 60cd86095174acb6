"""Metrics: the number of a function in an interval, and the numbers of many as a curve."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.data.snapshots.cpu_time import CpuTime
from anyprobe.data.snapshots.interval import since
from anyprobe.data.snapshots.metrics import METRICS, series_of, shown_keys
from anyprobe.data.snapshots.processes import ProcessInfo
from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot
from anyprobe.reports.metrics import curve

TARGET = ProcessInfo(7, "/bin/program")


def timing(**fields):
    return FunctionTiming("a.out:f:entry", "a.out", "f", address=1, **fields)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("calls", 6), ("throughput", 3), ("wall", 5), ("concurrency", 2.5), ("cpu", 1), ("off", 3), ("waiting", 1.5),
    ],
)  # fmt: skip
def test_a_number_is_of_the_calls_of_an_interval_and_of_those_under_way(metric, value):
    cpu = CpuTime(1e9, 3e9, 0.0)
    found = timing(count=6, sum_ns=4e9, running_ns=1e9, cpu=cpu)
    assert METRICS[metric].of(found, 2.0) == pytest.approx(value)
    assert METRICS[metric].of(found, 0.0) is None


def test_parts_of_a_call_are_in_the_intervals_in_which_they_were():
    """One call from 0.5 to 2.5 s: it is there for 0.5, 1, and 0.5 seconds, and no longer when it has ended."""
    ends = [(1, 0, 0.0, 0.5e9), (2, 0, 0.0, 1.5e9), (3, 1, 2e9, 0.0), (4, 1, 2e9, 0.0)]
    before, intervals = None, []
    for seconds, count, sum_ns, running_ns in ends:
        after = Snapshot(TARGET, seconds, functions=(timing(count=count, sum_ns=sum_ns, running_ns=running_ns),))
        intervals.append(since(after, before, ""))
        before = after
    (found,) = series_of(METRICS["concurrency"], intervals, before)
    assert found.points == ((1, 0.5), (2, 1.0), (3, 0.5), (4, 0.0))
    assert found.value == 0.5


CALL = st.tuples(st.floats(0, 10), st.floats(0, 10)).map(sorted)


@given(st.lists(CALL, max_size=8), st.lists(st.floats(0.01, 10), min_size=1, max_size=6, unique=True))
def test_concurrency_by_intervals_is_the_time_of_all_calls_as_far_as_they_are_within(calls, readings):
    before, intervals = None, []
    for moment in sorted(readings):
        ended = [(begin, end) for begin, end in calls if end <= moment]
        ended_ns = sum(end - begin for begin, end in ended) * 1e9
        running_ns = sum(moment - begin for begin, end in calls if begin < moment < end) * 1e9
        found = timing(count=len(ended), sum_ns=ended_ns, running_ns=running_ns)
        after = Snapshot(TARGET, moment, functions=(found,))
        intervals.append(since(after, before, ""))
        before = after
    truth = sum(max(min(end, moment) - begin, 0.0) for begin, end in calls)
    (found,) = series_of(METRICS["concurrency"], intervals, before)
    last, summed = 0.0, 0.0
    for at, value in found.points:
        summed += value * (at - last)
        last = at
    assert summed == pytest.approx(truth, abs=1e-6)
    assert found.value * moment == pytest.approx(truth, abs=1e-6)
    (wall,) = series_of(METRICS["wall"], intervals, before)
    assert sum(wall.values) == pytest.approx(truth, abs=1e-6)


def test_rows_of_one_function_are_told_apart_and_stay_apart_over_intervals():
    rows = [timing(count=n + 1, keys=(("tid", n),)) for n in range(3)]
    rows = tuple(replace(each, address=number) for number, each in enumerate(rows))
    after = Snapshot(TARGET, 1.0, functions=rows)
    found = series_of(METRICS["calls"], [since(after, None, "")], after)
    assert [(each.keys, each.value, each.values) for each in found] == [
        ((("tid", n),), n + 1, [n + 1]) for n in (2, 1, 0)
    ]
    assert shown_keys(found[0].keys) == " tid=2"


def test_numbers_are_a_line_of_dots():
    assert curve([0, 1, 2, 3, 4, 4], 4) == "\u2880\u28e4\u28ff".replace("\u28e4", curve([2, 3], 4))
    assert curve([4, 4], 4) == "\u28ff"
    assert curve([4], 4) == "\u2847"
    assert curve([0, 0], 0) == "\u2800"
    assert len(curve([1.0] * 1000, 1)) == 24
    assert curve([], 0) == ""
