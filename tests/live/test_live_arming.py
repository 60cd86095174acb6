"""Acceptance: probes armed and removed while all threads run on, with exact counts and no signal that anybody sees."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import anyprobe
from anyprobe.core.errors import StopTimeout
from anyprobe.splice.apply.live.changes import LiveArming
from anyprobe.splice.apply.live.helper_threads import HelperThreads
from anyprobe.splice.userspace.traps import Traps
from anyprobe.target.process.process import Process
from anyprobe.target.remote import calls as remote
from anyprobe.target.system import membarrier
from live.test_controller_killed import Controller, numbers, one_death, one_failure
from live.test_situations import arm, compare, since, usable
from live.test_traps import catches_trap
from support.driver import Counts, MissingTool, Target, started
from support.image import Image
from support.results import hits, missed, refusals
from support.situations import SITUATIONS, Situation
from support.standing import counted_by_command

FUNCTIONS = ("one_byte", "loaded", "scaled")
STAYING = ("handler-parked-inside",)
"""Situations in which a thread stays in a patch until the program ends."""
WINDOWS = ("loaded",)
"""Functions whose first instruction is long enough for a jump, so that ``jump`` changes several of its bytes."""


def arming(probes: list) -> set[str]:
    """How the places of some probes were armed."""
    return {place.hook.arming for probe in probes for place in probe.all_places}


def test_a_short_jump_keeps_its_springboard_while_others_come_and_go(run_target):
    target = run_target("short_end.c")
    with anyprobe.attach(target.pid, live=True) as session:
        first = [*session.count("a.out:ends%return"), *session.count("a.out:ends%return")]
        assert {site.strategy for site in session.snapshot().sites} == {"short"}
        for _ in range(2):
            entry = session.count("a.out:ends")
            assert arming(entry) == {"live"}
            target.go(10)
            session.remove(*entry)
            target.go(10)
        counts = target.counts
        sites = session.snapshot().sites[: len(first)]
        assert [site.hits for site in sites] == [counts.calls["ends"]] * len(first)
    target.finish()


def test_a_jump_over_several_instructions_is_replaced_in_a_stop(run_target, monkeypatch):
    """Whom an int3 led into the patch of the first one alone would come back between them, where the jump still is."""
    target = run_target("live_arming.c", "8", "plain")
    serialise, plan = membarrier.serialise, LiveArming.plan

    def serialise_late(calls):
        time.sleep(0.05)  # the int3 stands for as long as on a machine that is busy with others
        serialise(calls)

    with anyprobe.attach(target.pid, live=True) as session:
        target.run_freely()
        monkeypatch.setattr(membarrier, "serialise", serialise_late)
        monkeypatch.setattr(LiveArming, "plan", lambda *_: None)  # as if something else needed a stop
        (first,) = session.count("a.out:one_byte")
        assert len(first.places[0].hook.splice.planned.insns) == 2
        monkeypatch.setattr(LiveArming, "plan", plan)
        (second,) = session.count("a.out:one_byte")
        assert len(second.places[0].hook.splice.planned.insns) == 1
        target.halt()
    target.finish()


@pytest.mark.parametrize("late", ["before", "behind"])
def test_a_controller_that_is_kept_from_running(run_target, monkeypatch, late):
    """The thread that made calls for it has ended when it looks, or right behind that: the calls were made."""
    target = run_target("live_arming.c", "8", "plain")
    image = Image.of(target.pid)
    read = remote.read_outcome

    def read_late(content):
        if late == "before" or read(content).done:
            time.sleep(0.1)  # as if stopped by SIGSTOP: longer than the helper thread waits for us
        return read(content)

    with anyprobe.attach(target.pid, live=True) as session:
        target.run_freely()
        with monkeypatch.context() as patching:
            patching.setattr(remote, "read_outcome", read_late)
            armed = session.count(*(f"a.out:{name}" for name in FUNCTIONS))
        assert not session.refused
        assert all(how.startswith(("live", "stop: ")) for how in arming(armed))
        target.halt()
        elsewhere = target.counts.calls["loaded"] - hits(session.snapshot(), "loaded")
        counts = target.go(1000)
        assert counts.calls["loaded"] - hits(session.snapshot(), "loaded") == elsewhere
    image.assert_restored(target.pid)
    target.finish()


@pytest.mark.parametrize(("strategy", "names"), [("auto", FUNCTIONS), ("jump", WINDOWS)])
@pytest.mark.parametrize("kind", ["plain", "handler"])
@pytest.mark.parametrize("threads", [1, 8])
def test_exact_while_others_come_and_go(run_target, threads, kind, strategy, names):
    """One function is counted all the time; others are armed and removed at random while it runs."""
    target = run_target("live_arming.c", str(threads), kind)
    image = Image.of(target.pid)
    chance = random.Random(threads)
    with anyprobe.attach(target.pid, live=True, strategy=strategy) as session:
        first = session.count("a.out:loaded")
        for _ in range(4):
            target.start(2_000_000 // threads)
            while not target.answers():
                probes = session.count(*(f"a.out:{name}" for name in chance.sample(names, len(names))))
                assert arming(probes) == {"live"}
                target.idle(chance.random() * 0.02)
                session.remove(*probes)
            counts = target.wait_done()
        snapshot = session.snapshot()
        assert arming(first) == {"live"}
        assert snapshot.sites[0].hits == counts.calls["loaded"]
        assert missed(snapshot) == 0
    image.assert_restored(target.pid)
    assert catches_trap(target.pid) == (kind == "handler")
    target.go(100)
    target.finish()


@pytest.fixture(params=SITUATIONS, ids=lambda situation: situation.name)
def situated(request: pytest.FixtureRequest) -> Iterator[tuple[Situation, Target]]:
    """A situation and its program."""
    situation = request.param
    try:
        executable = situation.build()
    except MissingTool as tool:
        pytest.skip(f"needs {tool}")
    with started(executable, *situation.arguments) as running:
        yield situation, running


@pytest.mark.sliced(2)
@pytest.mark.parametrize("mode", ["both", "time"])
def test_situations(situated, mode):
    """Armed and removed while the program runs, then armed for good: counts are exact in every situation."""
    situation, target = situated
    target.go(0)
    functions = usable(situation, target)
    image = Image.of(target.pid)
    with anyprobe.attach(target.pid, live=True) as session:
        target.run_freely()
        for _ in range(2):
            session.remove(*arm(session, functions, mode))
            target.check_alive()
        target.halt()
        counts = Counts(dict(target.counts.calls), dict(target.counts.returns), dict(target.counts.tails))
    with anyprobe.attach(target.pid, live=True) as session:
        arm(session, functions, mode)
        counts = since(counts, target.go(situation.rounds))
        compare(situation, mode, counts, session.snapshot(), refusals(session.refused))
    if situation.name not in STAYING:
        image.assert_restored(target.pid)
    target.go(2)
    target.finish()


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    running = Controller("live_controller.py")
    yield running
    running.close()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["kill-before", "kill-after", "fail:EIO", "fail:ESRCH", "short"])
def test_every_call(controller, compiled, request, kind):
    """The controller killed, or failed by the system, at its calls: the program goes on, and all is restored."""
    with started(compiled("live_arming.c"), "3") as target:
        target.go(1)
        assert "untyped" not in controller.ask("session", target.pid, "none")
        image = Image.of(target.pid)
        answer = controller.ask("session", target.pid, "none")
        target.run_freely()
        for number in numbers(answer["classes"], kind, request):
            plan = f"{kind.partition(':')[0]}:{number}" + (f":{kind.partition(':')[2]}" if ":" in kind else "")
            (one_death if kind.startswith("kill") else one_failure)(controller, target, image, plan)
            assert not catches_trap(target.pid)
        target.halt()
        target.finish()


def test_a_program_that_gets_sigtraps_from_elsewhere(run_target):
    """They go to its handler, each once at most, and none of ours does, though some come at the very same moment."""
    target = run_target("trap_storm.c")
    before = dict(target.go(1).calls)
    with anyprobe.attach(target.pid, live=True, strategy="jump") as session:
        for _ in range(3):
            target.start(2)
            while not target.answers():
                probes = session.count("a.out:wide")
                assert arming(probes) == {"live"}
                session.remove(*probes)
            target.wait_done()
        first = target.counts.calls["wide"]
        session.count("a.out:wide")
        counts = target.go(2)
        assert session.snapshot().sites[-1].hits == counts.calls["wide"] - first > before["wide"]
    target.go(1)
    target.finish()


def test_sessions_come_and_go_while_sigtraps_come(run_target):
    """Our handler goes when nobody is in it: the program's SIGTRAPs lead there until the old action is back."""
    target = run_target("trap_storm.c")
    target.run_freely()
    for _ in range(10):
        with anyprobe.attach(target.pid, live=True, strategy="jump") as session:
            assert arming(session.count("a.out:wide")) == {"live"}
        target.check_alive()
    target.halt()
    target.go(1)
    target.finish()


