"""Results of real programs that are kept: what is shown later is what was shown then."""

import json
import os
import subprocess
import sys
from functools import reduce

import pytest

from anyprobe.cli import main
from anyprobe.core.errors import UsageError
from anyprobe.data.archives import runs
from anyprobe.data.snapshots.heatmaps import heat_maps
from anyprobe.data.snapshots.snapshot import Snapshot
from support.driver import build, wait_until

pytestmark = pytest.mark.live

PROGRAM = """
#include <unistd.h>
__attribute__((noinline)) long leaf(long n) { for (volatile int i = 0; i < 500; i++); return n + 1; }
__attribute__((noinline)) long work(long n) { return leaf(leaf(n)) + 1; }
int main(int count, char **values) {
    long n = 0;
    if (count > 1) for (int i = 0; i < 1000; i++) n = work(n);
    else for (write(1, "r", 1);; usleep(500)) n = work(n);
    return n == 0;
}
"""
CALLS = {"work": 1000, "leaf": 2000}


@pytest.fixture(scope="module")
def program():
    return str(build("archived.c", "-O1", text=PROGRAM))


def shown(capfd, *arguments):
    capfd.readouterr()
    assert main(arguments) == 0
    return capfd.readouterr().out


def test_each_command_keeps_what_it_would_have_shown(program, tmp_path, capfd):
    of = {
        "count": ["a.out:work", "a.out:leaf"],
        "time": ["a.out:work", "a.out:leaf", "--tree"],
        "hist": ["a.out:leaf", "--of", "arg0 & 7"],
        "cover": ["a.out:work", "a.out:leaf"],
        "locks": [],
        "offcpu": [],
    }
    for command, arguments in of.items():
        path = str(tmp_path / f"{command}.aprobe")
        assert main([command, *arguments, "-o", path, "--quiet", "--", program, "x"]) == 0
        document = json.loads(shown(capfd, "show", path, "--json"))
        assert document["target"]["exe"] == program
        assert shown(capfd, "show", path).strip()
        run = runs.read(path)
        assert (run.info.command, run.info.arguments[-2:]) == (command, (program, "x"))
        assert len(run.builds["libc.so.6" if command in {"locks", "offcpu"} else os.path.basename(program)]) == 40
        match command:
            case "count" | "time":
                assert {each["function"]: each["hits"] for each in document["sites"]} == CALLS
            case "hist":
                assert document["aggregations"]["arg0 & 7"]["count"] == 2000
            case "offcpu":
                assert isinstance(document["stacks"], list)
            case "locks":
                assert all(each["acquisitions"] for each in document["locks"])
            case _:
                assert document["modules"][0]["functions"]["covered"] == 2
    assert "work;leaf " in shown(capfd, "show", str(tmp_path / "time.aprobe"), "--format", "folded")


@pytest.fixture
def running(program):
    with subprocess.Popen([program], stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        yield str(process.pid)
        assert process.poll() is None, "the program died"
        process.kill()


def test_intervals_add_up_to_the_results(running, tmp_path, capfd):
    path = str(tmp_path / "run.aprobe")
    assert main(["time", "a.out:work", "-p", running, "--every", "0.2", "--for", "1.1", "-o", path]) == 0
    run = runs.read(path)
    assert len(run.series) >= 4
    added = reduce(Snapshot.merge, run.series)
    (whole,), (sums,) = run.snapshots[0].functions, added.functions
    assert sums.count == whole.count > 0
    assert sum(count for _, _, count in sums.buckets) == whole.count
    ((drawn,), _) = heat_maps(run.series, columns=80, most_rows=16, most=9)
    assert drawn.total == whole.count
    heat = shown(capfd, "show", path, "--heat")
    assert f"work (archived): {whole.count:,} calls; a column is " in heat
    assert all(each.interval.seconds > 0 for each in run.series)


def test_a_controller_that_is_killed_leaves_its_intervals(running, tmp_path, capfd):
    path = tmp_path / "run.aprobe"

    def has_two():
        try:
            return len(runs.read(str(path)).series) >= 2
        except (OSError, UsageError):
            return False

    command = [sys.executable, "-m", "anyprobe", "count", "a.out:work", "-p", running, "--every", "0.1"]
    with subprocess.Popen([*command, "-o", str(path)]) as controller:
        try:
            wait_until(has_two, "two intervals are written")
        finally:
            controller.kill()
    found = json.loads(shown(capfd, "show", str(path), "--json"))
    assert found["sites"][0]["hits"] > 0
