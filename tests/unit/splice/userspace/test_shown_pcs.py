"""Signals at every single instruction of patches, on a simulated target: what the program's handler sees, and does."""

import pytest

from anyprobe.core.address import PAGE
from anyprobe.splice.userspace.trap_handler import SA_SIGINFO, SignalAction
from support.simulated.functions import FUNCTIONS
from support.simulated.program import BIAS, Program
from support.simulated.session import splicing
from support.simulated.signals import enter_handler
from support.simulated.target import END, LIBRARY

NUMBER, SIGNAL = 4, 14
SEEN = 0x6000_0000
RESTORER, SA_RESTORER = LIBRARY + 3, 0x4000000
HANDLER = """
    mov rax, [rdx+168]  # the pc in the signal's context
    mov rcx, seen
    mov [rcx], rax
    ret
"""
REPEATED = b"\xf3"


@pytest.fixture
def program(simulated):
    """The usual functions, and a handler that notes the pc that it sees."""
    simulated.mem.add(SEEN, PAGE, "rw-p")
    listings = {**FUNCTIONS, "on_signal": HANDLER.replace("seen", str(SEEN))}
    made = Program(simulated, listings)
    simulated.actions[SIGNAL] = SignalAction(made["on_signal"], SA_SIGINFO | SA_RESTORER, RESTORER, 0).pack()
    return made


def showing(session):
    """Have the session find the program's handlers."""
    module, names = session.module, {session.program[name]: name for name in session.program.starts}
    session.splicing.view.find_by(lambda address: (module, session.code(names[address])), lambda: None)


def seen(target):
    return int.from_bytes(target.mem.read(SEEN, 8), "little")


def steps_of(session, name):
    """Return how many instructions one call runs."""
    target = session.target
    thread, steps = target.begin(session.program[name], NUMBER), 0
    while thread.actual.rip != END:
        target.step(thread)
        steps += 1
    return steps


ALWAYS_SHOWN = {"twice", "zero"}
"""Functions of which whatever has been displaced can be begun anew; elsewhere the true pc stays after some writes."""


@pytest.mark.parametrize("name", ["twice", "sum_to", "collatz", "tail", "carries", "red_zone", "zero", "own_address"])
def test_wherever_a_signal_comes_the_handler_sees_the_program_and_the_counts_stay_true(program, name):
    target = program.target
    own = {insn.address + BIAS for each in program.starts for insn in program.code(each).insns} | {END}
    with target.machine.tracing(program.low, program.high) as ran:
        result = program.call(name, NUMBER)
    executed = {at - BIAS: count for at, count in ran.items()}
    with splicing(program) as session:
        showing(session)
        places = [insn.address for insn in session.code(name).insns]
        hooks = session.count(name, places)
        calls, shown = 1, 0
        for passed in range(steps_of(session, name)):
            thread = target.begin(program[name], NUMBER)
            target.step(thread, passed)
            true = thread.actual.rip
            enter_handler(target, thread, SIGNAL)
            assert target.finish(thread) == result
            calls += 1
            shown += true not in own and seen(target) in own
            if name in ALWAYS_SHOWN or true in own:
                assert seen(target) in own, f"after {passed} instructions"
            else:
                assert seen(target) in {*own, true}, f"after {passed} instructions"
            counted = dict(zip(places, session.hits(hooks), strict=True))
            assert counted == {at: calls * executed.get(at, 0) for at in places}, (
                f"a signal after {passed} instructions"
            )
        assert shown > 4
        assert not session.splicing.view.complaints()


def test_who_was_stopped_in_a_repeated_instruction_goes_on_with_it(program):
    """The signal that is due then does not have it begin anew what it has half done."""
    target = program.target
    result = program.call("fill", NUMBER)
    insns = program.code("fill").insns
    number = next(n for n, insn in enumerate(insns) if insn.raw[:1] == REPEATED)
    repeated = insns[number].address + BIAS
    with splicing(program) as session:
        showing(session)
        thread = target.begin(program["fill"], NUMBER)
        target.run_to(thread, repeated)
        target.step(thread, 2)
        assert thread.actual.rip == repeated
        assert 0 < thread.actual.rcx < NUMBER
        # one jump, before the instruction, takes the place of both
        hooks = session.count("fill", [insn.address for insn in insns[number - 1 : number + 1]])
        assert thread.actual.rip != repeated
        enter_handler(target, thread, SIGNAL)
        assert target.finish(thread) == result
        assert session.hits(hooks) == [0, 0]
        assert target.call(program["fill"], NUMBER) == result
        assert session.hits(hooks) == [1, 1]
