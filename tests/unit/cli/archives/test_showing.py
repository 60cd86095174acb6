"""Archives on the command line: kept, shown, exported, added up and compared."""

import io
import json
from dataclasses import replace
from importlib import import_module

import pytest

from anyprobe.cli import COMMANDS, MODULES, main
from anyprobe.cli.archives import showing
from anyprobe.data.aggregates.results import AggregationResult, CellValue
from anyprobe.data.archives import runs
from anyprobe.data.archives.runs import Run, RunInfo
from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.snapshots.interval import since
from anyprobe.data.snapshots.processes import ProcessCounts, ProcessInfo, TargetInfo
from anyprobe.data.snapshots.profile import Profile, ProfiledStack, ProfileFrame
from anyprobe.data.snapshots.taken import Taken
from anyprobe.exporters.base import Measurement
from anyprobe.exporters.json_document import EXPORTER as JSON
from support.sample_snapshots import NO_PROCESS, site, snapshot, timing

TREE = (CallNode("server", "main", 1, 900.0, 300.0, (CallNode("server", "leaf", 3, 600.0, 600.0),)),)
INFO = RunInfo("time", ("time", "libc:malloc"), machine={"host": "one"}, version="0.1.0")
TIMED = snapshot(sites=(), functions=(timing(), timing("free", count=0, buckets=())), warnings=("look here",))


@pytest.fixture
def kept(tmp_path):
    def keep(*snapshots, name="run", **parts):
        info = replace(INFO, **{key: parts.pop(key) for key in ("command", "by", "tree") if key in parts})
        path = tmp_path / f"{name}.aprobe"
        with path.open("wb") as file:
            runs.write(file, Run(info, snapshots, **parts))
        return str(path)

    return keep


@pytest.fixture
def shown(capsys):
    def show(*arguments, status=0):
        assert main(arguments) == status
        captured = capsys.readouterr()
        return captured.err.strip() if status else captured.out

    return show


def test_what_is_shown_is_what_was_measured(kept, shown):
    found = shown("show", kept(TIMED))
    assert "100 calls of 1 function timed" in found or "100 calls of 2 functions timed" in found
    assert "malloc" in found


def test_json_is_that_of_the_run(kept, shown):
    stream = io.StringIO()
    JSON.write(Measurement(snapshots=[TIMED], together=TIMED, always={"functions": []}), stream)
    assert json.loads(shown("show", kept(TIMED), "--json")) == json.loads(stream.getvalue())


def test_warnings_are_said_again(kept, capsys):
    assert main(["show", kept(TIMED)]) == 0
    assert "look here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "one", "expected"),
    [
        ("count", snapshot(), "12,345"),
        ("hist", snapshot(aggregations=(AggregationResult("sizes", "count", (), {(): CellValue(7)}),)), "sizes"),
        ("script", snapshot(aggregations=(AggregationResult("sizes", "count", (), {(): CellValue(7)}),)), "sizes"),
        ("of the future", snapshot(), "12,345"),
    ],
)
def test_each_command_has_its_own_table(kept, shown, command, one, expected):
    assert expected in shown("show", kept(one, command=command))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_measure_say_what_prints_their_results(command):
    """Archives are shown by it; without it their results would be counts."""
    module = import_module(MODULES.get(command, f"anyprobe.cli.commands.{command}"))
    if command == "metric":  # which needs the intervals, and to know what was measured
        assert callable(showing.renderer(Run(RunInfo(command, metric="calls"))))
    elif any(each.name == "every" for each in module.command.params):
        assert callable(module.renderer(by=None, tree=False))


def test_trees_and_processes_are_told_apart_as_they_were(kept, shown):
    assert "└─ leaf" in shown("show", kept(replace(TIMED, tree=TREE), tree=True))
    process = ProcessCounts(ProcessInfo(71, "/bin/a"), {site("free").key: 7})
    assert "71" in shown("show", kept(snapshot(processes=(process,)), command="count", by="pid"))


def test_trees_have_all_formats_of_trees(kept, shown):
    path = kept(replace(TIMED, tree=TREE), tree=True)
    assert shown("show", path, "--format", "folded") == "main 300\nmain;leaf 600\n"
    assert "is of trees of calls" in shown("show", kept(TIMED, name="flat"), "--format", "flame", status=2)


def test_samples_are_shown_and_exported(kept, shown):
    stack = ProfiledStack((ProfileFrame("a", "leaf"), ProfileFrame("a", "main")), 3)
    found = Profile((TargetInfo(NO_PROCESS, "/bin/a"),), (), 1.0, 99, (stack,), 0, kernel=True, processor_s=0.03)
    path = kept(command="profile", profile=found)
    assert "3 samples in 1.00 s at 99 Hz" in shown("show", path)
    assert shown("show", path, "--format", "folded") == f"main;leaf {round(3e9 / 99)}\n"
    assert json.loads(shown("show", path, "--json")) == json.loads(json.dumps(found.as_json()))
    both = json.loads(shown("merge", path, path, "--json"))
    assert both["samples"] == 6


