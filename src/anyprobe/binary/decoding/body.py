"""The instructions of one function, as its bytes decode, and what one pass over them tells."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from iced_x86 import Code

from anyprobe.binary.decoding.branches import Branches
from anyprobe.binary.objects.padding import padding_length
from anyprobe.isa.decode import FLOWS, Flow, Insn, decode_iced

if TYPE_CHECKING:
    from iced_x86 import Instruction

LOCK = 0xF0
ENDS = frozenset({Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RET, Flow.INVALID})
"""After these control does not go on."""
_TURNS = np.array(FLOWS, np.uint8)
"""By what iced calls an instruction: 0 if control goes on to the next one."""
_INT3 = Code.INT3
_CODE, _ADDRESS = attrgetter("code"), attrgetter("ip")


class Facts(NamedTuple):
    """What one pass over the instructions tells."""

    jumps: Branches
    """Direct jumps."""
    calls: Branches
    """Direct calls."""
    indirect_jumps: list[int]
    after_calls: "array[int]"
    invalid: int | None
    codes: "array[int]"
    """What iced calls each instruction: to ask it again costs more than to look it up."""

    @property
    def turns(self) -> list[tuple[int, Flow]]:
        """(number, flow) of the instructions after which control does not simply go on."""
        codes = self.codes
        return [(number, FLOWS[codes[number]]) for number in _turning(codes)]


class Body(NamedTuple):
    """The instructions, what they tell, where they are, and where decoding makes no sense."""

    iced: "Sequence[Instruction] | None"
    """``None`` where they are decoded one after the other, and may be decoded so again."""
    facts: Facts
    addresses: "array[int]"
    """Where each instruction begins, ascending."""
    end: int
    """Where the last one ends."""
    unlocked: frozenset[int]
    """The instructions with ``lock`` that jumps enter after it."""
    missed: tuple[int, int] | None
    """The number and target of a jump into the middle of an instruction."""
    doubt: tuple[int, str] | None
    has_gaps: bool
    """Whether these are only the instructions that something leads to, with data between them."""


def scan(instructions: "Sequence[Instruction]") -> Facts:
    """Look at each instruction once."""
    jumps, calls = Branches(), Branches()
    add_jump, add_target = jumps.numbers.append, jumps.targets.append
    indirect: list[int] = []
    after_calls = array("Q")
    invalid = None
    jump, jcc, xbegin, call = Flow.JUMP, Flow.JCC, Flow.XBEGIN, Flow.CALL
    codes = array("H", map(_CODE, instructions))
    for number in _turning(codes):
        one, flow = instructions[number], FLOWS[codes[number]]
        if flow is jcc or flow is jump or flow is xbegin:
            add_jump(number)
            add_target(one.near_branch_target)
        elif flow is call:
            calls.add(number, one.near_branch_target)
            after_calls.append(one.next_ip)
        elif flow is Flow.INDIRECT_CALL:
            after_calls.append(one.next_ip)
        elif flow is Flow.INDIRECT_JUMP:
            indirect.append(number)
        elif flow is Flow.INVALID and invalid is None:
            invalid = number
    return Facts(jumps, calls, indirect, after_calls, invalid, codes)


def _turning(codes: "array[int]") -> list[int]:
    """Return the numbers of the instructions after which control does not simply go on."""
    return np.flatnonzero(_TURNS[np.frombuffer(codes, np.uint16)]).tolist() if codes else []


def _body(
    iced: "Sequence[Instruction]", content: bytes, start: int, doubt: tuple[int, str] | None, *, has_gaps: bool
) -> Body:
    addresses, facts, end = array("Q", map(_ADDRESS, iced)), scan(iced), start + len(content)
    aims = {target for target in facts.jumps.targets if start <= target < end}
    # a dictionary of all addresses would cost more than everything else here
    astray = aims.difference(addresses) if aims else aims
    unlocked, missed = frozenset[int](), None
    if astray:
        locked = {at for at in addresses if content[at - start] == LOCK}
        unlocked = frozenset(at - 1 for at in astray if at - 1 in locked)
        lost = (jump for jump in facts.jumps if jump[1] in astray and jump[1] - 1 not in locked)
        missed = next(lost, None)
    last = iced[-1].next_ip if iced else start
    return Body(iced if has_gaps else None, facts, addresses, last, unlocked, missed, doubt, has_gaps)


def decode_to_end(content: bytes, start: int) -> "tuple[Sequence[Instruction], int]":
    """Return the instructions and their end, without trailing padding: what lies after the last one that stays."""
    limit = start + len(content)
    iced = decode_iced(content, start)
    keep = len(iced)
    while keep and (FLOWS[iced[keep - 1].code] is Flow.NEXT or iced[keep - 1].code == _INT3):
        keep -= 1
    if keep == 0 or keep == len(iced):
        return iced, limit
    one = iced[keep - 1]
    last = Insn(one, content[one.ip - start : one.next_ip - start], one.ip, one.code)
    if ends_at(last, content, start, scan(iced).jumps.targets):
        return iced[:keep], last.end
    return iced, limit


def ends_at(last: Insn, content: bytes, start: int, targets: Iterable[int]) -> bool:
    """Return whether code ends after an instruction: what follows is padding, and none of its jumps leads there."""
    if (last.falls_through and not last.is_call) or last.flow is Flow.INVALID:
        return False
    tail, limit = last.end - start, start + len(content)
    if padding_length(content, tail) < len(content) - tail:
        return False
    return not any(last.end <= target < limit for target in targets)


def examine(
    iced: "Sequence[Instruction]",
    content: bytes,
    start: int,
    entries: Callable[[], Iterable[int]],
    noreturn: frozenset[int],
) -> Body:
    """Return what ``iced`` tells of ``content``; decode by control flow where it makes no sense as a whole."""
    made = _body(iced, content, start, None, has_gaps=False)
    if made.facts.invalid is None and made.missed is None:
        return made
    from anyprobe.binary.decoding.descent import descend

    iced, doubt = descend(content, start, entries(), noreturn)
    return _body(iced, content, start, doubt, has_gaps=True)
