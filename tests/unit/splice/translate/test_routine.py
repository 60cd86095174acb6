"""The routine at handlers' entries: what it says in assembly is what it is, and what it does to signal frames."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from anyprobe.data.layouts.layout import (
    BLOCK_HEAD_BYTES,
    BLOCK_TOP,
    INSTANCE_BYTES,
    INSTANCE_RECORD,
    INSTANCE_SP,
    RECORD_MISSED,
)
from anyprobe.isa import disassemble
from anyprobe.splice.translate.routine import assemble_view
from anyprobe.splice.translate.steps import Op, Step, frame_index
from anyprobe.splice.translate.table import ViewTable

MACHINE = Path(__file__).parents[3] / "support" / "view_machine.py"
ADDRESS, ROOT = 0x7000_0000, 0x7100_0010
PATCH, SITE, FRAME, STACK, REGION, GATE = 0xA4000, 0xC8000, 0xD0000, 0xE0000, 0x40000, 0xC000
BLOCK, NEAR = REGION + 0x8000, REGION + 0x10000
OTHER_FRAME = FRAME + 0x1000
RAX, RBX, RCX, R8, RSP, RIP, EFLAGS = *(frame_index(n) for n in (0, 3, 1, 8, 4)), 16, 17
SEGV, TRAP = 11, 5
MASK = 1 << 46

native = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86-64 instructions")


def step(op, a=0, b=0, c=0):
    return [int(op), a, b, c]


TO_SITE = [step(Op.SITE), step(Op.DONE)]


def run(*cases):
    process = subprocess.run(
        [sys.executable, str(MACHINE)], input=json.dumps(cases), capture_output=True, text=True, timeout=180
    )
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    assert [result["broken"] for result in results] == [[]] * len(cases)
    return results if len(cases) > 1 else results[0]


def case(recipe, *, at=0, registers=None, **more):
    return {"recipes": {at: recipe}, "registers": {RIP: [PATCH + at], **(registers or {})}, **more}


def test_the_listing_is_the_code():
    code, stretches, finish, listing = assemble_view(ADDRESS, ROOT)
    shown = disassemble.format(code, ADDRESS)
    assert sum(len(raw) for _, raw, _ in shown) == len(code)
    assert not any("bad" in text for _, _, text in shown)
    mnemonics = [text.removeprefix("lock ").split()[0] for _, _, text in shown]
    line = re.compile(r" *[0-9a-f]+  (?:[0-9a-f]{2} ?)+ +(.*)")
    lines = [match[1] for match in map(line.fullmatch, listing().splitlines()) if match]
    said = [part.removeprefix("lock ").split()[0] for line in lines for part in line.split("; ")]
    same = {"jz": "je", "jnc": "jae", "jc": "jb"}
    assert mnemonics == [same.get(word, word) for word in said]
    assert 2 * finish == len(code)
    assert stretches[0].start == ADDRESS
    assert stretches[-1].end == ADDRESS + finish


def test_no_vector_register_is_touched():
    code = assemble_view(ADDRESS, ROOT)[0]
    assert not any("mm" in text.replace("imm", "") for _, _, text in disassemble.format(code, ADDRESS))


@native
def test_a_pc_of_ours_becomes_the_site():
    result = run(case(TO_SITE, at=7))
    assert result["pc"] == SITE
    assert list(result["changed"]) == [str(RIP)]


@native
def test_everything_else_is_left_alone():
    inside = case(TO_SITE, at=7)
    elsewhere = {**inside, "registers": {RIP: [0x123]}}
    between = {**inside, "registers": {RIP: [PATCH + 8]}}
    called = {**inside, "skew": 8}
    assert all(result["changed"] == {} for result in run(elsewhere, between, called))


@native
def test_who_steps_himself_is_left_where_he_is():
    """Brought back to the site, he would take the same step for ever."""
    stepping = case(TO_SITE, at=7, registers={EFLAGS: 0x302}, signal=5)
    results = run(stepping, {**stepping, "registers": {RIP: [PATCH + 7], EFLAGS: 0x202}})
    assert results[0]["changed"] == {}
    assert results[1]["pc"] == SITE


@native
def test_registers_come_from_registers_and_stack():
    recipe = [
        step(Op.MOVE, RAX, RBX), step(Op.LOAD, RCX, 16), step(Op.STACK, b=24), step(Op.RAISE, R8, -304), *TO_SITE,
    ]  # fmt: skip
    result = run(case(recipe, registers={RAX: 1, RBX: 2, RCX: 3, R8: 1000}, words={STACK + 16: 77}))
    assert result["changed"] == {
        str(RAX): 2, str(RCX): 77, str(R8): 696, str(RSP): result["base"] + STACK + 24, str(RIP): result["base"] + SITE,
    }  # fmt: skip


@native
@pytest.mark.parametrize(("kept", "flags"), [(0xD500, 0x2D7), (0xD501, 0xAD7), (0x0201, 0xA02), (0x0200, 0x202)])
def test_flags_from_where_lahf_and_seto_left_them(kept, flags):
    """0x8d5 are the status flags; the rest of what is in place stays."""
    in_register = case([step(Op.FLAGS_IN, RAX), *TO_SITE], registers={RAX: kept, EFLAGS: 0x202 | 0x8D5 ^ flags & 0x8D5})
    on_stack = case([step(Op.FLAGS_AT, b=8), *TO_SITE], registers={EFLAGS: 0x202}, words={STACK + 8: kept})
    image = case([step(Op.FLAGS_IMAGE, b=8), *TO_SITE], registers={EFLAGS: 0x8D7}, words={STACK + 8: flags})
    for result in run(in_register, on_stack, image):
        assert result["changed"].get(str(EFLAGS), 0x202) == flags


@native
def test_overflow_in_place_and_the_others_in_ah():
    recipe = [step(Op.HIGH_FLAGS_IN, RAX), *TO_SITE]
    assert run(case(recipe, registers={RAX: 0x4600, EFLAGS: 0xA02 | 1}))["changed"][str(EFLAGS)] == 0xA46


@native
def test_ways_on():
    follow = case([step(Op.FOLLOW), step(Op.DONE)], code={PATCH: "e9 00 01 00 00"})
    after = case([step(Op.FOLLOW, b=8), step(Op.DONE)], code={PATCH + 8: "e9 00 01 00 00"})
    back = case([step(Op.RETURN, b=16), step(Op.DONE)], words={STACK: 0x1234})
    results = run(follow, after, back)
    assert [result["pc"] for result in results[:2]] == [PATCH + 0x105, PATCH + 0x10D]
    assert results[2]["changed"] == {str(RSP): results[2]["base"] + STACK + 24, str(RIP): 0x1234}


@native
def test_out_of_a_routine_and_on_from_there():
    recipes = {40: [step(Op.CALLER, b=-5), step(Op.AGAIN)], 15: TO_SITE}
    result = run({"recipes": recipes, "registers": {RIP: [PATCH + 40]}, "words": {STACK: [PATCH + 20]}})
    assert (result["pc"], result["changed"][str(RSP)]) == (SITE, result["base"] + STACK + 8)


@native
def test_springboards_lead_to_patches():
    board = SITE + 0x200
    near = "e9" + (PATCH - board - 5).to_bytes(4, "little", signed=True).hex()
    there = {"recipes": {0: TO_SITE}, "registers": {RIP: [board]}}
    cases = [
        {**there, "code": {board: "ff 25 00 00 00 00"}, "words": {board + 6: [PATCH]}},
        {**there, "code": {board: near}},
    ]
    assert [result["pc"] for result in run(*cases)] == [SITE, SITE]


@native
def test_hits_are_taken_back_where_they_were_counted():
    place = {PATCH + 3: (0x100).to_bytes(4, "little").hex()}
    recipe = [step(Op.UNCOUNT, b="bank", c=3), *TO_SITE]
    words = {BLOCK + 0x100: 5, REGION + 0x100: 5, GATE: MASK}
    own = case(recipe, code=place, words=words, slot=BLOCK)
    stranger = case(recipe, code=place, words=words)
    child = case(recipe, code=place, words={**words, GATE: 0}, slot=BLOCK)
    operand = (NEAR - PATCH - 7).to_bytes(4, "little", signed=True).hex()
    near = case([step(Op.UNCOUNT_NEAR, c=3), *TO_SITE], code={PATCH + 3: operand}, words={NEAR: 5})
    results = run(own, stranger, child, near)
    assert [(r["words"][str(BLOCK + 0x100)], r["words"][str(REGION + 0x100)]) for r in results[:3]] == [
        (4, 5), (5, 4), (5, 4),
    ]  # fmt: skip
    assert results[3]["words"][str(NEAR)] == 4


@native
@pytest.mark.parametrize(
    ("pointer", "record", "popped"), [(STACK, 0x100, True), (STACK + 8, 0x100, False), (STACK, 0x108, False)]
)
def test_entered_calls_are_taken_back_or_their_misses(pointer, record, popped):
    instance = BLOCK + BLOCK_HEAD_BYTES + INSTANCE_BYTES
    words = {
        GATE: MASK, BLOCK + BLOCK_TOP: 2, instance + INSTANCE_SP: [pointer], instance + INSTANCE_RECORD: record,
        BLOCK + 0x100 + RECORD_MISSED: 9,
    }  # fmt: skip
    recipe = [step(Op.UNENTER, b="bank", c=3), *TO_SITE]
    after = run(case(recipe, code={PATCH + 3: "00010000"}, words=words, slot=BLOCK))["words"]
    assert after[str(BLOCK + BLOCK_TOP)] == (1 if popped else 2)
    assert (after[str(instance + INSTANCE_SP)] == 0) == popped
    assert after[str(BLOCK + 0x100 + RECORD_MISSED)] == (9 if popped else 8)


@native
def test_reserved_instances_are_given_back():
    words = {GATE: MASK, BLOCK + BLOCK_TOP: 2}
    after = run(case([step(Op.UNRESERVE, b="bank"), *TO_SITE], words=words, slot=BLOCK))["words"]
    assert after[str(BLOCK + BLOCK_TOP)] == 1


@native
def test_faults_are_told_from_signals():
    recipe = [step(Op.IF_SYNCHRONOUS, b=16), *TO_SITE, step(Op.SITE, b=1), step(Op.DONE)]
    only = [step(Op.IF_INTERRUPTED), *TO_SITE]
    cases = [
        case(recipe, signal=SEGV, info=(SEGV, 1)),  # a fault
        case(recipe, signal=SEGV, info=(SEGV, 0)),  # kill
        case(recipe, signal=SEGV, info=(SEGV, 0), argument=1 << SEGV),  # a handler that is not told
        case(recipe, signal=14, info=(14, 0x80)),  # a timer, from the kernel
        case(recipe, signal=36, info=(36, 1)),
        case(only, signal=TRAP, info=(TRAP, 0x80)),
        case(only, signal=14, info=(14, 0x80)),
    ]
    assert [result["pc"] for result in run(*cases)] == [SITE + 1, SITE, SITE + 1, SITE, SITE, SITE, PATCH]


@native
def test_a_handler_that_was_interrupted_before_it_began():
    """The pc is a handler's first instruction and the registers are as the kernel sets them: its frame comes next."""
    rdx, rsi, rdi = (frame_index(n) for n in (2, 6, 7))
    other = {RIP: [PATCH]}
    registers = {
        RIP: [SITE + 0x100],
        RSP: [OTHER_FRAME],
        rdx: [OTHER_FRAME + 8],
        rsi: [OTHER_FRAME + 8 + 0x130],
        rdi: 14,
    }
    nested = {"recipes": {0: TO_SITE}, "registers": registers, "other": other}
    called = {**nested, "registers": {**registers, rdx: [OTHER_FRAME + 16]}}
    results = run(nested, called)
    assert [result["other"] for result in results] == [SITE, PATCH]
    assert results[0]["changed"] == {}


