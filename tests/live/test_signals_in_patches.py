"""Signals and faults in patches: handlers see the program's own pcs and registers, and counts stay exact."""

import dataclasses
from contextlib import contextmanager

import pytest

import anyprobe
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.apply.transaction import Transaction
from anyprobe.splice.plan.kept_plans import KeptPlans
from anyprobe.splice.plan.planner import Planner
from support.changes import patiently
from support.driver import wait_until
from support.image import Image
from support.results import hits, missed, timing

ROUNDS = 3000


def calls_in(target, name, rounds):
    before = target.counts.calls[name]
    return target.go(rounds).calls[name] - before


def hits_of(session):
    return [site.hits for site in session.snapshot().sites]


@contextmanager
def armed_in_passing(target, change, *specs):
    """Arm probes while a program runs, and have it rest."""
    with anyprobe.attach(target.pid) as session:
        target.run_freely()
        probes = patiently(change, session, *specs)
        wait_until(lambda: are_armed(session, probes), "no thread is to return to what is overwritten")
        target.halt()
        yield session


def are_armed(session, probes):
    """Return whether no probe was refused, for a thread in a signal handler, say; else try all of them once more."""
    if session.refused:
        patiently(session.remove, *probes)
        patiently(session.enable, *probes)
    return not session.refused


def test_probes_that_are_refused_at_first_are_armed_by_another_try(run_target, monkeypatch):
    target = run_target("half_done.c")
    returns, tries = Transaction._check_stacks, iter(range(2))

    def returns_twice(self, stop):
        for change in self._changes if next(tries, None) is not None else ():
            self._refuse_return(target.pid, change, change.address)
        returns(self, stop)

    monkeypatch.setattr(Transaction, "_check_stacks", returns_twice)
    with armed_in_passing(target, anyprobe.Session.count, "a.out:fills+0x6", "a.out:fills+0x9") as session:
        assert next(tries, None) is None
        assert [site.armed for site in session.snapshot().sites] == [True, True]
    target.finish()


@pytest.mark.parametrize("spec", ["a.out:profiled", "a.out:profiled%return", "a.out:profiled:insn"])
def test_a_profiler_never_meets_a_pc_of_ours(run_target, spec):
    target = run_target("signal_pc.c")
    with anyprobe.attach(target.pid) as session:
        probes = session.count(spec)
        assert not session.refused
        assert not session.warnings
        target.go(100)
        counts = target.wait_done() if target.answers() else target.counts
        snapshot = session.snapshot()
        assert {site.hits for site in snapshot.sites} == {counts.calls["profiled"]}
        assert probes
    target.finish()


@pytest.mark.parametrize("options", [(), ("-DENDS_IN_A_JUMP",)], ids=["returns", "over in its caller"])
def test_a_profiler_of_a_timed_function(run_target, options):
    """Where its calls end in the caller, signals arrive there too, before and after a call is ended."""
    target = run_target("signal_pc.c", options=options)
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:profiled")
        counts = target.go(200)
        result = timing(session.snapshot(), "profiled")
        assert (result.count, result.tail_exits, result.unmatched, result.nmissed) == (
            counts.calls["profiled"],
            0,
            0,
            0,
        )
    target.finish()


@pytest.mark.parametrize("level", [":insn", ":block"], ids=["insn", "block"])
def test_registers_are_brought_back_to_where_they_were(run_target, level):
    target = run_target("brought_back.c")
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{name}{level}" for name in ("shuffles", "ors", "reads", "stores")))
        counts = target.go(150)
        first = {site.function: site.hits for site in session.snapshot().sites if site.offset == 0}
        assert first == counts.calls
    target.finish()


def test_who_was_stopped_in_a_repeated_instruction_goes_on_with_it(run_target):
    """The signal that is due then does not have him begin anew what he has half done."""
    target = run_target("half_done.c")
    for _ in range(20):
        # one jump, and a counter in front of either
        with armed_in_passing(target, anyprobe.Session.count, "a.out:fills+0x6", "a.out:fills+0x9") as session:
            before = hits_of(session)
            calls = calls_in(target, "fills", 20)
            assert [later - earlier for earlier, later in zip(before, hits_of(session), strict=True)] == [calls, calls]
            assert {site.strategy for site in session.snapshot().sites} == {"jump"}
    target.finish()


def test_who_was_behind_the_entry_when_it_was_armed_has_missed_nothing(run_target):
    """The signal that is due then has him enter, and there is no entry to take back."""
    target = run_target("entered_before.c")
    for _ in range(20):
        with armed_in_passing(target, anyprobe.Session.time, "a.out:fetches") as session:
            before = timing(session.snapshot(), "fetches")
            calls = calls_in(target, "fetches", 2)
            after = timing(session.snapshot(), "fetches")
            assert (before.nmissed, after.nmissed, after.count - before.count) == (0, 0, calls)
    target.finish()


