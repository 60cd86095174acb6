"""Programs that forbid their threads the time stamp counter while it is read: they go on, and it is said."""

import json
import shutil

import pytest

from anyprobe.probes.providers.function.threads.clock_watch import FORBIDDEN
from live.test_command_line import anyprobe
from support.driver import build

pytestmark = [pytest.mark.live, pytest.mark.root]
CALLS = 1000
WAYS = ("prctl", "syscall", "strict", "seccomp", "raw")


@pytest.fixture(scope="module")
def program():
    return str(build("forbids_timestamps.c", "-pthread"))


@pytest.fixture(scope="module")
def go_built():
    if not shutil.which("go"):
        pytest.skip("Go is not installed")
    return str(build("go_clock.go"))


@pytest.fixture
def go_program(go_built, monkeypatch):
    """A program that is not scheduled while its thread may not read the counter: Go's scheduler reads it, too."""
    monkeypatch.setenv("GODEBUG", "asyncpreemptoff=1")
    return go_built


def timed(path):
    (function,) = json.loads(path.read_text())["functions"]
    return function["count"], function["nmissed"]


@pytest.mark.parametrize("way", WAYS)
def test_calls_after_that_are_missed(tmp_path, program, way):
    results = tmp_path / "results.json"
    found = anyprobe("time", "a.out:work", "--json", "-o", str(results), "--exit-status", "--", program, way, "main")
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
    assert timed(results) == (CALLS, CALLS)
    assert FORBIDDEN in json.loads(results.read_text())["warnings"]


@pytest.mark.parametrize("options", [["--self"], ["--tree"], ["--clock", "monotonic"], ["--returns", "trampoline"]])
def test_however_it_is_timed(tmp_path, program, options):
    results = tmp_path / "results.json"
    command = ["time", "a.out:work", *options, "--json", "-o", str(results), "--exit-status"]
    found = anyprobe(*command, "--", program, "prctl", "main")
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
    assert timed(results) == (CALLS, CALLS)


@pytest.mark.parametrize("options", [[], ["--self"]])
def test_a_tail_exit_reads_it_no_more(tmp_path, program, options):
    """Not even to time its own search for the call, which has found none: that call was missed."""
    results = tmp_path / "results.json"
    command = ["time", "a.out:ends", "a.out:forbidden_work", *options, "--json", "-o", str(results), "--exit-status"]
    found = anyprobe(*command, "--", program, "prctl", "main")
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
    functions = {each["spec"].split(":")[2]: each for each in json.loads(results.read_text())["functions"]}
    assert (functions["ends"]["count"], functions["ends"]["nmissed"]) == (0, CALLS)


@pytest.mark.parametrize("way", ["prctl", "strict"])
def test_of_one_thread(tmp_path, program, way):
    """The flag is the thread's; no thread of the process is timed from then on."""
    results = tmp_path / "results.json"
    found = anyprobe("time", "a.out:work", "--json", "-o", str(results), "--exit-status", "--", program, way, "thread")
    assert found.returncode == (0 if way == "prctl" else found.returncode)
    count, missed = timed(results)
    assert count == CALLS
    assert missed >= CALLS


@pytest.mark.parametrize("way", ["prctl", "strict"])
def test_of_a_fork_child(tmp_path, program, way):
    results = tmp_path / "results.json"
    found = anyprobe("time", "a.out:work", "--json", "-o", str(results), "--exit-status", "--", program, way, "child")
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
    assert timed(results) == (CALLS, CALLS)


@pytest.mark.parametrize(
    "command",
    [["hist", "a.out:work", "--of", "latency_ns"], ["trace", "a.out:work", "--print", "arg0"]],
    ids=["latency", "trace"],
)
def test_handlers_that_need_the_time_are_missed(program, command):
    found = anyprobe(*command, "--exit-status", "--", program, "prctl", "main")
    assert found.returncode == 0, found.stderr
    assert "done" in found.stdout
    assert FORBIDDEN in " ".join(found.stderr.split())


def test_handlers_that_do_not_need_it_run(tmp_path, program):
    results = tmp_path / "results.json"
    command = ["hist", "a.out:work", "--of", "arg0", "--json", "-o", str(results), "--exit-status"]
    found = anyprobe(*command, "--", program, "prctl", "main")
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
    (made,) = json.loads(results.read_text())["aggregations"].values()
    assert made["count"] == 2 * CALLS


@pytest.mark.parametrize("options", [[], ["--self"], ["--tree"]], ids=["time", "self", "tree"])
def test_goroutines_are_not_timed_after_that(tmp_path, go_program, options):
    results = tmp_path / "results.json"
    command = ["time", "a.out:main.Work", *options, "--json", "-o", str(results), "--exit-status"]
    found = anyprobe(*command, "--", go_program)
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
    assert timed(results) == (CALLS, CALLS)
    assert FORBIDDEN in json.loads(results.read_text())["warnings"]


@pytest.mark.parametrize("value", ["latency_ns", "now"])
def test_handlers_of_go_that_need_the_time_are_missed(tmp_path, go_program, value):
    results = tmp_path / "results.json"
    command = ["hist", "a.out:main.Work", "--of", value, "--json", "-o", str(results), "--exit-status"]
    found = anyprobe(*command, "--", go_program)
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
    document = json.loads(results.read_text())
    (made,) = document["aggregations"].values()
    assert made["count"] == CALLS
    assert FORBIDDEN in document["warnings"]
