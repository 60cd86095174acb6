"""Whose time it is: self times, and totals in which recursion counts once, against programs' own records."""

import json
import subprocess
import sys

import pytest

import anyprobe
from anyprobe.data.findings.calltree import NOT_KEPT, by_caller
from support.driver import build, wait_until
from support.learning import after_learning, since
from support.results import timing

FUNCTIONS = ("outer", "middle", "deep", "fib")
FIELDS = ("count", "learning", "tail_exits", "unmatched", "nmissed", "in_flight")


def balanced(snapshot):
    """See that all self times are somebody's: their sum is that of calls without a timed caller."""
    nested = [each.nested for each in snapshot.functions]
    own, roots = sum(each.self_ns for each in nested), sum(each.root_ns for each in nested)
    assert own == pytest.approx(roots, rel=1e-9, abs=1e-3)
    return own


@pytest.mark.parametrize("threads", [1, 8])
def test_times_are_those_of_the_program_s_own_record(run_target, threads):
    target = run_target("nested_calls.c", str(threads), options=("-O2", "-pthread"))
    for last in (False, False, False, False, True):
        start = dict(target.counts.calls)
        with anyprobe.attach(target.pid, self_time=True) as session:
            session.time(*(f"a.out:{name}" for name in FUNCTIONS))
            assert not session.refused
            counts = {name: ticks - start.get(name, 0) for name, ticks in target.go(20).calls.items()}
            snapshot = session.snapshot()
        balanced(snapshot)
        for name in FUNCTIONS:
            found = timing(snapshot, name)
            assert (found.count, found.left, found.in_flight) == (counts[name], 0, 0)
        # who is kept from running between the two clocks' looks waits in another function for each
        if last or of_anyprobe(snapshot) == pytest.approx(of_the_program(counts), abs=0.02):
            assert of_anyprobe(snapshot) == pytest.approx(of_the_program(counts), abs=0.02)
            break
    fib = timing(snapshot, "fib")
    assert fib.nested.outermost_ns == pytest.approx(fib.nested.self_ns)
    assert fib.sum_ns > 2 * fib.nested.outermost_ns
    outer = timing(snapshot, "outer")
    assert outer.nested.root_ns == pytest.approx(outer.sum_ns)
    target.finish()


def of_anyprobe(snapshot):
    """Return what part of all time each function has for itself, and of the outermost one's with its callees."""
    nested = {name: timing(snapshot, name).nested for name in FUNCTIONS}
    own = sum(each.nested.self_ns for each in snapshot.functions)
    return {name: each.self_ns / own for name, each in nested.items()} | {
        f"{name}, all": each.outermost_ns / nested["outer"].outermost_ns for name, each in nested.items()
    }


def of_the_program(counts):
    """Return the same by the program's own clock."""
    own = sum(counts[f"{name}_self"] for name in FUNCTIONS)
    return {name: counts[f"{name}_self"] / own for name in FUNCTIONS} | {
        f"{name}, all": counts[f"{name}_all"] / counts["outer_all"] for name in FUNCTIONS
    }


@pytest.mark.parametrize("options", ["1 calm", "8 calm", "1 wild", "8 wild", "4 calm signals", "4 wild signals"])
def test_self_times_of_random_programs_are_all_somebody_s(run_target, options):
    """Tail calls, recursion, exceptions, longjmp, signals: no tick is lost, and none is counted twice."""
    target = run_target("tail_calls.cpp", *options.split(), options=("-O2", "-pthread"))
    names = [f"f{number}" for number in range(8)]
    with anyprobe.attach(target.pid, maxactive=4096, self_time=True) as session:
        session.time(*(f"a.out:{name}" for name in names))
        assert not session.refused
        start, end, before, counts = after_learning(session, target, 40, signals="signals" in options)
    for name in names:
        then, now, own = timing(start, name), timing(end, name), since(before, counts, name)
        account = {field: getattr(now, field) - getattr(then, field) for field in FIELDS}
        account["left"] = now.left - then.left
        told = name, account, own
        assert account["learning"] == account["tail_exits"] == account["unmatched"] == 0, told
        if "signals" not in options:
            seen = account["count"] + account["nmissed"] + account["in_flight"] + account["left"]
            assert seen == own["calls"], told
            assert account["count"] <= own["returns"], told
        if options.split()[1:] == ["calm"]:
            assert (account["count"], account["nmissed"], account["left"]) == (own["calls"], 0, 0), told
    if "wild" not in options and "signals" not in options:
        assert balanced(end) > 0
    target.go(2)
    target.finish()


