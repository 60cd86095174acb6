"""The engine from plan to removal, on a target that is memory and an emulator."""

import pytest

from support.simulated.program import Program
from support.simulated.session import splicing
from support.simulated.target import SimulatedTarget

TWICE = """
    push rbp
    mov rbp, rsp
    lea eax, [rdi+rdi]
    pop rbp
    ret
"""


@pytest.fixture
def target():
    return SimulatedTarget()


def test_entries_are_counted_in_the_emulator_and_nothing_is_left(target):
    program = Program(target, {"twice": TWICE})
    with splicing(program) as session:
        (hook,) = session.count("twice")
        assert hook.refusal is None
        assert not program.is_pristine()
        assert [program.call("twice", n) for n in range(5)] == [0, 2, 4, 6, 8]
        assert session.hits([hook]) == [5]
        session.take_out("twice")
        assert program.is_pristine()
        assert program.call("twice", 21) == 42
        assert session.hits([hook]) == [5]
