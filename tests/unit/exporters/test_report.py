"""What reports show: the numbers of the JSON document."""

from dataclasses import replace

from anyprobe.data.archives.runs import Run, RunInfo
from anyprobe.data.findings.coverage import Coverage, CoveredFunction, CoveredModule
from anyprobe.data.layouts.histogram import HIGHEST
from anyprobe.data.snapshots.interval import since
from anyprobe.data.snapshots.nested import NestedTiming
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.profile import Profile, ProfiledStack, ProfileFrame
from anyprobe.data.snapshots.taken import Taken
from anyprobe.exporters import report
from anyprobe.exporters.base import Measurement
from support.sample_snapshots import NO_PROCESS, snapshot, timing

NESTED = timing(nested=NestedTiming(9000.0, 14000.0, 9000.0), taken=Taken(1.0, 30.0, 1.0, 40.0, 1.0, 20.0))
BEYOND = timing("long", count=3, buckets=((64.0, 65.0, 2), (float(1 << 44), float(HIGHEST), 1)))


def document(one, run=None):
    return report.document(Measurement(snapshots=[one], together=one, run=run))


def table(found, title):
    (one,) = [each for each in found["tables"] if each["title"] == title]
    return one


def test_numbers_are_those_of_the_json():
    one = snapshot(functions=(NESTED,), sites=())
    (row,) = table(document(one), "Functions")["rows"]
    (known,) = one.as_json()["functions"]
    names = ("count", "outermost_ns", "self_ns", "mean_ns", "min_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns")
    assert row[2:12] == [*(known[name] for name in names), known["outermost_error_ns"]]
    assert row[0] == "malloc *"  # some calls were not timed


def test_of_a_time_below_its_error_it_is_shown_what_it_is_less_than():
    little = timing(
        sum_ns=300.0, nested=NestedTiming(-5.0, 300.0, 300.0), taken=Taken(1.0, 400.0, 1.0, 90.0, 1.0, 500.0)
    )
    (row,) = table(document(snapshot(functions=(little,), sites=())), "Functions")["rows"]
    assert row[3:6] == [[300, 800], [-5, 90], [3.0, 7.0]]


def test_what_was_not_called_or_hit_is_counted_and_has_no_row():
    silent = timing("silent", count=0, tail_exits=0, buckets=())
    found = document(snapshot(functions=(silent, NESTED), target=TargetInfo(7, "/bin/check", called="server")))
    assert [row[0] for row in table(found, "Functions")["rows"]] == ["malloc *"]
    assert table(found, "Functions")["note"] == "1 function was not called; * not all calls of the function were timed"
    assert [row[0] for row in table(found, "Hits")["rows"]] == ["malloc", "free"]
    assert table(found, "Hits")["note"] == "1 place was not hit"
    assert ["target", "/bin/check, called server (pid 7)"] in found["facts"]


def test_histograms_have_all_calls_and_what_lies_beyond():
    (row,) = table(document(snapshot(functions=(BEYOND,), sites=())), "Functions")["rows"]
    assert row[12] == [128.0, 2, float(HIGHEST), 1]


def test_all_that_is_to_be_known_is_a_warning():
    one = replace(snapshot(), dropped={"r": {"ring full": 2}}, missing={"fault": 1}, waited=0.5, warnings=("w",))
    run = Run(RunInfo("script"), warnings=("ends early",))
    assert document(one, run)["warnings"] == [
        "ends early", "w",
        "busy machine: a thread of it waited for a processor 50 % of the time, which is in wall times",
        "r: lost 2 (ring full)", "1 times handlers could not do something: fault",
    ]  # fmt: skip


def test_samples_and_coverage_are_tables():
    stack = ProfiledStack((ProfileFrame("a", "leaf"), ProfileFrame("a", "main")), 3)
    profile = Profile((TargetInfo(NO_PROCESS, "/bin/a"),), (), 1.0, 99, (stack,), 4, kernel=True, processor_s=0.03)
    found = table(document(snapshot(sites=()), Run(RunInfo("profile"), profile=profile)), "Samples")
    assert found["rows"] == [["leaf", "a", 100.0, 100.0, 3], ["main", "a", 0.0, 100.0, 3]]
    assert "4 lost" in found["note"]
    covered = CoveredModule("a", "/a", "abc", (CoveredFunction("f", 16, {0: 3, 4: 0}),), {"f.c": {7: 3, 8: 0, 9: 1}})
    found = table(document(snapshot(sites=(), coverage=Coverage((covered,)))), "Coverage")
    assert found["rows"] == [["a", 2, 3, 1, 2, 1, 1]]


def test_heat_maps_have_all_calls_of_the_intervals():
    one = snapshot(functions=(NESTED, BEYOND), sites=())
    maps = document(one, Run(RunInfo("time"), series=(since(one, None, "1"),) * 3))["maps"]
    assert {each["name"]: sum(each["cells"][2::3]) for each in maps["shown"]} == {"malloc": 300, "long": 9}
    assert maps["left_out"] == 0