def test_nothing_is_stopped(run_target, monkeypatch):
    """From the first probe to the end of the session, and what is shown as a pause is one thread's."""
    stops = []
    stop = Process.stop

    def watched(process: Process, timeout: float = 2.0) -> object:
        stops.append(process.pid)
        return stop(process, timeout)

    monkeypatch.setattr(Process, "stop", watched)
    target = run_target("live_arming.c", "4", "handler")
    image = Image.of(target.pid)
    target.run_freely()
    with anyprobe.attach(target.pid, live=True) as session:
        probes = session.count("a.out:one_byte", "a.out:loaded", "libc:getenv")
        assert arming(probes) == {"live"}
        session.time("a.out:loaded")
        session.remove(*probes[:2])
        session.enable(probes[1])
        assert session.snapshot().pause_us["arm"] > 0
        assert session.stops_explained == []
        session.detach()
        assert session.snapshot().pause_us["disarm"] > 0
    assert stops == []
    image.assert_restored(target.pid)
    target.halt()
    target.finish()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["libc:*%return", "libstdc++:*%return", "libstdc++:*%call"])
def test_whole_libraries(run_target, what):
    """Thousands of sites in one change: those that take an int3 for a moment are many portions of it.

    The program makes threads all the time, for which the C library blocks all signals: no int3 stands there.
    """
    target = run_target("live_arming.c", "2", options=("-Wl,--no-as-needed", "-lstdc++"))
    image = Image.of(target.pid)
    target.run_freely()
    with anyprobe.attach(target.pid, live=True) as session:
        (probe,) = session.count(what)
        splices = [place.hook.splice for place in probe.all_places if place.hook.arming == "live"]
        assert len(splices) > 1000
        several = sum(splice.planned.written > 1 for splice in splices)
        assert several > 1000 if what.startswith("libstdc++") else several == 0
        session.remove(probe)
        target.check_alive()
    image.assert_restored(target.pid)
    target.halt()
    target.finish()


