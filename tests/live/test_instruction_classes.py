"""Every class of instructions, probed at the instruction: same results, exact counts, or a refusal by name."""

import os
import random
import re
import signal
from pathlib import Path

import pytest

import anyprobe
from anyprobe.core.refusal import Reason
from support.driver import PATIENCE, wait_until
from support.image import Image
from support.instruction_counts import expected, listing

THREADS = 3
LINKED = {"absolute": ("-no-pie",), "relocatable": ("-fPIE", "-pie")}

UNDISPLACEABLE = {"calls_stack_indexed": "call", "far_return": "ret far", "interrupt_return": "iret"}
"""The instruction of a function that has no displaced form."""


def wrong_counts(session, calls, instructions):
    """Return the probed instructions whose hits are not what the program's own counts say."""
    wrong = []
    for site in session.snapshot().sites:
        times = expected(site.function, instructions[site.function])
        if site.armed and site.hits != calls[site.function] * times[site.offset]:
            text = instructions[site.function][site.offset]
            wrong.append(f"{site.function}+{site.offset:#x} {text}: {site.hits} for {calls[site.function]} calls")
    return wrong


def since(before, after):
    return {name: number - before[name] for name, number in after.items()}


def never_displaced(session, instructions):
    """Assert that only what has no displaced form is refused by that name; return the other refusals."""
    unnamed = []
    for spec, refusal in session.refused:
        name = spec.split(":")[2]
        if refusal.reason is Reason.NO_DISPLACED_FORM:
            assert UNDISPLACEABLE[name] in refusal.detail, refusal
        else:
            unnamed.append((name, refusal))
    return unnamed


@pytest.mark.parametrize("linked", LINKED)
def test_every_instruction_at_once(run_target, linked):
    """All of each function. The program handles faults, so that lines with memory in them do not move as a whole."""
    target = run_target("instruction_classes.c", str(THREADS), options=LINKED[linked])
    instructions = listing(f"/proc/{target.pid}/exe")
    before = dict(target.go(1).calls)
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{name}:insn" for name in sorted(before)))
        calls = since(before, target.go(60).calls)
        wrong = wrong_counts(session, calls, instructions)
        assert not wrong, "\n".join(wrong)
        unnamed = never_displaced(session, instructions)
        assert len(session.refused) - len(unnamed) == len(UNDISPLACEABLE)
        sites = session.snapshot().sites
        assert sum(site.armed for site in sites) > 0.9 * len(sites), unnamed
    target.go(2)
    target.finish()


@pytest.mark.parametrize("linked", LINKED)
def test_every_instruction_alone(run_target, linked):
    """The first of each function, then the second of each, and so on: nearly all can be had."""
    target = run_target("instruction_classes.c", str(THREADS), options=LINKED[linked])
    instructions = listing(f"/proc/{target.pid}/exe")
    before = dict(target.go(1).calls)
    unnamed = set()
    with anyprobe.attach(target.pid) as session:
        places = {name: list(instructions[name]) for name in before}
        ends = {name: last_instruction(instructions[name]) for name in before}
        for number in range(max(ends.values())):
            specs = [f"a.out:{n}+{at[number]:#x}" for n, at in places.items() if number < ends[n]]
            probes = session.count(*specs)
            before = dict(target.counts.calls)
            calls = since(before, target.go(5).calls)
            wrong = wrong_counts(session, calls, instructions)
            assert not wrong, "\n".join(wrong)
            unnamed.update(never_displaced(session, instructions))
            session.remove(*probes)
        assert len(unnamed) < 4, unnamed
    target.go(2)
    target.finish()


def last_instruction(lines):
    """Return the number of instructions without the padding that objdump shows behind them."""
    number = len(lines)
    texts = list(lines.values())
    while re.match(r"(data16 )*(cs )?nop|xchg +ax,ax", texts[number - 1]):
        number -= 1
    return number


@pytest.mark.parametrize("linked", LINKED)
def test_instructions_come_and_go_while_the_program_runs(run_target, linked):
    """Random functions' instructions, armed and removed again: results stay what they are."""
    target = run_target("instruction_classes.c", str(THREADS), options=LINKED[linked])
    chance = random.Random(7)
    functions = sorted(target.go(1).calls)
    target.run_freely()
    with anyprobe.attach(target.pid) as session:
        held = []
        for _ in range(15):
            held.append(session.count(*(f"a.out:{name}:insn" for name in chance.sample(functions, 8))))
            target.check_alive()
            if len(held) > 4:
                session.remove(*held.pop(chance.randrange(len(held))))
        target.check_alive()
    target.halt()
    target.go(2)
    target.finish()


# -- system calls that are restarted


RESTARTED = ("reads", "waits", "old_waits", "sleeps", "polls")


def armed_offsets(session, function):
    return {site.offset: site.hits for site in session.snapshot().sites if site.function == function and site.armed}


def stop_and_continue(target, times):
    """Stop the whole program again and again: the kernel restarts what it interrupts, no handler runs."""
    for _ in range(times):
        os.kill(target.pid, signal.SIGSTOP)
        wait_until(lambda: " T " in Path(f"/proc/{target.pid}/stat").read_text(), "the program stops")
        os.kill(target.pid, signal.SIGCONT)
        target.idle(0.003)