@pytest.mark.parametrize("options", ["1 calm", "8 calm", "8 wild"])
def test_trees_of_random_programs_have_each_call_once(run_target, options):
    target = run_target("tail_calls.cpp", *options.split(), options=("-O2", "-pthread"))
    names = [f"f{number}" for number in range(8)]
    with anyprobe.attach(target.pid, maxactive=4096, call_tree=True) as session:
        session.time(*(f"a.out:{name}" for name in names))
        target.go(20)
        session.pump(0.05)
        target.go(20)
        snapshot = session.snapshot()
    counts, own = dict.fromkeys([*names, NOT_KEPT], 0), dict.fromkeys([*names, NOT_KEPT], 0.0)
    for each in by_caller(snapshot.tree):
        counts[each.function] += each.count
        own[each.function] += each.self_ns
    assert sum(counts.values()) == sum(each.count for each in snapshot.functions)
    assert sum(own.values()) == pytest.approx(sum(each.nested.self_ns for each in snapshot.functions))
    if not counts[NOT_KEPT]:
        for name in names:
            assert counts[name] == timing(snapshot, name).count
            assert own[name] == pytest.approx(timing(snapshot, name).nested.self_ns)
    target.finish()


def test_the_tree_says_who_has_called_what(run_target):
    target = run_target("nested_calls.c", "4", options=("-O2", "-pthread"))
    with anyprobe.attach(target.pid, call_tree=True) as session:
        session.time(*(f"a.out:{name}" for name in FUNCTIONS))
        counts = target.go(5).calls
        snapshot = session.snapshot()
    (outer,) = snapshot.tree
    assert (outer.function, outer.count) == ("outer", counts["outer"])
    assert {each.function: each.count for each in outer.calls} == {"middle": counts["middle"], "fib": counts["outer"]}
    found = {(each.caller, each.function): each.count for each in by_caller(snapshot.tree)}
    assert found == {
        ("", "outer"): counts["outer"], ("outer", "middle"): counts["middle"], ("middle", "deep"): counts["deep"],
        ("outer", "fib"): counts["outer"], ("fib", "fib"): counts["fib"] - counts["outer"],
    }  # fmt: skip
    target.finish()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tree"], "└─ deep"),
        (["--by", "func(caller)"], "called by"),
        (["--by", "pid", "--tree"], "└─ deep"),
        (["--by", "pid", "--tree"], " pid "),
    ],
)
def test_the_command_shows_trees_and_callers(tmp_path, options, said):
    results, program = tmp_path / "results", str(build("nested_calls.c", "-O2", "-pthread"))
    specs = [f"a.out:{name}" for name in FUNCTIONS]
    for more in ([], ["--json"]):
        command = [sys.executable, "-m", "anyprobe", "time", *specs, *options, *more, "-o", str(results), "--", program]
        subprocess.run(command, input="go 5\nend\n", capture_output=True, text=True, timeout=180, check=True)
        if not more:
            assert said in results.read_text()
    document = json.loads(results.read_text())
    assert document["tree"][0]["function"] == "outer"
    assert {"caller": "middle", "function": "deep"}.items() <= next(
        each for each in document["by_caller"] if each["function"] == "deep"
    ).items()


def test_specs_that_overlap_measure_a_function_once(run_target):
    target = run_target("nested_calls.c", options=("-O2", "-pthread"))
    with anyprobe.attach(target.pid, self_time=True) as session:
        one, other = session.time("a.out:fib", "a.out:*i*")
        (later,) = session.time("a.out:outer")
        counts = target.go(5).calls
        snapshot = session.snapshot().distinct()
    assert {timed.site.name for timed in other.timed} > {"fib", "middle"}
    assert one.timed[0] in other.timed
    assert len(later.timed) == 1
    assert timing(snapshot, "fib").count == counts["fib"]
    balanced(snapshot)
    target.finish()


def test_functions_that_are_not_timed_together_are_told_of(run_target):
    target = run_target("nested_calls.c", options=("-O2", "-pthread"))
    with anyprobe.attach(target.pid, self_time=True) as session:
        session.time("a.out:outer")
        session.time("a.out:middle")
        assert not session.snapshot().warnings
        session.time("libc:str*", "a.out:deep")
        assert [text for text in session.snapshot().warnings if "have memory of their own" in text]
        target.go(2)
    target.finish()


