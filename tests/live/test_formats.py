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
        (["time", "libc:malloc", "--format", "speedscope", "--every", "1"], "--every would write several"),
        (
            ["time", "libc:malloc", "--format", "pictures"],
            "'pictures' is none of json, folded, speedscope, flame, pprof",
        ),
    ],
)
def test_what_a_format_cannot_hold_is_refused_before_the_program_runs(words, said, tmp_path):
    done = anyprobe(*words, "--", "touch", tmp_path / "ran")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "ran").exists()
