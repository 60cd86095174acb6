"""Jumps that take their highest byte from another one a few bytes on. The assembly stands beside the bytes."""

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.emit import head_bytes
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import Strategy, Want, WantKind
from anyprobe.splice.plan.springboards import PunPlaces, Springboards
from anyprobe.target.system.procfs import Mapping
from support.planning import planner_for

BASE = 0x401000
END = "ff e0"
"""jmp rax: it may lead anywhere, so that each instruction is a line of its own"""


@pytest.fixture
def planned(code_map):
    """Plan some offsets of a program at a fixed address: nothing lies below it, and a heap may grow above."""

    def plan(code, *offsets, base=BASE, entries=(), **settings):
        content = bytes.fromhex(code)
        start = base & -4096
        mapped = [
            Mapping(start, start + 0x2000, "r-xp", 0, "", 1, "program", deleted=False),
            Mapping(start + 0x2000, start + 0x3000, "r-xp", 0, "", 1, "[heap]", deleted=False),
        ]
        places = PunPlaces(Springboards(AddressSpace(mapped)), 0)
        made = planner_for(
            code_map(base, content, [(0, len(content))], entries=entries), Claims(places=places), places.reachable,
            plain_jumps_only=True, **settings,
        )  # fmt: skip
        wants = [Want(base + at, WantKind.OFFSET) for at in offsets]
        return made.plan(made.context.code.function_at(base), wants), content

    return plan


def checked(plan, content, base=BASE):
    """Check that every jump leads to its own springboard, and return the splices by offset."""
    written = bytearray(content)
    for splice in plan.splices:
        at = splice.write_at - base
        assert written[at : at + splice.written] == content[at : at + splice.written], "written twice"
        written[at : at + splice.written] = head_bytes(splice, 0, splice.springboard)
    for splice in plan.splices:
        at = splice.head - base
        jump = decode_range(bytes(written[at : at + splice.written + splice.borrowed]), splice.head)[0]
        assert jump.target == splice.springboard
        assert splice.written <= splice.end - splice.head
    assert len({splice.springboard for splice in plan.splices}) == len(plan.splices)
    return {splice.head - base: splice for splice in plan.splices}


def test_the_highest_byte_comes_from_the_instruction_after_the_next(planned):
    # ret; xor eax, eax; mov rbp, [rsp+0x10]
    plan, content = planned("c3" + "31 c0" + "48 8b 6c 24 10" + END, 0, entries=(1,))
    assert not plan.refused
    splices = checked(plan, content)
    assert sorted(splices) == [0, 3]
    assert splices[0].leans_on == (splices[3],)
    assert (splices[0].written, splices[0].borrowed) == (1, 4)
    assert splices[3].wants == ()


def test_a_prefix_is_a_highest_byte_too(planned):
    """The conditional jump becomes ``65 e9 ...``: 0x65 is far above any heap, 0x0f is not."""
    # cmp rsp, [r14+0x10]; jbe +0x2ec
    plan, content = planned("49 3b 66 10" + "0f 86 ec 02 00 00" + END, 0)
    splices = checked(plan, content)
    assert sorted(splices) == [0, 4]
    assert splices[4].pun.prefix == 0x65
    assert splices[0].springboard >> 24 == 0x65


def test_several_lean_on_one_another(planned):
    # xor eax, eax; xor ebx, ebx; xor ecx, ecx; mov rdx, [rax+0x90]: the third one ends in the fourth one's bytes
    plan, content = planned("31 c0" + "31 db" + "31 c9" + "48 8b 90 90 00 00 00" + END, 0)
    splices = checked(plan, content)
    assert sorted(splices) == [0, 4, 6]
    assert splices[0].leans_on == (splices[4],)
    assert splices[4].leans_on == (splices[6],)


def test_what_is_wanted_as_well_is_served_by_the_splice_that_is_there(planned):
    plan, content = planned("c3" + "31 c0" + "48 8b 6c 24 10" + END, 0, 3, entries=(1,))
    splices = checked(plan, content)
    assert [want.address - BASE for want in splices[3].wants] == [3]


def test_all_that_leans_on_one_another_lies_on_one_page(planned):
    base = 0x402000 - 3
    plan, _ = planned("c3" + "31 c0" + "48 8b 6c 24 10" + END, 0, base=base, entries=(1,))
    assert [why.reason for _, why in plan.refused] == [Reason.CONTROL_FLOW_UNKNOWN]
    assert not plan.splices


def test_what_must_stay_is_leant_on_by_nobody(planned):
    # ret; xor eax, eax; int 4 and more: no other instruction has the highest byte
    plan, _ = planned("c3" + "31 c0" + "cd 04" + "31 db" + END, 0)
    assert plan.refused


def test_padding_behind_the_last_instruction_gives_it_room(code_map):
    """Goroutines may be parked anywhere, but not in padding: one instruction and padding are one jump."""
    content = bytes.fromhex("31 c0 c3" + "cc" * 5 + "31 c0 c3")
    made = code_map(BASE, content, [(0, 3), (8, 11)])
    planner = planner_for(made, Claims(), lambda pun: False, plain_jumps_only=True)
    plan = planner.plan(made.function_at(BASE), [Want(BASE + 2, WantKind.EXIT)])
    (splice,) = plan.splices
    assert (splice.strategy, splice.head, len(splice.insns)) == (Strategy.JUMP, BASE + 2, 1)
