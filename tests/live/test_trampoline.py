"""Returns of functions whose exits cannot all be spliced, seen at replaced return addresses: only on demand."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest

import anyprobe
from anyprobe.journal.memfds import is_ours
from anyprobe.probes.providers.function.outside import leftover
from anyprobe.target.system.procfs import read_mappings
from live.test_controller_killed import Controller
from support.driver import TARGETS, build, started, wait_until
from support.image import Image
from support.results import hits, refusals, sites_of, timing
from support.standing import counted_by_command

NAMES = "simple deep leaping tailing signalled forking switching parked threaded exiting"
FUNCTIONS = tuple(NAMES.split())
FORKED = {"simple", "deep", "forking"}
RETURNS = [f"a.out:{function}%return" for function in FUNCTIONS]


@pytest.fixture(params=[(), ("-no-pie",)], ids=["pie", "non-pie"])
def target(request):
    with started(build("trampolines.c", *request.param)) as running:
        yield running


@pytest.fixture
def staying():
    with started(build("trampolines.c"), "stays") as running:
        yield running


def ours(pid):
    return [mapping for mapping in read_mappings(pid) if is_ours(mapping)]


def test_by_default_such_functions_are_refused_with_a_hint(target):
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:simple%return")
        session.time("a.out:simple")
        assert all(
            why.detail.endswith("--returns trampoline would see it at a replaced return address")
            for _, why in session.refused
        )
        assert len({spec for spec, _ in session.refused}) == 2
        assert session.explain("a.out:simple%return").notes[-1].startswith("trampoline: --returns trampoline would")
        assert not any("trampoline" in note for note in session.explain("a.out:simple").notes)
        assert session.snapshot().sites == session.snapshot().functions == ()
        target.go(3)
    target.finish()


def test_every_return_is_counted(target):
    target.go(1)
    before = Image.of(target.pid)
    start = dict(target.counts.returns)
    with anyprobe.attach(target.pid, returns="trampoline") as session:
        session.count(*RETURNS)
        assert session.refused == []
        counts = target.go(60)
        snapshot = session.snapshot()
    for function in FUNCTIONS:
        assert hits(snapshot, function, "return") == counts.returns[function] - start[function], function
        assert {site.exit_kind for site in sites_of(snapshot, function, "return")} == {"trampoline"}
    assert snapshot.nmissed == 0
    assert session.warnings == []
    before.assert_restored(target.pid)
    target.go(5)
    target.finish()


def test_every_call_is_timed_but_those_of_fork_children(target):
    target.go(1)
    start = dict(target.counts.returns)
    with anyprobe.attach(target.pid, returns="trampoline") as session:
        session.time(*(f"a.out:{function}" for function in FUNCTIONS))
        assert session.refused == []
        counts = target.go(30)
        snapshot = session.snapshot()
    for function in FUNCTIONS:
        record, returns = timing(snapshot, function), counts.returns[function] - start[function]
        assert record.exit_kind == "trampoline"
        assert record.as_json()["exit_kind"] == "trampoline"
        if function == "switching":  # it comes back on another thread
            assert (record.count, record.unmatched) == (0, returns)
        elif function == "exiting":
            assert (record.count, record.unmatched, returns) == (0, 0, 0)
        elif function in FORKED:
            assert 0 < record.count <= returns
            assert record.count + record.nmissed in (returns, returns - (function == "forking") * record.count)
        else:
            assert (record.count, record.nmissed, record.unmatched) == (returns, 0, 0)
    target.finish()


def test_counted_and_timed_at_once_with_entries(target):
    target.go(1)
    start = dict(target.counts.returns), dict(target.counts.calls)
    with anyprobe.attach(target.pid, returns="trampoline") as session:
        session.count(*RETURNS)
        session.time(*(f"a.out:{function}" for function in FUNCTIONS))
        session.count(*(f"a.out:{function}" for function in FUNCTIONS))
        assert session.refused == []
        counts = target.go(30)
        snapshot = session.snapshot()
    for function in FUNCTIONS:
        assert hits(snapshot, function, "return") == counts.returns[function] - start[0][function]
        assert hits(snapshot, function) == counts.calls[function] - start[1][function]
    assert timing(snapshot, "threaded").count == counts.returns["threaded"] - start[0]["threaded"]
    target.finish()


def test_armed_removed_and_detached_at_random_moments(target):
    rng = random.Random(3)
    target.go(1)
    before = Image.of(target.pid)
    target.run_freely()
    for _ in range(12):
        with anyprobe.attach(target.pid, returns="trampoline") as session:
            first = session.count(*RETURNS)
            target.idle(rng.uniform(0, 0.02))
            session.time("a.out:deep", "a.out:threaded", "a.out:forking")
            session.remove(*rng.sample(first, 4))
            target.idle(rng.uniform(0, 0.02))
            session.enable(*first)
            target.idle(rng.uniform(0, 0.02))
        wait_until(lambda: detached(target.pid), "nothing of ours is left")
    target.halt()
    before.assert_restored(target.pid)
    target.finish()


def detached(pid):
    """Remove what was not quiet at the session's end; return whether nothing is left."""
    if ours(pid):
        leftover.remove(pid)
    return not ours(pid)