def test_on_one_processor(run_target):
    """Who waits for the program does not keep it from its processor."""
    allowed = os.sched_getaffinity(0)
    target = run_target("live_arming.c", "2")
    os.sched_setaffinity(0, {min(allowed)})
    try:
        for tid in os.listdir(f"/proc/{target.pid}/task"):
            os.sched_setaffinity(int(tid), {min(allowed)})
        target.run_freely()
        with anyprobe.attach(target.pid, live=True) as session:
            for _ in range(4):
                probes = session.count("a.out:one_byte", "a.out:loaded", "libc:getenv")
                assert arming(probes) == {"live"}
                session.remove(*probes)
    finally:
        os.sched_setaffinity(0, allowed)
    target.halt()
    target.finish()


def test_a_program_that_is_started(compiled):
    """Before it begins there is nobody to disturb; from then on nothing is stopped unless it has to be."""
    reading, writing = os.pipe()
    with (
        open(reading) as stdin,
        open(writing, "w"),
        open(os.devnull, "w") as stdout,
        anyprobe.run([str(compiled("live_arming.c")), "2"], live=True, stdin=stdin, stdout=stdout) as session,
    ):
        first = session.count("a.out:loaded")
        session.resume()
        second = session.count("a.out:scaled", "a.out:one_byte")
        assert arming(first) == {""}
        assert all(how == "live" or how.startswith("stop: ") for how in arming(second))
        session.remove(*first, *second)
        assert not session.exited


