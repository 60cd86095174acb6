"""What filters are taken to permit: only what no way through their programs refuses."""

import struct

import pytest

from anyprobe.target.process.filters import GENERATED, permits

ALLOW, LOG, KILL, TRAP, ERRNO = 0x7FFF0000, 0x7FFC0000, 0x80000000, 0x00030000, 0x00050001
LD, LDX_IMM, LD_MEM, ST, STX, TAX, TXA, RET, RET_A = 0x20, 0x01, 0x60, 0x02, 0x03, 0x07, 0x87, 0x06, 0x16
JA, JEQ, JGT, JGE, JSET, JEQ_X = 0x05, 0x15, 0x25, 0x35, 0x45, 0x1D
AND, ADD, DIV = 0x54, 0x04, 0x34
NUMBER, ARCHITECTURE, FIRST_PARAMETER = 0, 4, 16
FUTEX, GETPID = 202, 39
X86_64 = 0xC000003E


def program(*instructions):
    return b"".join(struct.pack("<HBBI", *(*each, 0, 0, 0)[:4]) for each in instructions)


def of(code, k, if_true=0, if_false=0):
    return code, if_true, if_false, k


PROGRAMS = {
    "all": (program(of(RET, ALLOW)), True),
    "logged": (program(of(RET, LOG)), True),
    "none": (program(of(RET, KILL)), False),
    "error": (program(of(RET, ERRNO)), False),
    "trap": (program(of(RET, TRAP)), False),
    "but one": (program(of(LD, NUMBER), of(JEQ, FUTEX, 0, 1), of(RET, KILL), of(RET, ALLOW)), False),
    "but another": (program(of(LD, NUMBER), of(JEQ, GETPID, 0, 1), of(RET, KILL), of(RET, ALLOW)), True),
    "a range": (program(of(LD, NUMBER), of(JGT, 200, 0, 2), of(JGE, 203, 1, 0), of(RET, KILL), of(RET, ALLOW)), False),
    "architecture": (
        program(of(LD, ARCHITECTURE), of(JEQ, X86_64, 1, 0), of(RET, KILL), of(RET, ALLOW)), True,
    ),
    "another architecture": (
        program(of(LD, ARCHITECTURE), of(JEQ, 0x40000003, 1, 0), of(RET, KILL), of(RET, ALLOW)), False,
    ),
    "by a parameter": (
        program(of(LD, FIRST_PARAMETER), of(JSET, 1, 0, 1), of(RET, KILL), of(RET, ALLOW)), False,
    ),
    "whatever the parameter": (
        program(of(LD, FIRST_PARAMETER), of(JSET, 1, 0, 1), of(RET, ALLOW), of(RET, LOG)), True,
    ),
    "kept in memory": (
        program(of(LD, NUMBER), of(ST, 3), of(LD, FIRST_PARAMETER), of(LD_MEM, 3), of(JEQ, FUTEX, 0, 1),
                of(RET, KILL), of(RET, ALLOW)), False,
    ),
    "kept in the other register": (
        program(of(LD, NUMBER), of(TAX, 0), of(STX, 1), of(LD, ARCHITECTURE), of(TXA, 0), of(JEQ, GETPID, 0, 1),
                of(RET, KILL), of(RET, ALLOW)), True,
    ),
    "computed": (
        program(of(LD, NUMBER), of(AND, 0xFF), of(ADD, 1), of(LDX_IMM, FUTEX + 1), of(JEQ_X, 0, 0, 1), of(RET, KILL),
                of(RET, ALLOW)), False,
    ),
    "divided": (program(of(LD, NUMBER), of(DIV, 2), of(JEQ, 7, 0, 1), of(RET, KILL), of(RET, ALLOW)), False),
    "jumps": (program(of(JA, 1), of(RET, KILL), of(RET, ALLOW)), True),
    "jumps out": (program(of(JA, 7), of(RET, ALLOW)), False),
    "a computed end": (program(of(LD, FIRST_PARAMETER), of(RET_A, 0)), False),
    "a known computed end": (program(of(0x00, ALLOW), of(RET_A, 0)), True),
    "nothing": (b"", False),
}  # fmt: skip


@pytest.mark.parametrize(("content", "permitted"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_call_is_permitted_where_nothing_else_can_come(content, permitted):
    assert permits(content, FUTEX) is permitted


def test_a_long_list_of_permitted_calls():
    """As libseccomp writes it, and with more ways than states."""
    listed = [step for call in range(0, 400, 2) for step in (of(JEQ, call, 0, 1), of(RET, ALLOW))]
    content = program(of(LD, NUMBER), *listed, of(RET, KILL))
    assert {call for call in GENERATED if permits(content, call)} == {call for call in GENERATED if call % 2 == 0}
    ways = [step for bit in range(20) for step in (of(LD, FIRST_PARAMETER), of(JSET, 1 << bit, 0, 0))]
    assert permits(program(*ways, of(RET, ALLOW)), FUTEX)