def test_a_restarted_call_is_one_arrival(run_target):
    """Reads, waits and sleeps interrupted over and over, in displaced copies of their instructions."""
    target = run_target("restarted_calls.c", options=("-no-pie",))
    before = dict(target.go(1).calls)
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{name}:insn" for name in before))
        assert not session.refused
        target.start(20)
        stop_and_continue(target, 30)
        calls = since(before, target.wait_done().calls)
        assert set(calls) <= set(RESTARTED)
        for name, number in calls.items():
            assert set(armed_offsets(session, name).values()) == {number}, name
    target.go(2)
    target.finish()


def test_probes_go_while_their_calls_are_asleep(run_target):
    """Threads asleep in displaced system calls are moved back to the program's own, and woken and restarted there."""
    target = run_target("restarted_calls.c", "by halves", options=("-no-pie",))
    target.go(2)
    before = Image.of(target.pid)
    names = [name for name in RESTARTED if name in target.counts.calls]
    with anyprobe.attach(target.pid) as session:
        for _ in range(10):
            probes = session.count(*(f"a.out:{name}:insn" for name in names))
            assert not session.refused
            target.go(1)
            session.remove(*probes)
            target.go(1)
        session.detach()
    before.assert_restored(target.pid)
    target.finish()


def test_probes_come_while_their_calls_are_asleep(run_target):
    """What a thread is asleep in was arrived at before; what follows it is counted if it could be spliced."""
    target = run_target("restarted_calls.c", "by halves", options=("-no-pie",))
    target.go(2)
    names = [name for name in ("reads", "waits", "old_waits") if name in target.counts.calls]
    instructions = listing(f"/proc/{target.pid}/exe")
    with anyprobe.attach(target.pid) as session:
        for _ in range(10):
            target.go(1)
            probes = session.count(*(f"a.out:{name}:insn" for name in names))
            assert {refusal.reason for _, refusal in session.refused} <= {Reason.THREAD_IN_SYSCALL}
            before = {name: armed_offsets(session, name) for name in names}
            target.go(1)
            for name in names:
                (call,) = (at for at, text in instructions[name].items() if re.match("syscall|int ", text))
                grown = {at: hits - before[name][at] for at, hits in armed_offsets(session, name).items()}
                assert grown == {at: int(at > call) for at in grown}, name
            session.remove(*probes)
    target.finish()


# -- instructions that fault

FATAL = {
    "divides": signal.SIGFPE,
    "overflows": signal.SIGFPE,
    "loads": signal.SIGSEGV,
    "unaligned": signal.SIGSEGV,
    "far_away": signal.SIGSEGV,
    "calls_nothing": signal.SIGSEGV,
    "runs_nothing": signal.SIGSEGV,
    "pops_nothing": signal.SIGSEGV,
    "halts": signal.SIGSEGV,
    "beyond_file": signal.SIGBUS,
    "undefined": signal.SIGILL,
    "own_int3": signal.SIGTRAP,
}


@pytest.mark.parametrize("function", FATAL)
def test_a_fault_in_a_copy_kills_as_it_would_have(run_target, function):
    """Nobody handles the fault: the program ends with the signal that its own instruction would have brought."""
    for probed in (False, True):
        target = run_target("fatal_faults.c", function)
        with anyprobe.attach(target.pid) as session:
            if probed:
                session.count(f"a.out:{function}:insn")
            target.start(1)
            assert target.process.wait(PATIENCE) == -FATAL[function]
            if probed:
                hits = armed_offsets(session, function)
                assert hits, session.refused
                assert set(hits.values()) <= {0, 1}
                assert hits[0] == 1


# -- operands far away


@pytest.mark.parametrize("place", [0x70000000, 0x803FF000], ids=hex)
def test_operands_nearly_out_of_reach(run_target, place):
    """Copies lie where they reach both the code and its operands: below the code the second would be out of reach."""
    target = run_target("far_operands.c", options=("-no-pie", f"-Wl,--section-start=.far={place:#x}"))
    before = dict(target.go(1).calls)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:reads_far:insn")
        calls = since(before, target.go(100).calls)
        assert not session.refused
        assert list(armed_offsets(session, "reads_far").values()) == [calls["reads_far"]] * 5
    target.go(1)
    target.finish()


# -- another thread pointer


def test_code_under_another_thread_pointer(run_target):
    """Counters are not looked for where somebody else's thread control block is; times are refused."""
    target = run_target("other_thread_pointer.c")
    before = dict(target.go(1).calls)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:moves_fs:insn", "a.out:between:insn")
        assert not session.refused
        calls = since(before, target.go(100).calls)
        for name, number in calls.items():
            assert set(armed_offsets(session, name).values()) == {number}
        session.time("a.out:between")
        assert {refusal.reason for _, refusal in session.refused} == {Reason.NO_THREAD_SLOT}
    target.go(1)
    target.finish()