# -- what cannot be done so


def reason(session: anyprobe.Session) -> str:
    """The one reason that a session gives for having stopped the program."""
    (said,) = [text for text in session.snapshot().warnings if "in a stop" in text]
    return said


def test_a_thread_with_sigtrap_blocked(compiled):
    """An int3 would kill it: several bytes are changed in a stop, single ones as ever."""

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])

    with started(compiled("live_arming.c"), "2", preexec_fn=block) as target:
        target.run_freely()
        with anyprobe.attach(target.pid, live=True) as session:
            by_one_byte = session.count("libc:getenv")
            assert arming(by_one_byte) == {"live"}
            probes = session.count("a.out:loaded")
            (how,) = arming(probes)
            assert how.startswith("stop: thread ")
            assert "SIGTRAP blocked" in reason(session)
            session.remove(*probes)
        target.halt()
        target.finish()


def test_a_program_that_can_block_signals(run_target):
    """Nobody can tell when it will: no int3 then."""
    target = run_target("all_blocked.c")
    with anyprobe.attach(target.pid, live=True, strategy="jump") as session:
        probes = session.count("a.out:quietly")
        (how,) = arming(probes)
        assert how.startswith("stop: ")
        counts = target.go(5)
        assert hits(session.snapshot(), "quietly") == counts.calls["quietly"]
    target.finish()


def test_a_library_that_can_block_signals_comes_later(run_target, compiled):
    """What was found out when the probes came does not hold when they go."""
    target = run_target("settles_late.c", str(compiled("blocking_library.c", "-shared", "-fPIC")))
    with anyprobe.attach(target.pid, live=True, strategy="jump") as session:
        probes = session.count("a.out:loaded")
        assert arming(probes) == {"live"}
        target.go(2)
        assert hits(session.snapshot(), "loaded") == 2
        session.remove(*probes)
        assert "blocking_library may block SIGTRAP" in reason(session)
        target.go(2)
    target.finish()


def test_a_handler_that_the_program_sets_meanwhile(run_target, monkeypatch):
    """Between the look at its action and the setting of ours: the program's comes back, and no int3 is placed."""
    target = run_target("settles_late.c")
    mapped, rounds = Traps._map, []

    def late(self, *arguments):
        found = mapped(self, *arguments)
        rounds.append(target.go(1))
        return found

    with anyprobe.attach(target.pid, live=True, strategy="jump") as session:
        with monkeypatch.context() as patched:
            patched.setattr(Traps, "_map", late)
            probes = session.count("a.out:loaded")
        assert len(rounds) == 1
        (how,) = arming(probes)
        assert how == "stop: the program has just set another action for SIGTRAP"
        before = target.counts.calls["loaded"]
        target.go(2)
        assert hits(session.snapshot(), "loaded") == target.counts.calls["loaded"] - before == 2
    target.go(1)
    target.finish()


def test_a_library_that_may_be_unloaded(run_target, compiled):
    """It might go between the look at it and the write: a stop."""
    library = compiled("library.c", "-shared", "-fPIC")
    target = run_target("loads_library.c", str(library))
    with anyprobe.attach(target.pid, live=True) as session:
        (how,) = arming(session.count(f"{library.name}:from_library"))
        assert how.endswith("may be unloaded meanwhile")
        counts = target.go(3)
        assert hits(session.snapshot(), "from_library") == counts.calls["from_library"]
    target.finish()


