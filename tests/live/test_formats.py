"""Files for other tools have the times of the documents, of a program whose calls are known."""

import json
import shutil
import subprocess

import pytest

from live.test_command_line import anyprobe
from support.driver import build

pytestmark = pytest.mark.live
PROGRAM = """
#define PLAIN __attribute__((noinline))
PLAIN int leaf(volatile int *n) { int s = 0; for (int i = 0; i < 1000; i++) s += *n; return s; }
PLAIN int middle(volatile int *n) { int s = 0; for (int i = 0; i < 3; i++) s += leaf(n); return s; }
int main(void) {
    volatile int n = 3;
    int s = 0;
    for (int i = 0; i < 100; i++) s += middle(&n) + leaf(&n);
    return s == 1;
}
"""
PATHS = {"main", "main;middle", "main;middle;leaf", "main;leaf"}
SPECS = ["a.out:main", "a.out:middle", "a.out:leaf"]


@pytest.fixture(scope="module")
def program():
    return build("formats.c", "-O1", text=PROGRAM)


def timed(program, *options):
    done = anyprobe("time", *SPECS, *options, "--", program)
    assert done.returncode == 0, done.stderr


def test_stacks_are_those_of_the_program_and_a_file_has_nothing_else(program, tmp_path):
    timed(program, "--format", "folded", "-o", tmp_path / "stacks")
    lines = [line.rpartition(" ") for line in (tmp_path / "stacks").read_text().splitlines()]
    assert {path for path, _, _ in lines} == PATHS
    assert all(int(ns) > 0 for _, _, ns in lines)


def test_a_profile_of_speedscope_has_the_programs_stacks(program, tmp_path):
    timed(program, "--format", "speedscope", "-o", tmp_path / "profile.json")
    document = json.loads((tmp_path / "profile.json").read_text())
    names = [each["name"] for each in document["shared"]["frames"]]
    (profile,) = document["profiles"]
    assert {";".join(names[each] for each in sample) for sample in profile["samples"]} == PATHS
    assert profile["endValue"] == sum(profile["weights"])


def test_a_profile_of_pprof_has_the_programs_stacks(program, tmp_path):
    timed(program, "--format", "pprof", "-o", tmp_path / "profile.pb.gz")
    timed(program, "--format", "folded", "-o", tmp_path / "stacks")
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    command = ["go", "tool", "pprof", "-sample_index=calls", "-traces", tmp_path / "profile.pb.gz"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for each in shown.split("-----------+-------------------------------------------------------")[1:]:
        first, *others = each.split("\n")[1:] if each.strip() else [""]
        if first:
            calls, innermost = first.split()
            found[";".join(reversed([innermost, *(other.strip() for other in others if other.strip())]))] = int(calls)
    assert found == {"main": 1, "main;middle": 100, "main;middle;leaf": 300, "main;leaf": 100}


HITS = {"main;leaf": 100, "main;middle;leaf": 300}
"""What the program does, of its own functions."""


def counted(program, *options):
    done = anyprobe("hist", "a.out:leaf", *options, "--", program)
    assert done.returncode == 0, done.stderr


def own(path):
    return ";".join(each for each in path if each in {"main", "middle", "leaf"})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--by", "stack"), HITS),
        (("--by", "ctx.ustack(9)"), HITS),
        (("--of", "u64(7)", "--as", "sum", "--by", "stack"), {path: 7 * hits for path, hits in HITS.items()}),
    ],
    ids=["hits", "depth", "sums"],
)
def test_what_is_counted_by_stack_is_written_as_stacks(program, tmp_path, words, expected):
    counted(program, *words, "--format", "folded", "-o", tmp_path / "stacks")
    lines = [line.rpartition(" ") for line in (tmp_path / "stacks").read_text().splitlines()]
    assert {own(path.split(";")): int(number) for path, _, number in lines} == expected


def test_a_stack_that_is_cut_is_marked(program, tmp_path):
    counted(program, "--by", "ctx.ustack(2)", "--format", "folded", "-o", tmp_path / "stacks")
    lines = dict(line.rsplit(" ", 1) for line in (tmp_path / "stacks").read_text().splitlines())
    assert lines == {"[truncated];main;leaf": "100", "[truncated];middle;leaf": "300"}


def test_numbers_that_are_no_times_are_not_shown_as_times(program, tmp_path):
    counted(program, "--by", "stack", "--format", "speedscope", "-o", tmp_path / "profile.json")
    (profile,) = json.loads((tmp_path / "profile.json").read_text())["profiles"]
    assert (profile["unit"], profile["endValue"]) == ("none", 400)
    counted(program, "--by", "stack", "--format", "flame", "-o", tmp_path / "flame.html")
    page = (tmp_path / "flame.html").read_text()
    assert "Hits by stack, for" in page
    assert "the width is the number" in page
    if shutil.which("go") is not None:
        counted(program, "--by", "stack", "--format", "pprof", "-o", tmp_path / "profile.pb.gz")
        command = ["go", "tool", "pprof", "-top", tmp_path / "profile.pb.gz"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "Type: hits" in shown
        assert any(line.split()[0] == "400" and line.endswith("leaf") for line in shown.splitlines() if line.strip())


def test_json_by_either_option_is_the_same_document(program, tmp_path):
    for number, words in enumerate((["--json"], ["--format", "json"])):
        timed(program, *words, "-o", tmp_path / str(number))
    one, other = (json.loads((tmp_path / name).read_text()) for name in "01")
    assert one.keys() == other.keys()
    assert [each["count"] for each in one["functions"]] == [each["count"] for each in other["functions"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["count", "libc:malloc", "--format", "folded"], "--format folded is of trees of calls"),
        (["count", "libc:malloc", "--by", "stack"], "by any other key: anyprobe hist SPEC --by stack"),
        (["hist", "libc:malloc", "--by", "tid", "--format", "flame"], "--format flame is of trees of calls"),
        (["hist", "libc:malloc", "--of", "arg0", "--by", "stack", "--format", "flame"], "--format flame is of trees"),
        (["time", "libc:malloc", "--format", "speedscope", "--every", "1"], "--every would write several"),
        (
            ["time", "libc:malloc", "--format", "pictures"],
            "'pictures' is none of json, folded, collapsed-json, speedscope, flame, icicle, pprof",
        ),
    ],
)
def test_what_a_format_cannot_hold_is_refused_before_the_program_runs(words, said, tmp_path):
    done = anyprobe(*words, "--", "touch", tmp_path / "ran")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "ran").exists()
