"""Functions that end in jumps: their calls are timed to where the caller goes on, or it is said which are not."""

import json
import subprocess
import sys

import pytest

import anyprobe
from anyprobe.probes.providers.function.wanted import planning
from support.driver import build, started
from support.image import Image
from support.learning import after_learning, copied, learnt, since
from support.results import timing

ALL = ("ends", "by_pointer", "deep", "joined", "leaps", "ping", "pong")
ROUNDS = 600


@pytest.fixture
def target():
    with started(build("return_points.c", "-O2")) as running:
        yield running


def commanded(*arguments):
    program = [sys.executable, "-m", "anyprobe", *arguments]
    return subprocess.run(program, input="go 40\nend\n", capture_output=True, text=True, timeout=180, check=False)


def compare(timed, own):
    """See that each call of a function is in one account, and none is in two."""
    assert timed.unmatched == timed.tail_exits == timed.learning == 0
    assert timed.count + timed.nmissed + timed.in_flight == own["calls"]
    return timed


def test_calls_are_timed_to_their_very_end_and_include_what_was_jumped_to(target):
    before = copied(target.go(0))
    # as they are measured: what is taken out of single calls is right on average, and these are the shortest ones
    with anyprobe.attach(target.pid, raw=True) as session:
        session.time("a.out:ends", "a.out:goal")
        counts = target.go(ROUNDS)
        ends, goal = (timing(session.snapshot(), name) for name in ("ends", "goal"))
    assert compare(ends, since(before, counts, "ends")).count == 2 * ROUNDS
    assert ends.nmissed == ends.in_flight == 0
    assert ends.min_ns > goal.min_ns > 0


@pytest.mark.parametrize("live", [False, True], ids=["stop", "live"])
def test_all_of_them_at_once_after_learning(target, live):
    image = Image.of(target.pid)
    with anyprobe.attach(target.pid, live=live) as session:
        session.time(*(f"a.out:{name}" for name in ALL))
        learnt(session, target)
        start, before = session.snapshot(), copied(target.counts)
        counts = target.go(ROUNDS)
        end = session.snapshot()
        assert not session.refused
    for name in ALL:
        own, then, now = since(before, counts, name), timing(start, name), timing(end, name)
        account = {
            field: getattr(now, field) - getattr(then, field)
            for field in ("count", "learning", "tail_exits", "unmatched", "nmissed", "in_flight")
        }
        assert account["learning"] == account["tail_exits"] == account["unmatched"] == 0, (name, account)
        assert account["count"] + account["nmissed"] + account["in_flight"] == own["calls"], (name, account)
        if name == "leaps":  # what longjmp has left is no call that came back
            assert account["count"] == own["returns"]
        else:
            assert (account["count"], account["nmissed"]) == (own["calls"], 0), (name, account)
    target.go(3)
    image.assert_restored(target.pid)
    target.finish()


def test_callers_that_are_not_known_are_learnt_and_calls_until_then_are_counted(target):
    before = copied(target.go(0))
    with anyprobe.attach(target.pid) as session:
        (probe,) = session.time("a.out:by_pointer")
        counts = target.go(5)
        assert timing(session.snapshot(), "by_pointer").learning == 5
        session.pump(0.05)
        counts = target.go(ROUNDS)
        found = timing(session.snapshot(), "by_pointer")
        assert (found.learning, found.count) == (5, ROUNDS)
        assert found.sites[0].hits == since(before, counts, "by_pointer")["calls"]
        assert [point.armed for point in probe.timed[0].points.values()] == [True]


def test_calls_from_code_that_the_program_has_made_are_tail_exits(run_target):
    target = run_target("return_points.c", "made", options=("-O2",))
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:from_made", "a.out:ends")
        target.go(5)
        session.pump(0.05)
        before = timing(session.snapshot(), "from_made")
        target.go(ROUNDS)
        found, ends = (timing(session.snapshot(), name) for name in ("from_made", "ends"))
    assert (found.count, found.learning) == (0, before.learning)
    assert found.tail_exits - before.tail_exits == ROUNDS
    assert (found.callers, found.callers_refused) == (0, (("not-code", 1),))
    assert found.as_json()["callers"] == {"watched": 0, "refused": {"not-code": 1}}
    assert (ends.callers, ends.callers_refused) == (2, ())