def test_calls_that_go_on_after_the_session_come_back(staying):
    """A thread and a fork child are inside: their frames get the true address back."""
    start = dict(staying.go(2).returns)
    before = Image.of(staying.pid)
    with anyprobe.attach(staying.pid, returns="trampoline") as session:
        session.count("a.out:staying%return", "a.out:simple%return")
        session.time("a.out:staying")
        staying.go(1)
        child = session.snapshot()
        assert hits(child, "staying", "return") == 0
        (forked,) = children(staying.pid)
    assert session.warnings == []
    assert not ours(staying.pid)
    assert not ours(forked)
    staying.go(1)  # checks that both came back right
    before.assert_restored(staying.pid)
    assert staying.counts.returns["staying"] == start["staying"] + 1
    staying.finish()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as listed:
        found = [int(word) for word in listed.read().split()]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as listed:
            found += [int(word) for word in listed.read().split()]
    return sorted(set(found))


HOLDER = """
import sys, time, anyprobe
session = anyprobe.attach(int(sys.argv[1]), returns="trampoline")
session.count(*sys.argv[2:])
session.time("a.out:simple")
print("armed", flush=True)
time.sleep(60)
"""


def abandoned(pid, *specs):
    """Have a controller arm probes and kill it."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(pid), *specs], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "armed\n"
    return holder


def test_detach_after_the_controllers_death(staying):
    staying.go(2)
    before = Image.of(staying.pid)
    holder = abandoned(staying.pid, "a.out:staying%return")
    staying.go(1)
    holder.send_signal(signal.SIGKILL)
    holder.wait(180)
    holder.stdout.close()
    (forked,) = children(staying.pid)
    detach = [sys.executable, "-m", "anyprobe", "detach", "-p", str(staying.pid), "--json"]
    outcome = subprocess.run(detach, capture_output=True, text=True, timeout=180, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert not ours(staying.pid) + ours(forked)
    staying.go(1)
    before.assert_restored(staying.pid)
    staying.finish()


def test_the_controller_dies_while_calls_go_on(target):
    target.go(1)
    start = dict(target.counts.returns)
    holder = abandoned(target.pid, *RETURNS)
    target.go(5)
    holder.send_signal(signal.SIGKILL)
    holder.wait(180)
    holder.stdout.close()
    target.go(20)
    with anyprobe.attach(target.pid, returns="trampoline") as session:  # removes what is left
        session.count(*RETURNS)
        start = dict(target.counts.returns)
        target.go(5)
        snapshot = session.snapshot()
    assert hits(snapshot, "threaded", "return") == target.counts.returns["threaded"] - start["threaded"]
    target.finish()


@pytest.mark.sliced(2)
def test_controllers_that_die_or_fail_anywhere(target):
    """Some moments at random, most of them while detaching, when words on stacks are being put back."""
    rng = random.Random(5)
    target.go(1)
    before = Image.of(target.pid)
    controller = Controller("trampoline_controller.py")
    target.run_freely()
    try:
        calls = controller.ask("session", target.pid, "none")["calls"]
        for kind in ("kill-before", "kill-after", "fail", "short") * 5:
            at = rng.randrange(calls // 2, calls) if rng.random() < 0.7 else rng.randrange(1, calls)
            plan = f"{kind}:{at}:EIO" if kind == "fail" else f"{kind}:{at}"
            answer = controller.ask("session", target.pid, plan)
            assert "untyped" not in answer, (plan, answer)
            target.idle(0.003)
            target.check_alive()
            wait_until(lambda: detached(target.pid), f"nothing of ours is left after {plan}")
    finally:
        controller.close()
    target.halt()
    before.assert_restored(target.pid)
    target.finish()


def test_where_exceptions_may_pass_return_addresses_stay():
    """The library alone is enough: what is thrown may pass through any function."""
    with started(build("trampolines.c", "-Wl,--no-as-needed", "-lstdc++")) as target:
        with anyprobe.attach(target.pid, returns="trampoline") as session:
            session.count(*RETURNS)
            session.time("a.out:deep")
            assert set(refusals(session.refused).values()) == {"return-address-must-stay"}
            assert "exceptions may pass: libstdc++" in session.refused[0][1].detail
            target.go(3)
        target.finish()


PERSONAL = """
asm(FUNCTION(personal) ".cfi_personality 0x1b,personal\\nret\\n" END(personal));
"""
COLLECTOR = """
const char *collector(void) { return "CAMLRUNPARAM"; }
"""


@pytest.mark.parametrize("more", [PERSONAL, COLLECTOR], ids=["unwinding", "frame-tables"])
def test_where_code_looks_for_frames_return_addresses_stay(more):
    """A personality without a table is how LuaJIT's errors come through; OCaml's collector knows return addresses."""
    source = (TARGETS / "trampolines.c").read_text() + more
    with started(build("trampolines.c", "-Wl,--export-dynamic", text=source)) as target:
        with anyprobe.attach(target.pid, returns="trampoline") as session:
            session.count("a.out:simple%return")
            assert set(refusals(session.refused).values()) == {"return-address-must-stay"}
            target.go(1)
        target.finish()


def test_what_can_be_seen_at_exits_is(run_target):
    target = run_target("recursion.c")
    with anyprobe.attach(target.pid, returns="trampoline") as session:
        session.count("a.out:descend%return")
        session.time("a.out:descend")
        target.go(3)
        snapshot = session.snapshot()
        assert {site.exit_kind for site in snapshot.sites} <= {"ret", "tail"}
        assert timing(snapshot, "descend").exit_kind is None
    target.finish()


@pytest.mark.sliced(2)
def test_all_of_the_c_library(target):
    """Functions that look at their return address, or that have no unwind entry, are refused; the rest must work."""
    with anyprobe.attach(target.pid, strategy="punned", returns="trampoline") as session:
        session.count("libc:*%return")
        served = [s for s in session.snapshot().sites if s.exit_kind == "trampoline"]
        assert served
        assert not {"setjmp", "vfork", "swapcontext", "dlsym"} & {site.function for site in served}
        target.go(30)
    target.go(2)
    target.finish()


def test_the_command_line_says_what_was_used(target):
    shown = counted_by_command(target, "count", "a.out:threaded%return", "--json", "--returns", "trampoline")
    (site,) = json.loads(shown)["sites"]
    assert site["exit_kind"] == "trampoline"
    assert site["hits"] > 0
    target.finish()


def test_a_program_that_is_started():
    argv = [str(build("trampolines.c"))]
    with anyprobe.run(argv, returns="trampoline", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as session:
        session.count("a.out:simple%return")
        session.resume()
        assert session.refused == []
        assert {site.exit_kind for site in session.snapshot().sites} == {"trampoline"}
        assert session.wait(180) == 0
