"""Random functions probed in every way: they come to what they came to before, and hits are proportional to rounds."""

from random import Random

import pytest

import anyprobe
from support.random_faults import FaultingFunction
from support.random_functions import program
from support.random_unwinding import UnwoundFunction

MICROSECONDS = "50"
"""Between two signals."""
LONGER = "200"
"""The same where the stack is looked at."""
LEVELS = {
    "entries": ["a.out:f*"],
    "exits": ["a.out:f*%return"],
    "blocks": ["a.out:f*%block"],
    "instructions": ["a.out:f*:insn"],
    "everything": ["a.out:f*", "a.out:f*%return", "a.out:f*:insn"],
}


def faulting_program(seed):
    return program(seed, kind=FaultingFunction, header="random_faults.h")


def unwound_program(seed):
    return program(seed, kind=UnwoundFunction, header="random_unwinding.h")


def check_level(run_target, text, specs, rounds, microseconds=MICROSECONDS, live=False):
    """Run under signals with probes: each site has to be hit as often in each round as in the first."""
    target = run_target("random_functions.c", microseconds, text=text)
    with anyprobe.attach(target.pid, live=live) as session:
        session.count(*specs)
        assert not any("handler" in warning for warning in session.snapshot().warnings)
        target.go(1)
        first = hits_of(session)
        target.go(rounds)
        assert hits_of(session) == {site: hits * (rounds + 1) for site, hits in first.items()}
    target.go(1)
    return target.finish()


def hits_of(session):
    return {(site.spec, site.address): site.hits for site in session.snapshot().sites if site.armed}


def check_changes(run_target, text, seed, steps, live=None, microseconds=MICROSECONDS, threads=1):
    """Arm and remove at random while the program runs under signals."""
    random = Random(seed)
    target = run_target("random_functions.c", microseconds, str(threads), text=text)
    target.run_freely()
    by_chance = random.random() < 0.3
    with anyprobe.attach(target.pid, live=by_chance if live is None else live) as session:
        probes = []
        for _ in range(steps):
            if probes and random.random() < 0.45:
                session.remove(*probes.pop(random.randrange(len(probes))))
            elif random.random() < 0.2:
                probes.append(session.time(f"a.out:f{random.randrange(12)}"))
            else:
                function = random.choice(("*", random.randrange(12), random.randrange(12)))
                probes.append(session.count(f"a.out:f{function}{random.choice(('', '%return', '%block', ':insn'))}"))
            target.check_alive()
    target.halt()
    target.finish()


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", [2, 17])
def test_results_and_counts_under_signals(run_target, seed, level):
    check_level(run_target, program(seed), LEVELS[level], 400)


@pytest.mark.parametrize("seed", [20, 22])
def test_probes_come_and_go_while_it_runs(run_target, seed):
    check_changes(run_target, program(seed), seed, 12)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", [0, 4])
def test_faults_that_the_program_handles(run_target, seed, level):
    """By a handler that looks up where it is, mends what was wrong, or has the program go on behind the instruction."""
    check_level(run_target, faulting_program(seed), LEVELS[level], 200)


def test_faults_under_live_arming(run_target):
    """The handlers are spliced first and know where the program is: what may fault is displaced as it is in a stop."""
    refused = []
    for live in (False, True):
        target = run_target("random_functions.c", MICROSECONDS, text=faulting_program(0))
        with anyprobe.attach(target.pid, live=live) as session:
            session.count("a.out:f*:insn")
            refused.append(sum(refusal.reason == "may-fault" for _, refusal in session.refused))
            target.go(100)
        target.finish()
    assert refused[1] <= refused[0] + 10


def test_what_is_shown_of_faults_has_room_for_every_change(run_target):
    """Each change makes new patches, and what the handlers see in them has to be said, too."""
    target = run_target("random_functions.c", MICROSECONDS, text=faulting_program(36))
    target.run_freely()
    with anyprobe.attach(target.pid) as session:
        first = session.count("a.out:f*:insn")
        second = session.count("a.out:f*:insn")
        session.remove(*first)
        assert not any("room" in why.detail for _, why in session.refused)
        session.remove(*second)
        assert session.snapshot().warnings == ()
    target.halt()
    target.finish()


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.sliced(2)
def test_probes_come_and_go_among_faults(run_target, live):
    """A thread that has not left a patch when the probes go may fault there, and be shown where it is."""
    for _ in range(1 if live else 4):
        check_changes(run_target, faulting_program(0), 0, 12, live=live)


@pytest.mark.parametrize(("seed", "live"), [(21, True), (1, False)])
def test_probes_come_and_go_in_threads_among_faults(run_target, seed, live):
    """Among them the program's own ``int3``: who has met it has still to come to the site behind it."""
    check_changes(run_target, faulting_program(seed), seed, 12, live=live, threads=4)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
def test_callers_and_their_registers_are_found(run_target, level):
    """By a handler that looks back from wherever it comes, and by what is thrown past the functions."""
    counts = check_level(run_target, unwound_program(3), LEVELS[level], 200, LONGER)
    assert counts.returns["look_back"] > 0.9 * counts.calls["look_back"] > 0  # between two copies it may not be known


@pytest.mark.parametrize(("seed", "live"), [(1, False), (18, True)])
@pytest.mark.sliced(2)
def test_callers_are_found_while_probes_come_and_go(run_target, seed, live):
    check_changes(run_target, unwound_program(seed), seed, 12, live=live, microseconds=LONGER, threads=4)