def test_sums_are_shown_or_kept(kept, shown, tmp_path):
    one, other = kept(TIMED), kept(TIMED, name="other")
    assert json.loads(shown("merge", one, other, "--json"))["functions"][0]["count"] == 200
    kept_sum = str(tmp_path / "sum.aprobe")
    assert shown("merge", one, other, "-o", kept_sum) == ""
    assert runs.read(kept_sum).info.merged == 2
    three = shown("merge", kept_sum, one, "--json")
    assert json.loads(three)["functions"][0]["buckets"] == [[10, 20, 150], [20, 30, 120], [1000, 1010, 30]]


def test_what_has_changed_is_a_table_or_a_document(kept, shown):
    faster = timing(sum_ns=7500.0, buckets=((10.0, 20.0, 100),), taken=Taken(1.0, 100.0))
    before = replace(TIMED, functions=(timing(taken=Taken(1.0, 100.0)), timing("gone")))
    paths = kept(before), kept(replace(TIMED, functions=(faster, timing("new"))), name="after")
    table = shown("diff", *paths)
    (line,) = [line for line in table.splitlines() if "malloc" in line]
    assert line.split()[:5] == ["-50.0", "%", "150", "ns", "→"]
    assert [line.split()[0] for line in table.splitlines() if "libc" in line] == ["gone", "new", "-50.0"]
    document = json.loads(shown("diff", *paths, "--json"))
    (change,) = [each for each in document["functions"] if each["name"] == "malloc"]
    assert (change["before"]["mean_ns"], change["after"]["mean_ns"], change["mean_error_ns"]) == (150, 75, 2)
    assert change["before"]["time_per_s"] == 3000
    assert len(shown("diff", *paths, "--top", "1").splitlines()) == 6


def test_a_change_within_the_error_is_marked(kept, shown):
    one, other = (replace(TIMED, functions=(timing(sum_ns=ns, taken=Taken(1.0, 400.0)),)) for ns in (15000.0, 15500.0))
    table = shown("diff", kept(one), kept(other, name="after"))
    assert "≈ +3.3 %" in table
    assert "less than the error" in table


def test_counts_samples_and_aggregations_have_differences(kept, shown):
    one, other = (
        snapshot(sites=(site("free", hits),), aggregations=(AggregationResult("n", "sum", ("k",), {(7,): cell}),))
        for hits, cell in ((10, CellValue(1, 10)), (30, CellValue(1, 30)))
    )
    table = shown("diff", kept(one, command="script"), kept(other, name="after", command="script"))
    assert "+200.0 %" in table
    assert "n k=7" in table
    profiles = []
    for name, samples in (("run", 1), ("after", 3)):
        stacks = (ProfiledStack((ProfileFrame("a", "f"),), samples), ProfiledStack((ProfileFrame("a", "g"),), 1))
        found = Profile((TargetInfo(NO_PROCESS, "/bin/a"),), (), 1.0, 99, stacks, 0, kernel=True, processor_s=0.03)
        profiles.append(kept(command="profile", profile=found, name=name))
    assert "+25.0  50.0 → 75.0" in shown("diff", *profiles)
    assert "not compared" in shown("diff", profiles[0], kept(TIMED, name="x"), status=2)


def test_trees_of_two_runs_have_both_numbers(kept, shown):
    other = (CallNode("server", "main", 1, 500.0, 300.0, (CallNode("server", "extra", 1, 200.0, 200.0),)),)
    paths = kept(replace(TIMED, tree=TREE)), kept(replace(TIMED, tree=other), name="after")
    assert shown("diff", *paths, "--format", "folded") == "main 300 300\nmain;extra 0 200\nmain;leaf 600 0\n"
    assert "holds one run" in shown("diff", *paths, "--format", "pprof", status=2)


@pytest.mark.parametrize("command", ["show", "merge"])
def test_what_cannot_be_read_is_one_line(shown, tmp_path, command):
    path = tmp_path / "nothing.aprobe"
    assert "No such file" in shown(command, str(path), status=2)
    path.write_bytes(b"{}")
    complaint = shown(command, str(path), status=2)
    assert complaint == f"anyprobe: {path} is no archive of anyprobe; -o RUN.aprobe writes one"


def test_commands_without_results_keep_none(shown):
    complaint = shown("trace", "libc:malloc", "-p", str(NO_PROCESS), "-o", "x.aprobe", status=2)
    assert "anyprobe trace has no results that an archive (.aprobe) could keep" in complaint


def test_heat_maps_are_of_intervals(kept, shown):
    assert "--every SECONDS" in shown("show", kept(TIMED), "--heat", status=2)
    assert "--every SECONDS" in shown("time", "libc:malloc", "-p", str(NO_PROCESS), "--heat", status=2)
    path = kept(TIMED, series=(since(TIMED, None, "12:00:00"),))
    assert "malloc (libc.so.6): 100 calls; a column is 5 s" in shown("show", path, "--heat")
    assert "--format json has none" in shown("show", path, "--heat", "--json", status=2)