def test_they_are_taken_out_and_put_in_again_with_the_probe(target):
    image = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        probes = session.time("a.out:ends", "a.out:joined")
        target.go(10)
        session.remove(*probes)
        own = {key: text for key, text in image.text.items() if "libc" not in key[1]}
        now = Image.of(target.pid).text  # libc's keeps what tells of a forbidden clock, as long as the session lasts
        assert {key: now[key] for key in own} == own
        target.go(10)
        session.enable(*probes)
        before = copied(target.counts)
        counts = target.go(ROUNDS)
        found = timing(session.snapshot(), "ends")
    assert found.count == 20 + since(before, counts, "ends")["calls"]
    image.assert_restored(target.pid)


def test_only_exits_are_used_where_that_is_wanted(target):
    before = copied(target.go(0))
    with anyprobe.attach(target.pid, returns="exits") as session:
        (probe,) = session.time("a.out:ends")
        counts = target.go(ROUNDS)
        session.pump(0.05)
        found = timing(session.snapshot(), "ends")
        assert not probe.timed[0].points
    assert (found.count, found.learning, found.tail_exits) == (0, 0, since(before, counts, "ends")["tails"])


@pytest.mark.parametrize(("returns", "said"), [("auto", planning.CALLS_GO_ON), ("exits", planning.CALLS_END)])
def test_explain_says_where_calls_end(target, returns, said):
    target.go(0)
    with anyprobe.attach(target.pid, returns=returns) as session:
        assert said in session.explain("a.out:ends", timed=True).notes
        assert said not in session.explain("a.out:goal", timed=True).notes
        assert said not in session.explain("a.out:ends").notes


def test_armed_and_removed_while_it_runs(target):
    image = Image.of(target.pid)
    target.run_freely()
    with anyprobe.attach(target.pid) as session:
        for _ in range(5):
            probes = session.time(*(f"a.out:{name}" for name in ALL))
            session.pump(0.1)
            session.remove(*probes)
            target.check_alive()
        assert not session.refused
    target.halt()
    image.assert_restored(target.pid)
    target.finish()


def test_the_command_says_which_calls_are_not_timed(tmp_path):
    results, program = tmp_path / "results.json", str(build("return_points.c", "-O2"))
    options = ("time", "a.out:ends", "a.out:by_pointer", "-o", str(results))
    shown = commanded(*options, "--json", "--", program)
    assert shown.returncode == 0, shown.stderr
    ends, by_pointer = sorted(json.loads(results.read_text())["functions"], key=lambda each: each["count"])[::-1]
    assert (ends["count"], ends["learning"], ends["tail_exits"]) == (80, 0, 0)
    assert by_pointer["count"] + by_pointer["learning"] == 40
    assert by_pointer["learning"] > 0
    assert commanded(*options, "--", program).returncode == 0
    assert "not timed, from callers not known yet (learning)" in results.read_text()


@pytest.mark.parametrize("options", ["1 calm", "8 calm", "1 wild", "8 wild", "4 calm signals", "4 wild signals"])
def test_functions_that_jump_to_each_other_at_random(run_target, options):
    """Calls by jumps and by pointers, recursion, exceptions, longjmp, signals: no call is lost, none is made up."""
    target = run_target("tail_calls.cpp", *options.split(), options=("-O2", "-pthread"))
    names = [f"f{number}" for number in range(8)]
    fields = ("count", "learning", "tail_exits", "unmatched", "nmissed", "in_flight")
    with anyprobe.attach(target.pid, maxactive=4096) as session:
        session.time(*(f"a.out:{name}" for name in names))
        assert not session.refused
        start, end, before, counts = after_learning(session, target, 40, signals="signals" in options)
    for name in names:
        then, now, own = timing(start, name), timing(end, name), since(before, counts, name)
        account = {field: getattr(now, field) - getattr(then, field) for field in fields}
        told = name, account, own
        assert account["learning"] == account["tail_exits"] == account["unmatched"] == 0, told
        if "signals" not in options:  # a handler may run while the program says what it has counted
            assert account["count"] + account["nmissed"] + account["in_flight"] == own["calls"], told
            assert account["count"] <= own["returns"], told
        if options.split()[1:] == ["calm"]:
            assert (account["count"], account["nmissed"]) == (own["calls"], 0), told
    target.go(2)
    target.finish()