def test_what_the_handler_has_answered_is_not_asked_again(run_target):
    target = run_target("answered.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:posts:insn")
        counts = target.go(300)
        assert {site.hits for site in session.snapshot().sites} == {counts.calls["posts"]}
    target.finish()


def test_a_loop_that_begins_its_function_counts_once_if_a_handler_leaves_it(run_target):
    target = run_target("loop_left.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:loops")
        counts = target.go(500)
        assert hits(session.snapshot(), "loops") == counts.calls["loops"]
    target.finish()


@pytest.mark.parametrize("level", ["", ":insn", ":block"], ids=["entry", "insn", "block"])
def test_what_must_not_run_twice_runs_once(run_target, level):
    """A pass that a signal interrupts is begun again only if that comes to the same."""
    target = run_target("run_twice.c")
    names = ("pushes", "compares", "rotates", "shifts")
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{name}{level}" for name in names))
        assert not session.refused
        counts = target.go(100)
        snapshot = session.snapshot()
        for name in names:
            assert {site.hits for site in snapshot.sites if site.function == name} == {counts.calls[name]}
    target.finish()


@pytest.mark.parametrize(
    "how", ["", "a", "n", "p", "b", "d", "dnab", "t"],
    ids=["plain", "alternate-stack", "nested", "no-siginfo", "backtrace", "called-directly", "all", "threads"],
)  # fmt: skip
def test_handlers_by_timer(run_target, how):
    """The handler is probed itself, and checks pcs, registers and stack where it can know them."""
    target = run_target("timer_storm.c", how)
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:counted", "a.out:pops", "a.out:pops%return", "a.out:on_tick")
        assert not session.refused
        assert not session.warnings
        counts = target.go(ROUNDS)
        snapshot = session.snapshot()
        assert {name: hits(snapshot, name) for name in counts.calls} == counts.calls
        assert hits(snapshot, "pops", "return") == counts.calls["pops"]
        assert missed(snapshot) == 0
    before.assert_restored(target.pid)
    target.finish()


@pytest.mark.parametrize("how", ["j", "jan", "jbn", "jtn"])
def test_handlers_that_never_return(run_target, how):
    """A hit counts if and only if the instruction at the site has run."""
    target = run_target("timer_storm.c", how)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:counted", "a.out:counted%return", "a.out:pops", "a.out:pops%return")
        counts = target.go(ROUNDS)
        snapshot = session.snapshot()
        assert hits(snapshot, "counted") == counts.calls["counted"]
        assert hits(snapshot, "pops", "return") <= counts.calls["pops"] <= hits(snapshot, "pops")
    target.finish()


def test_timed_calls_are_complete_under_signals(run_target):
    target = run_target("timer_storm.c", "d")
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:counted", "a.out:pops", "a.out:on_tick")
        counts = target.go(ROUNDS)
        snapshot = session.snapshot()
        for name in counts.calls:
            result = timing(snapshot, name)
            assert (result.count + result.tail_exits, result.unmatched, result.nmissed) == (counts.calls[name], 0, 0)
    target.finish()


@pytest.mark.parametrize("flags", [(), ("nodefer",)], ids=["plain", "nodefer"])
@pytest.mark.parametrize("names", [("reads",), ("reads", "divides", "undefined", "traps", "writes", "jumps", "inner")])
def test_handled_faults(run_target, flags, names):
    """The handler finds the faulting instruction; a fault to whose address it returns is a new arrival."""
    target = run_target("faults_handled.c", *flags)
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{name}" for name in names))
        assert not session.refused
        counts = target.go(200)
        snapshot = session.snapshot()
        assert {name: hits(snapshot, name) for name in names} == {name: counts.calls[name] for name in names}
    target.finish()


def test_faults_that_are_handled_later(run_target):
    """What was placed for a program that handles no faults is placed anew."""
    target = run_target("faults_handled.c", "late")
    with anyprobe.attach(target.pid) as session:
        names = ("reads", "divides", "inner")
        session.count(*(f"a.out:{name}" for name in names))
        assert displaced(session, "inner") == ["push rbx", "mov rbx, rsi", "mov rax, [rdi]"]
        target.go(1)
        session.snapshot()
        assert displaced(session, "inner") in (["push rbx"], ["push rbx", "mov rbx, rsi"])  # what a pun can reach
        counts = target.go(200)
        snapshot = session.snapshot()
        assert {name: hits(snapshot, name) for name in names} == {name: counts.calls[name] for name in names}
    target.finish()


def displaced(session, function):
    """Return the instructions that the only splice of a function displaces."""
    places = [p for probe in session.probes for p in probe.all_places if p.site.function.name == function]
    (place,) = places
    return [insn.text for insn in place.hook.splice.planned.insns]


def test_faults_in_functions_counted_at_every_instruction(run_target):
    target = run_target("faults_handled.c")
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{name}:insn" for name in ("reads", "divides", "undefined", "writes", "jumps", "inner")))
        target.go(200)
    target.finish()


