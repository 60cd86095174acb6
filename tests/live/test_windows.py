"""Several programs that are measured together have one window, whatever it takes to arm and disarm each."""

import json
import subprocess
import sys

import pytest

from support.driver import build

pytestmark = pytest.mark.live


@pytest.fixture
def ticking():
    """Programs that call a function once a millisecond, by the clock: late ones catch up."""
    program = build("ticks.c", "-O2")
    running = [subprocess.Popen([program]) for _ in range(3)]
    yield [str(each.pid) for each in running]
    for each in running:
        each.kill()
        each.wait()


def measured(pids, *arguments):
    command = [sys.executable, "-m", "anyprobe", *arguments, *(word for pid in pids for word in ("-p", pid))]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


@pytest.mark.parametrize("command", ["count", "time", "time --tree"])
@pytest.mark.sliced(2)
def test_all_have_the_same_window_and_its_length_is_told(ticking, command):
    """Thousands of functions take long to place: the first program would be counted in all the while."""
    document = json.loads(
        measured(ticking, *command.split(), "a.out:tick", "libc:*", "--by", "pid", "--for", "4", "--json")
    )
    window = document["window_s"]
    assert window == document["duration_s"] >= 4
    assert [each["duration_s"] for each in document["processes"]] == [window] * 3
    assert [each["duration_s"] for each in document["targets"]] == [window] * 3
    if command == "count":
        (site,) = [each for each in document["sites"] if each["function"] == "tick"]
        calls, whole = site["by_pid"], site["hits"]
    else:
        (timing,) = [each for each in document["functions"] if each["function"] == "tick"]
        calls, whole = {pid: each["count"] for pid, each in timing["by_pid"].items()}, timing["count"]
    assert set(calls) == set(ticking)
    assert sum(calls.values()) == whole
    for count in calls.values():
        assert count == pytest.approx(1000 * window, rel=0.3), calls


def test_the_heading_says_it(ticking):
    first = measured(ticking, "count", "a.out:tick", "--for", "1").splitlines()[0]
    hits, seconds = first.split(": ")[1].split()[0], float(first.split(" in ")[1].split()[0])
    assert int(hits.replace(",", "")) == pytest.approx(3000 * seconds, rel=0.5)


def test_each_interval_is_of_all(ticking):
    lines = measured(ticking, "count", "a.out:tick", "--every", "0.5", "--for", "2", "--json").splitlines()
    documents = [json.loads(line) for line in lines]
    assert sum(each["interval"]["hits"] for each in documents[:-1]) <= documents[-1]["sites"][0]["hits"]
    assert documents[-1]["sites"][0]["hits"] == pytest.approx(3000 * documents[-1]["window_s"], rel=0.4)


@pytest.mark.parametrize("option", ["--self", "--tree"])
def test_each_process_has_rows_of_its_own_with_self_times(ticking, option):
    arguments = ("time", option, "a.out:tick", "a.out:step", "--by", "pid", "--for", "1")
    document = json.loads(measured(ticking, *arguments, "--json"))
    rows = document["rows"]
    assert {str(each["pid"]) for each in rows} == set(ticking)
    outer = [each for each in rows if each["function"] == "tick"]
    assert len(outer) == 3
    for row in outer:
        assert row["count"] == pytest.approx(1000 * document["window_s"], rel=0.5)
        if option == "--tree":
            (step,) = row["children"]
            assert (step["function"], step["pid"], step["children"]) == ("step", row["pid"], [])
        else:
            (step,) = [each for each in rows if each["function"] == "step" and each["pid"] == row["pid"]]
        assert abs(step["count"] - row["count"]) <= 1
        # what takes nothing but what it calls is its own, to the tick
        assert row["self_ns"] == pytest.approx(row["sum_ns"] - step["sum_ns"], rel=0.05, abs=20_000)
    for name in ("tick", "step"):
        (function,) = [each for each in document["functions"] if each["function"] == name]
        assert sum(each["self_ns"] for each in function["by_pid"].values()) == pytest.approx(function["self_ns"], abs=3)
    lines = measured(ticking, *arguments).splitlines()
    # how far a time may be off has a column only where it is much of it
    heads = [[word for word in line.split() if word != "±"] for line in lines if line.split()[:1] == ["calls"]]
    assert heads[0][:4] == ["calls", "pid", "total", "self"]
    if option == "--tree":
        assert len(heads) == 4
        assert [line.split()[-1] for line in lines if line.startswith("ticks") and "(pid" in line and ":" not in line]
        assert sum("└─ step" in line for line in lines) == 3
