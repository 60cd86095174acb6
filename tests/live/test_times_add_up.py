"""No time is lost: calls with callers that are known are all timed, and self times are those of the outermost calls."""

import io
import json
import re
import signal
import subprocess
import sys

import pytest
from rich.console import Console

import anyprobe
from anyprobe.reports.calltree import print_by_caller, print_tree
from anyprobe.reports.histogram import print_timings
from anyprobe.target.system import procfs
from support.driver import build, wait_until
from support.results import timing

pytestmark = pytest.mark.live
OWN = ("main", "part", "no_name", "no_library", "spawned", "not_spawned", "forked")
OF_THE_LIBRARY = ("dlsym", "dlopen", "execve", "_exit", "wait4", "posix_spawnp")


def nodes_of(tree):
    for node in tree:
        yield node
        yield from nodes_of(node["calls"])


@pytest.fixture
def caller():
    with subprocess.Popen([build("known_callers.c", "-O2")]) as running:
        yield running
        running.kill()


def test_direct_callers_are_known_at_once(caller):
    """The program calls all the time, also while its functions are spliced."""
    with anyprobe.attach(caller.pid, call_tree=True) as session:
        session.time("a.out:dispatch", "a.out:parse", "a.out:inner")
        wait_until(lambda: timing(session.snapshot(), "dispatch").count > 50, "fifty calls")
        caller.send_signal(signal.SIGSTOP)  # it calls on while one function is read after the other
        wait_until(lambda: procfs.read_status(caller.pid)["State"].startswith("T"), "it is stopped")
        snapshot = session.snapshot()
        caller.send_signal(signal.SIGCONT)
    counts = {name: timing(snapshot, name).count for name in ("dispatch", "parse", "inner")}
    assert timing(snapshot, "parse").learning == 0
    assert all(each.complete for each in snapshot.functions)
    # each call of one makes one of the next; one of each may be under way at both ends
    assert max(counts.values()) - min(counts.values()) <= 2, counts
    (root,) = [node for node in snapshot.tree if node.function == "dispatch"]
    (parse,) = root.calls
    assert [each.function for each in parse.calls] == ["inner"]
    assert root.sum_ns >= parse.sum_ns >= parse.calls[0].sum_ns


def test_rows_say_where_calls_are_missing(run_target):
    """A function that is called by a pointer, and left by a jump: its callers are learnt."""
    target = run_target("return_points.c", options=("-O2",))
    with anyprobe.attach(target.pid, call_tree=True) as session:
        session.time("a.out:by_pointer", "a.out:ends")
        target.go(5)
        session.pump(0.05)
        target.go(5)
        snapshot = session.snapshot()
    assert timing(snapshot, "by_pointer").learning > 0
    document = snapshot.as_json()
    whole = {"by_pointer": False, "ends": True}
    assert {each["function"]: each["complete"] for each in document["functions"]} == whole
    assert {each["function"]: each["complete"] for each in nodes_of(document["tree"])} == whole
    assert {each["function"]: each["complete"] for each in document["by_caller"]} == whole
    for show in (print_timings, print_tree, print_by_caller):
        console = Console(file=io.StringIO(), width=120)
        show(snapshot, console)
        lines = console.file.getvalue().splitlines()
        assert [line.split()[0][-1] == "*" for line in lines if re.search(r"\bby_pointer +", line)][:1] == [True]
        assert [line.split()[0][-1] == "*" for line in lines if re.search(r"\bends +", line)][:1] == [False]
        assert any(line.startswith("* not all calls of the function were timed") for line in lines)


@pytest.mark.parametrize("exits", [False, True], ids=["returns", "exits"])
@pytest.mark.parametrize("name", ["no_name", "no_library", "spawned", "not_spawned", "forked"])
def test_self_times_are_those_of_the_outermost_calls(compiled, tmp_path, name, exits):
    results, times = tmp_path / "results", 3 if name == "spawned" else 200
    program = compiled("left_by_the_library.c", "-O2")
    specs = [*(f"a.out:{each}" for each in OWN), *(f"libc:{each}" for each in OF_THE_LIBRARY)]
    command = [sys.executable, "-m", "anyprobe", "time", "--self", "--tree", *specs, "--no-follow", "--json"]
    command += ["-o", results, "--", program, name, str(times), *["exit"] * exits]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=180, check=False).returncode == 0
    document = json.loads(results.read_text())
    functions = {each["function"]: each for each in document["functions"]}
    own = sum(each["self_ns"] for each in functions.values())
    roots = sum(each["root_ns"] for each in functions.values())
    assert own == pytest.approx(roots, rel=1e-6, abs=20)
    assert functions[name]["count"] == times
    if not exits:
        assert roots == functions["main"]["sum_ns"] == functions["main"]["root_ns"]
    assert functions["part"]["sum_ns"] >= functions[name]["sum_ns"]
    if name == "spawned":  # the children sleep while their parent waits
        assert functions["wait4"]["self_ns"] > times * 150e6
        assert functions["posix_spawnp"]["sum_ns"] < own - functions["wait4"]["self_ns"]
        assert (functions["execve"]["in_flight"], functions["execve"]["left"]) == (0, times)
    # what goes on after that has its callers
    assert not any(node["function"].startswith("(") for node in nodes_of(document["tree"]))