def test_what_handlers_see_of_long_lines_has_room(run_target):
    """Some hundred sites of which each takes more room to describe than the usual share."""
    target = run_target("faults_handled.c", options=("-Wl,--no-as-needed", "-lstdc++"))
    with anyprobe.attach(target.pid) as session:
        (probe,) = session.count("libstdc++:__cxa_*%insn")
        assert len(probe.places) > 500
        assert not [why.detail for _, why in session.refused if "no room" in why.detail]
        assert not session.warnings
        target.go(2)
    target.finish()


def test_handlers_that_come_later(run_target):
    target = run_target("late_handlers.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:busy")
        pauses = dict(session.splicing.access.pause_us)
        session.snapshot()
        assert session.splicing.access.pause_us == pauses, "nothing is stopped for a program without handlers"
        for _ in range(2):
            target.go(1)
            session.snapshot()
            counts = target.go(100)
        assert not session.warnings
        assert hits(session.snapshot(), "busy") == counts.calls["busy"]
    target.finish()


def test_who_looks_often_borrows_threads_now_and_then(run_target, monkeypatch):
    """Shells set handlers around each command; the first one of a fault would be seen at once."""
    target = run_target("late_handlers.c")
    monkeypatch.setattr("anyprobe.probes.providers.function.handlers.handler_watch._REST", 1000)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:busy")
        hooks = session.splicing.view.hooks
        target.go(1)
        session.host.loop.follow_handlers(often=True)
        (first,) = hooks
        target.go(101)  # another in its stead
        session.host.loop.follow_handlers(often=True)
        assert set(hooks) == {first}
        session.host.loop.follow_handlers()
        assert len(hooks) == 2
        target.go(100)
    target.finish()


def test_a_handler_that_comes_later_is_spliced_before_anything_is_planned_anew(run_target, monkeypatch):
    """That may take a minute where every instruction is probed, in which a fault is not to be taken for another one."""
    target, armed = run_target("late_handlers.c"), []
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:busy")
        view = session.splicing.view
        planned_anew = view.planned_amiss

        def look():
            armed.append([hook.armed for hook in view.hooks.values()])
            return planned_anew()

        monkeypatch.setattr(view, "planned_amiss", look)
        target.go(1)
        session.snapshot()
        assert armed == [[True]]
        target.go(100)
    target.finish()


def test_a_probe_is_rather_lost_than_left_where_it_hides_faults(run_target, monkeypatch):
    target = run_target("counts.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:work%insn")
        view, plan = session.splicing.view, Planner.plan
        first = min(place.want.address for probe in session.probes for place in probe.places)

        def refuse_the_first(planner, function, wants, *kept):
            left = [want for want in wants if want.address != first]
            made = plan(planner, function, left, *kept)
            refused = [(want, Refusal(Reason.MAY_FAULT, first, "made up")) for want in wants if want not in left]
            return dataclasses.replace(made, refused=(*made.refused, *refused))

        monkeypatch.setattr(Planner, "plan", refuse_the_first)
        monkeypatch.setattr(KeptPlans, "plan", lambda _, context, *all: all[-1](context))  # which knows no refusal
        monkeypatch.setattr(view, "_is_amiss", lambda module, state: bool(state.wants))
        session.engine.change(view.planned_amiss())
        monkeypatch.undo()
        snapshot = session.snapshot()
        assert [site.armed for site in snapshot.sites] == [False] + [True] * (len(snapshot.sites) - 1)
        assert [refused.reason for refused in snapshot.refused] == ["may-fault"]
        calls = target.go(2).calls["work"]
        assert session.snapshot().sites[0].hits == 0
        assert calls in {site.hits for site in session.snapshot().sites[1:]}
    target.finish()


def test_a_handler_that_cannot_be_spliced_is_told(run_target, monkeypatch):
    target = run_target("signal_pc.c")
    with anyprobe.attach(target.pid) as session:
        why = Refusal(Reason.NOT_CODE, 0x1234, "made up")
        monkeypatch.setattr(session.splicing.view, "locate", lambda address: why)
        session.count("a.out:profiled")
        assert any("signal handler" in text and "made up" in text for text in session.warnings)
    target.finish()


def test_handlers_are_never_spliced_by_a_trap(run_target):
    """Where traps are demanded, what serves handlers is spliced as ever: they may run with SIGTRAP blocked."""
    target = run_target("timer_storm.c", "")
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count("a.out:counted", "a.out:pops")
        counts = target.go(100)
        snapshot = session.snapshot()
        assert {name: hits(snapshot, name) for name in ("counted", "pops")} == {
            name: counts.calls[name] for name in ("counted", "pops")
        }
        handler = next(iter(session.splicing.view.hooks.values()))
        assert handler.strategy == "jump"
    target.finish()