@pytest.mark.parametrize("options", [["--self"], ["--tree"]])
def test_intervals_have_what_was_added_and_come_to_the_whole(tmp_path, options):
    """Of each interval its calls; what stays, the sums, is of the whole time."""
    results, program = tmp_path / "results", str(build("nested_calls.c", "-O2", "-pthread"))
    specs = [f"a.out:{name}" for name in FUNCTIONS]
    command = [sys.executable, "-m", "anyprobe", "time", *specs, *options, "--every", "0.1", "--json"]
    with subprocess.Popen(
        [*command, "-o", str(results), "--", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        for _ in range(4):
            running.stdin.write("go 10\n")
            running.stdin.flush()
            while not running.stdout.readline().startswith("done"):
                pass
            wanted = results.read_text().count("\n")  # a document may be written in several parts
            wait_until(lambda wanted=wanted: results.read_text().count("\n") > wanted, "an interval")
        running.communicate("end\n", timeout=180)
    documents = [json.loads(line) for line in results.read_text().splitlines()]
    *intervals, whole = documents
    assert len(intervals) >= 4
    calls = {each["function"]: each["count"] for each in whole["functions"]}
    added = dict.fromkeys(calls, 0)
    for document in intervals:
        for each in document["functions"]:
            added[each["function"]] += each["interval_count"]
        assert document["interval"]["calls"] == sum(each["interval_count"] for each in document["functions"])
    own = sum(each["self_ns"] for each in whole["functions"])  # in between, callers are still under way
    assert own == pytest.approx(sum(each["root_ns"] for each in whole["functions"]), abs=10)
    assert all(added[name] <= calls[name] for name in calls)
    assert added["outer"] > 0


def test_the_command_shows_them(tmp_path):
    results, program = tmp_path / "results.json", str(build("nested_calls.c", "-O2", "-pthread"))
    options = ("time", "--self", *(f"a.out:{name}" for name in FUNCTIONS), "-o", str(results))

    def run(*more):
        command = [sys.executable, "-m", "anyprobe", *options, *more, "--", program]
        return subprocess.run(command, input="go 5\nend\n", capture_output=True, text=True, timeout=180, check=False)

    assert run("--json").returncode == 0
    found = {each["function"]: each for each in json.loads(results.read_text())["functions"]}
    total = sum(each["self_ns"] for each in found.values())
    assert total == pytest.approx(sum(each["root_ns"] for each in found.values()), abs=8)
    assert found["fib"]["outermost_ns"] < found["fib"]["sum_ns"]
    assert run().returncode == 0
    heading = next(line for line in results.read_text().splitlines() if {"calls", "total"} < set(line.split()))
    assert [word for word in heading.split() if word != "±"][:3] == ["calls", "total", "self"]


@pytest.mark.parametrize(
    ("options", "room"),
    [
        ("", 1024),
        ("", 12),
        ("longjmp", 1024),
        ("onstack", 1024),
        ("onstack longjmp", 1024),
        ("throws", 1024),
        ("throws onstack", 1024),
        ("onstack above", 1024),
        ("throws onstack above", 1024),
    ],
)
def test_signals_may_come_in_while_calls_are_left_behind(run_target, options, room):
    """Their handlers' calls take nothing away, and what was left is taken out once."""
    names = ("deeper", "handled", "plain", "round_of")
    target = run_target("left_among_signals.cpp", *options.split(), options=("-O1", "-pthread"))
    with anyprobe.attach(target.pid, self_time=True, maxactive=room) as session:
        session.time(*(f"a.out:{name}" for name in names))
        assert not session.refused
        own = target.go(100_000)
        snapshot = session.snapshot()
    for name in names:
        found = timing(snapshot, name)
        told = name, found, own.calls[name], own.returns[name]
        assert found.count + found.unmatched == own.returns[name], told
        assert found.count + found.left + found.nmissed == own.calls[name], told
        assert found.in_flight == found.tail_exits == 0, told
        assert found.nmissed == found.unmatched == 0 or room == 12, told
    balanced(snapshot)
    target.finish()


@pytest.mark.parametrize("self_time", [True, False])
def test_a_full_stack_is_looked_through_once_a_call_however_often_signals_come(run_target, self_time):
    """That takes longer than it is until the next signal, and nothing is found: the call is missed, and goes on."""
    room = 200_000
    target = run_target("deep_among_signals.c", str(room + 4), "500", options=("-O1",))
    with anyprobe.attach(target.pid, self_time=self_time, maxactive=room) as session:
        session.time("a.out:deep")
        own = target.go(1)
        found = timing(session.snapshot(), "deep")
    assert (found.count, found.nmissed, found.in_flight, found.unmatched) == (room, 5, 0, 5)
    assert own.returns["deep"] == room + 5
    target.finish()
