"""Threads that stand in the middle of functions while these are changed, on a simulated target."""

import struct
from collections import Counter

import pytest

from anyprobe.core.refusal import Reason
from support.simulated.functions import FUNCTIONS
from support.simulated.program import BIAS, Program
from support.simulated.session import splicing
from support.simulated.target import END

NUMBER = 4
REPEATED = b"\xf3"


def walked(program, name):
    """Return the addresses of all instructions of one call in the order in which they run, and what it returns."""
    target, pcs = program.target, []
    thread = target.begin(program[name], NUMBER)
    while thread.actual.rip != END:
        pcs.append(thread.actual.rip - BIAS)
        target.step(thread)
    return pcs, thread.actual.rax


def count_all(session, name):
    """Count all instructions of a function; return the hooks by address, without repeated ones."""
    insns = session.code(name).insns
    hooks = session.count(name, [insn.address for insn in insns])
    assert not [hook.refusal for hook in hooks if hook.refusal is not None]
    return {insn.address: hook for insn, hook in zip(insns, hooks, strict=True) if insn.raw[:1] != REPEATED}


def ahead_of(pcs, session):
    """Return how often each instruction is yet to be counted for a thread that has come to the first of ``pcs``.

    What is not displaced itself is counted on the ways that lead to it: a thread that stands there is past that.
    """
    displaced = {insn.address for splice in session.module.splices() for insn in splice.planned.insns}
    return Counter(pcs if pcs[0] in displaced else pcs[1:])


PACKED = [(name, 1) for name in FUNCTIONS if name not in {"fib", "nothing"}]  # a lone ret has no room when packed
APART = [(name, 16) for name in FUNCTIONS if name != "fib"]


@pytest.mark.parametrize(("name", "alignment"), PACKED + APART)
def test_wherever_a_thread_stands_it_goes_on_and_counts_what_is_ahead(simulated, name, alignment):
    program = Program(simulated, FUNCTIONS, alignment=alignment)
    pcs, result = walked(program, name)
    for passed in range(len(pcs)):
        with splicing(program) as session:
            thread = simulated.begin(program[name], NUMBER)
            simulated.step(thread, passed)
            hooks = count_all(session, name)
            ahead = ahead_of(pcs[passed:], session)
            assert simulated.finish(thread) == result
            counted = dict(zip(hooks, session.hits(hooks.values()), strict=True))
            assert counted == {at: ahead[at] for at in hooks}, f"after {passed} instructions"


@pytest.mark.parametrize("name", ["twice", "sum_to", "collatz", "tail", "red_zone", "zero"])
def test_a_thread_in_a_patch_that_goes_comes_back_to_the_program(program, name):
    """What leads there is taken out at once, the patch when the thread has left it."""
    simulated = program.target
    _, result = walked(program, name)
    inside = 0
    for steps in range(1, 60, 3):
        with splicing(program) as session:
            count_all(session, name)
            thread = simulated.begin(program[name], NUMBER)
            simulated.step(thread, steps)
            session.take_out(name)
            assert program.is_pristine()
            inside += not program.low <= thread.actual.rip < program.high and thread.actual.rip != END
            assert simulated.finish(thread) == result
    assert inside > 5


def test_memory_that_a_thread_is_in_stays_until_it_has_left(program):
    simulated = program.target
    before = simulated.mappings()
    with splicing(program) as session:
        session.count("twice")
        thread = simulated.begin(program["twice"], NUMBER)
        while program.low <= thread.actual.rip < program.high:
            simulated.step(thread)
        removal = session.remove()
        assert removal.splices == 1
        assert removal.kept
        assert program.is_pristine()
        assert simulated.mappings() != before
        assert simulated.finish(thread) == 2 * NUMBER


def asleep_at(program, name):
    """Have a thread come to a system call of a function and sleep in it."""
    thread = program.target.begin(program[name], NUMBER)
    program.target.machine.run(thread, END)
    assert thread.actual.orig_rax != (1 << 64) - 1
    return thread


SLEEPER = """
    mov eax, 35
    syscall
    mov eax, 7
    ret
"""


def test_a_thread_asleep_goes_on_after_the_copy_of_its_system_call(simulated):
    program = Program(simulated, {"sleeper": SLEEPER})
    with splicing(program) as session:
        thread = asleep_at(program, "sleeper")
        at = thread.actual.rip
        hooks = count_all(session, "sleeper")
        assert thread.actual.rip != at
        assert simulated.mem.read(thread.actual.rip - 2, 2) == b"\x0f\x05"
        assert simulated.finish(thread) == 7
        assert session.hits(hooks.values()) == [0, 0, 1, 1]


def test_a_thread_asleep_in_a_patch_wakes_in_the_program(simulated):
    program = Program(simulated, {"sleeper": SLEEPER})
    with splicing(program) as session:
        hooks = count_all(session, "sleeper")
        thread = asleep_at(program, "sleeper")
        assert not program.low <= thread.actual.rip < program.high
        session.take_out("sleeper")
        assert thread.actual.rip == program["sleeper"] + 7
        assert simulated.finish(thread) == 7
        assert session.hits(hooks.values()) == [1, 1, 0, 0]


def signal_frame(thread, target, pc):
    """Write what the kernel has of an interrupted thread above its handler's stack: pc, flags and selectors."""
    target.mem.write(thread.actual.rsp + 0x20, struct.pack("<QQQ", pc, 0x246, 0x33))


def test_no_jump_is_written_where_a_signal_handler_will_return_into_it(program):
    simulated = program.target
    thread = simulated.begin(program["zero"], NUMBER)
    thread.actual.rsp -= 0x100
    signal_frame(thread, simulated, program["twice"] + 1)
    with splicing(program) as session:
        (hook,) = session.count("twice")
        assert hook.refusal.reason is Reason.SIGNAL_CONTEXT_IN_JTPR
        assert program.is_pristine()
        signal_frame(thread, simulated, program["twice"])
        (hook,) = session.count("twice")
        assert hook.refusal is None
        assert program.call("twice", 3) == 6
        assert session.hits([hook]) == [1]
        thread.load_registers()
