"""One address under several names is counted once where what all have counted is added up."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.live
NAMES = ("a.out:work", "a.out:same", "a.out:also", "a.out:chosen", "a.out:plain")


@pytest.mark.parametrize(
    ("command", "heading"),
    [("count", "2,000 hits at 2 sites"), ("time", "2,000 calls of 2 functions timed"),
     ("time --self", "2,000 calls of 2 functions timed"), ("time --tree", "2,000 calls of 2 functions timed"),
     ("count --by pid", "2,000 hits in 1 process"), ("time --by pid", "2,000 calls timed in 1 process"),
     ("time --by tid", "2,000 calls timed in 1 thread"), ("count --when arg0>=0", "2,000 hits at 2 sites")],
)  # fmt: skip
def test_the_heading_has_each_address_once(compiled, tmp_path, command, heading):
    results = tmp_path / "results"
    command = [sys.executable, "-m", "anyprobe", *command.split(), *NAMES, "-o", results, "--"]
    assert subprocess.run([*command, compiled("aliases.c", "-O2")], timeout=180, check=False).returncode == 0
    assert f": {heading} in " in results.read_text()


@pytest.mark.parametrize(
    "specs", [NAMES, ("a.out:work", "a.out:work", "a.out:wor*", "a.out:plain")], ids=["names", "again"]
)
@pytest.mark.parametrize("options", ["--self", "--tree"])
def test_calls_are_in_one_time_under_all_names(compiled, tmp_path, options, specs):
    """None is a call of the function by itself under another name, or of another spec."""
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "anyprobe", "time", options, *specs, "--json", "-o", results, "--"]
    assert subprocess.run([*command, compiled("aliases.c", "-O2")], timeout=180, check=False).returncode == 0
    found = json.loads(results.read_text())
    figures = {
        (each["address"], each["count"], each["raw_sum_ns"], each.get("raw_self_ns")) for each in found["functions"]
    }
    assert len(figures) == 2
    assert all(each["count"] == 1000 for each in found["functions"])
    if options == "--tree":
        assert [node["count"] for node in found["tree"]] == [1000, 1000]


@pytest.mark.parametrize("options", ["--by pid", "--self --by pid", "--self --by tid"])
def test_specs_that_overlap_are_one_row_of_each_process(compiled, tmp_path, options):
    results = tmp_path / "results"
    specs = ("a.out:plain", "a.out:plai*", "a.out:plain")
    command = [sys.executable, "-m", "anyprobe", "time", *options.split(), *specs, "-o", results, "--"]
    assert subprocess.run([*command, compiled("aliases.c", "-O2")], timeout=180, check=False).returncode == 0
    assert sum(line.split()[:1] == ["1,000"] for line in results.read_text().splitlines()) == 1