class Pages:
    """Memory of a session's, as far as tables need it."""

    def __init__(self, size):
        self.content = bytearray(size)

    def view(self, offset, size):
        return memoryview(self.content)[offset : offset + size]

    def write(self, piece, address, content):
        start = piece.offset + address - piece.address
        self.content[start : start + len(content)] = content


def small_table(size):
    piece = SimpleNamespace(address=0x10000, end=0x10000 + 0x100 + size, size=0x100 + size, offset=0)
    return ViewTable(Pages(0x100 + size), piece, 0x10100)


def test_a_full_table_takes_nothing_more():
    table = small_table(0x100)
    assert table.bank(0x208, 0x1000, 0x2000)
    found = table.positions({0: (Step(Op.SITE), Step(Op.DONE))})
    left_out = table.add([(0x10000 + 16 * number, found, 0x5000) for number in range(20)])
    entries = int.from_bytes(table.arena.content[0x100:0x108], "little")
    assert 0 < entries < 20
    assert left_out == {0x10000 + 16 * number for number in range(entries, 20)}
    assert table.bank(0x210, 0x1000, 0x2000) == 0
    assert table.positions({1: (Step(Op.SITE, b=3), Step(Op.DONE))}) == 0
    assert not table.index([(0x10000, 0x10100)])
    assert table.positions({0: (Step(Op.SITE), Step(Op.DONE))}) == found


def test_equal_positions_are_written_once():
    table = small_table(0x1000)
    recipe = (Step(Op.LOAD, 1, 8), Step(Op.SITE), Step(Op.DONE))
    assert table.positions({0: recipe, 3: recipe}) == table.positions({3: recipe, 0: recipe})
    assert table.positions({}) != table.positions({0: recipe})


def test_entries_come_in_order_of_address():
    table = small_table(0x1000)
    found = table.positions({0: (Step(Op.SITE), Step(Op.DONE))})
    table.add([(0x10010, found, 0x5000), (0x10020, 0, 0x5000), (0x10030, found, 0x5000)])
    table.add([(0x10020, found, 0x5000), (0x10040, found, 0x5000)])  # too late for the first
    entries = [
        int.from_bytes(table.arena.content[at : at + 8], "little") for at in range(0x100 + 32, 0x100 + 32 + 3 * 16, 16)
    ]
    assert entries == [0x10010, 0x10030, 0x10040]
