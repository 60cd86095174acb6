"""Metrics: the number of a function in an interval, and the numbers of many as a curve."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.core.errors import UsageError
from anyprobe.data.archives.differences import difference
from anyprobe.data.archives.runs import Run, RunInfo, merged
from anyprobe.data.snapshots.cpu_time import CpuTime
from anyprobe.data.snapshots.interval import since
from anyprobe.data.snapshots.metrics import METRICS, series_of, shown_keys
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot
from anyprobe.exporters import report
from anyprobe.exporters.base import Measurement
from anyprobe.reports.metrics import curve

TARGET = TargetInfo(7, "/bin/program")


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


def run_of(metric, *values, key=()):
    """Return a run of one function with a number of calls in each interval of a second."""
    calls, before, series = 0, None, []
    for at, value in enumerate(values, 1):
        calls += value
        after = Snapshot(TARGET, float(at), functions=(timing(count=calls, keys=key),))
        series.append(since(after, before, ""))
        before = after
    return Run(RunInfo("metric", metric=metric), (before,), tuple(series))


def test_runs_of_one_metric_are_compared_and_others_are_not():
    found = difference(run_of("calls", 3, 5), run_of("calls", 4, 8, 0)).as_json()
    assert (found["of"], found["unit"], list(found)[2]) == ("calls", "calls", "metrics")
    assert found["metrics"] == [
        {
            "name": "f", "module": "a.out",
            "before": {"value": 8.0, "min": 3.0, "max": 5.0}, "after": {"value": 12.0, "min": 0.0, "max": 8.0},
        }
    ]  # fmt: skip
    counted = Run(RunInfo("count"), (Snapshot(TARGET, 1.0),))
    for other, what in ((run_of("throughput", 3), "throughput"), (counted, "count")):
        with pytest.raises(UsageError, match=f"calls and {what} are not compared"):
            difference(run_of("calls", 3), other)
    with pytest.raises(UsageError, match="no metric nothing"):
        difference(run_of("nothing", 3), run_of("nothing", 3))


def test_what_is_told_apart_stays_apart_in_sums():
    one, other = run_of("calls", 3, key=(("tid", 7),)), run_of("calls", 5, key=(("tid", 8),))
    (found,) = merged([one, other, one]).snapshots
    assert {each.keys: each.count for each in found.functions} == {(("tid", 7),): 6, (("tid", 8),): 5}
    (both,) = merged([run_of("calls", 3), run_of("calls", 5)]).snapshots[0].functions
    assert both.count == 8


def test_an_interval_without_time_has_no_number():
    run = run_of("calls", 3, 5)
    late = replace(run.series[-1], duration_s=0.0)
    (found,) = series_of(METRICS["calls"], [*run.series, late], run.snapshots[0])
    assert found.values == [3, 5]


def test_a_report_has_the_curve():
    run = run_of("calls", 3, 5, key=(("tid", 7),))
    (table,) = report.document(Measurement(snapshots=run.snapshots, together=run.snapshots[0], run=run))["tables"]
    assert (table["title"], table["columns"][2:4], table["kinds"]) == ("Calls", ("by", "calls"), "tttgggc")
    assert table["rows"] == [["f", "a.out", "tid=7", 8.0, 3.0, 5.0, [1.0, 3.0, 2.0, 5.0]]]