def test_a_springboards_place_taken_meanwhile(run_target, monkeypatch):
    """The program has mapped something where a jump was to lead: its function is refused, the others are armed."""
    mapping, taken = HelperThreads.mapping, []

    @contextmanager
    def late(self: HelperThreads, *, pointers: bool) -> Iterator[object]:
        handlers = session.splicing.view.hooks.values()  # of the C library; their splices come first
        if not taken and all(hook.armed for hook in handlers):
            taken.append(session.splicing.planning.springboards.pages()[-1])
            with self.calls("arm") as remote:
                assert remote.syscall(9, taken[0], 4096, 3, 0x100022, -1, 0) == taken[0]
        with mapping(self, pointers=pointers) as given:
            yield given

    monkeypatch.setattr(HelperThreads, "mapping", late)
    target = run_target("live_arming.c", "2")
    target.run_freely()
    with anyprobe.attach(target.pid, live=True) as session:
        session.count("a.out:loaded", "a.out:scaled", "a.out:one_byte", "libc:getenv")
        ((_, refusal),) = session.refused
        assert refusal.reason == "pun-target-not-mappable"
        assert sum(site.armed for site in session.snapshot().sites) == 3
        with session.process.borrow() as remote:
            remote.syscall(11, taken[0], 4096)
    target.halt()
    target.finish()


@pytest.mark.parametrize("number", [1, 2])
def test_a_barrier_that_cannot_be_had(run_target, monkeypatch, number):
    """What was begun is undone, and the change is made in a stop."""
    serialise, made = membarrier.serialise, []

    def failing(remote: object) -> None:
        made.append(remote)
        if len(made) == number:
            raise StopTimeout("no barrier")
        serialise(remote)

    target = run_target("live_arming.c", "4")
    image = Image.of(target.pid)
    with anyprobe.attach(target.pid, live=True) as session:
        session.count("a.out:scaled")
        monkeypatch.setattr(membarrier, "serialise", failing)
        target.start(400_000)
        (how,) = arming(session.count("a.out:loaded"))
        assert how == "stop: no barrier", session.refused
        before = target.wait_done().calls["loaded"]
        counted = session.snapshot().sites[-1].hits
        counts = target.go(1000)
        assert session.snapshot().sites[-1].hits - counted == counts.calls["loaded"] - before > 0
        assert session.snapshot().sites[0].hits == counts.calls["scaled"]
    image.assert_restored(target.pid)
    target.finish()


# -- children


def test_children_forked_in_the_middle(run_target, monkeypatch):
    """A child that has copied an int3 gets the rest of the change; its calls are counted as any others."""
    serialise = membarrier.serialise

    def slowly(remote: object) -> None:
        time.sleep(0.03)  # children are made meanwhile
        serialise(remote)

    monkeypatch.setattr(membarrier, "serialise", slowly)
    target = run_target("live_arming.c", "2", "forks")
    image = Image.of(target.pid)
    with anyprobe.attach(target.pid, live=True, strategy="jump") as session:
        first = session.count("a.out:scaled")
        for _ in range(5):
            target.start(400_000)
            while not target.answers():
                probes = session.count("a.out:loaded")
                assert arming(probes) == {"live"}
                session.remove(*probes)
            counts = target.wait_done()
        assert arming(first) == {"live"}
        assert session.snapshot().sites[0].hits == counts.calls["scaled"]
        assert counts.calls["completed"] > 0
    image.assert_restored(target.pid)
    target.finish()


# -- the command line


def test_command_line(compiled):
    """``count --live`` counts, says how each probe was armed and how long the one thread stood still."""
    with started(compiled("live_arming.c"), "2") as target:
        counting = ("count", "a.out:one_byte", "a.out:loaded", "--live", "--json")
        document = json.loads(counted_by_command(target, *counting, sites=2))
        assert [site["arming"] for site in document["sites"]] == ["live", "live"]
        assert all(site["hits"] > 0 for site in document["sites"])
        assert document["pause_us"]["arm"] > 0
        target.run_freely()
        explaining = [sys.executable, "-m", "anyprobe", "explain", "a.out:loaded", "--live", "--json"]
        explained = subprocess.run([*explaining, "-p", str(target.pid)], capture_output=True, text=True, timeout=180)
        assert any(note.startswith("live: ") for note in json.loads(explained.stdout)["notes"])
        target.halt()
        target.finish()
