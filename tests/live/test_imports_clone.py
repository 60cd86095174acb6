"""Programs that call ``clone``: they are timed until they make a task that has no thread pointer of its own."""

import json
import threading

import pytest

import anyprobe as api
from anyprobe.core.refusal import Reason
from anyprobe.probes.providers.function.gates.clone_gate import CloneGate
from anyprobe.probes.providers.function.threads.thread_slots import ENDED
from live.test_command_line import anyprobe
from support.driver import build
from support.results import timing

pytestmark = [pytest.mark.live, pytest.mark.root]
CALLS = 1000
HARMLESS = {"never": 3, "fork": 4, "vfork": 4}
"""By the way in which it calls ``clone``, how often a thousand calls are made."""
ENDING = ("memory", "memory-files", "pointer", "no-pointer", "fork-no-pointer")
CALLED_BEFORE = 500
"""Calls in the round in which threads make such tasks, before any has made one."""
BEFORE = 2
"""Thousands of calls before such a task is made."""


@pytest.fixture(scope="module")
def program():
    return str(build("imports_clone.c", "-pthread"))


@pytest.fixture(scope="module")
def static():
    return str(build("imports_clone.c", "-pthread", "-static"))


def measured(tmp_path, *words):
    results = tmp_path / "results.json"
    command, rest = words[: words.index("--")], words[words.index("--") :]
    found = anyprobe(*command, "--json", "-o", str(results), "--exit-status", *rest)
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
    return json.loads(results.read_text())


@pytest.mark.parametrize("way", HARMLESS)
def test_what_does_no_harm_is_timed_to_the_end(tmp_path, program, way):
    found = measured(tmp_path, "time", "a.out:work", "--", program, way)
    (function,) = found["functions"]
    assert (function["count"], function["nmissed"], found["refused"]) == (HARMLESS[way] * CALLS, 0, [])


@pytest.mark.parametrize("way", ENDING)
@pytest.mark.parametrize(
    "options", [[], ["--self"], ["--tree"], ["--clock", "monotonic"], ["--returns", "trampoline"], ["--by", "pid"]]
)
@pytest.mark.sliced(2)
def test_timing_ends_before_a_task_without_a_thread_pointer_of_its_own(tmp_path, program, way, options):
    found = measured(tmp_path, "time", "a.out:work", *options, "--", program, way)
    (function,) = found["functions"]
    assert (function["count"], function["nmissed"]) == (BEFORE * CALLS, 0)
    assert ENDED in found["warnings"]
    assert found["refused"]
    assert {each["reason"] for each in found["refused"]} == {Reason.NO_THREAD_SLOT.value}


@pytest.mark.parametrize("link", [(), ("-static",)], ids=["", "static"])
@pytest.mark.parametrize("way", [*HARMLESS, "memory", "pointer"])
def test_tasks_that_are_made_by_the_system_call_s_number(tmp_path, way, link):
    program = str(build("imports_clone.c", "-pthread", "-DBY_NUMBER", *link))
    found = measured(tmp_path, "time", "a.out:work", "--", program, way)
    (function,) = found["functions"]
    assert (function["count"], function["nmissed"]) == (HARMLESS.get(way, BEFORE) * CALLS, 0)
    assert (ENDED in found.get("warnings", [])) == (way in ENDING)


@pytest.mark.parametrize("way", [*HARMLESS, *ENDING])
def test_counts_go_on(tmp_path, program, way):
    (site,) = measured(tmp_path, "count", "a.out:work", "--", program, way)["sites"]
    assert site["hits"] == HARMLESS.get(way, 4) * CALLS


@pytest.mark.parametrize("way", ["fork", "memory", "pointer"])
def test_handlers_end_there_too(tmp_path, program, way):
    found = measured(tmp_path, "hist", "a.out:work", "--of", "arg0", "--", program, way)
    (made,) = found["aggregations"].values()
    assert made["count"] == HARMLESS.get(way, BEFORE) * CALLS
    assert (ENDED in found.get("warnings", [])) == (way in ENDING)


def test_probes_are_taken_out_of_a_fork_child_that_does_so(tmp_path, program):
    found = measured(tmp_path, "time", "a.out:work", "--", program, "in-child")
    (function,) = found["functions"]
    assert (function["count"], function["nmissed"]) == (4 * CALLS, 0)
    assert any("fork child" in each for each in found["warnings"])


@pytest.mark.parametrize("way", ["never", "memory", "pointer"])
def test_of_a_static_program(tmp_path, static, way):
    found = measured(tmp_path, "time", "a.out:work", "--", static, way)
    (function,) = found["functions"]
    assert (function["count"], function["nmissed"]) == (HARMLESS.get(way, BEFORE) * CALLS, 0)


def test_threads_that_make_tasks_at_once(run_target):
    """What was timed before stays, and counts, placed before or after, are exact."""
    target = run_target("calls_clone.c", "4")
    with api.attach(target.pid) as session:
        (early,) = session.count("a.out:other")
        session.time("a.out:work")
        before = target.go(3).calls["work"]
        assert timing(session.snapshot(), "work").count == before
        assert session.refused == []
        others = target.go(1)
        shared = timing(session.snapshot(), "work")
        assert before + CALLED_BEFORE <= shared.count < others.calls["work"]
        assert ENDED in session.warnings
        assert {why.reason for _, why in session.refused} == {Reason.NO_THREAD_SLOT}
        assert [site.hits for site in session.snapshot().sites if site.function == "other"] == [others.calls["other"]]
        assert early.armed
        (late,) = session.count("a.out:work")
        target.go(2)
        assert late.armed
        assert sum(site.hits for site in session.snapshot().sites if site.armed and site.function == "work") == 200
    target.go(1)
    target.finish()


def test_a_controller_that_dies_there_holds_nothing_up(program, monkeypatch):
    session = api.run([program, "memory"])
    try:
        held = []
        monkeypatch.setattr(CloneGate, "_serve", lambda self, hit: held.append(hit))
        session.time("a.out:work")
        session.resume()
        assert session.wait(180) == 0
        assert held
    finally:
        session.close()


@pytest.mark.parametrize("looks", [0, 1, 2, 4, 8])
def test_a_session_that_ends_meanwhile(run_target, looks):
    """The task waits until nothing is timed any more, and no memory of the session's stays for that."""
    target = run_target("calls_clone.c", "1")
    session = api.attach(target.pid)
    session.time("a.out:work")
    making = threading.Thread(target=target.go, args=(1,))
    making.start()
    for _ in range(looks):  # it ends at several moments, whatever comes first
        session.snapshot()
    session.detach()
    session.close()
    making.join()
    assert set(session.warnings) <= {ENDED}
    target.go(1)
    target.finish()
