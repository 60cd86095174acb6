import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa import disassemble
from anyprobe.isa.decode import Flow, Insn, decode_one, decode_range
from anyprobe.isa.relocate import displace, push_address
from support.case_files import Case, read_cases
from support.displaced.encodings import direct_branches, scan_every_opcode
from support.displaced.forms import Forms
from support.displaced.lengths import displaced_length

CASES = read_cases("relocate.case")


def parsed(line):
    """Split ``address: bytes ; assembly``."""
    address, rest = line.split(": ", 1)
    content, text = rest.split(" ; ", 1)
    return int(address, 16), bytes.fromhex(content), text


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_displaced_copy(case: Case):
    address, content, text = parsed(case.lines[0])
    insn = decode_range(content, address)[0]
    assert (insn.raw, insn.text) == (content, text) or insn.text == "(bad)"
    if case.lines[1].startswith("refused: "):
        refusal = displace(insn, 0x555555600000)
        assert isinstance(refusal, Refusal)
        assert case.lines[1] == f"refused: {refusal.reason.value}: {refusal.detail}"
        return
    expected = [parsed(line) for line in case.lines[1:]]
    copy = displace(insn, expected[0][0])
    assert copy == b"".join(piece for _, piece, _ in expected)
    assert disassemble.format(copy, expected[0][0]) == expected


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@given(distance=st.integers(-(2**30), 2**30))
def test_the_length_does_not_depend_on_the_place(case: Case, distance):
    address, content, _ = parsed(case.lines[0])
    insn = decode_range(content, address)[0]
    copy = displace(insn, address + distance)
    length = displaced_length(insn)
    if isinstance(length, Refusal):
        assert isinstance(copy, Refusal)
    else:
        assert len(copy) == length


@pytest.mark.parametrize("place", [0x7F0000401000, 0x7EFFA0000000])
def test_copies_of_every_opcode_say_the_same(place):
    """By their bytes, for the processors that have these instructions: the one that runs this lacks some."""
    found = Forms()
    scan_every_opcode(found)
    compared = 0
    for code in found.codes():
        insn = decode_one(bytes.fromhex(code), 0x7F0000000000)
        copy = displace(insn, place)
        if insn.target is not None or insn.flow is Flow.INDIRECT_CALL or isinstance(copy, Refusal):
            continue  # branches become others, which have tests of their own
        assert len(copy) == len(insn.raw)
        again = decode_one(copy, place)
        assert again.text == insn.text
        if insn.iced.is_ip_rel_memory_operand:
            assert again.iced.ip_rel_memory_address == insn.iced.ip_rel_memory_address
            displacement = insn.offsets.displacement_offset
            assert copy[:displacement] + copy[displacement + 4 :] == (
                insn.raw[:displacement] + insn.raw[displacement + 4 :]
            )
        else:
            assert copy == insn.raw
        compared += 1
    assert compared > 16_000


def test_out_of_reach_is_refused_by_name():
    for code in ("e800010000", "eb10", "7402", "e302", "c7f800010000", "488b0500100000", "ff1500100000"):
        insn = decode_one(bytes.fromhex(code), 0x555555551000)
        refusal = displace(insn, 0x7F0000000000)
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.NO_DISPLACED_FORM
        assert "out of reach" in refusal.detail


def test_a_branch_may_be_led_elsewhere():
    insn = decode_one(bytes.fromhex("7402"), 0x401000)
    assert decode_one(displace(insn, 0x500000, target=0x500100), 0x500000).target == 0x500100


@pytest.mark.parametrize("code", ["e800010000", "e900010000", "740e", "e30e", "488b0500100000", "ff1500100000"])
@pytest.mark.parametrize("side", [-1, 1])
@given(beyond=st.integers(-40, 40))
def test_the_reach_ends_where_32_bits_end(code, side, beyond):
    insn = decode_one(bytes.fromhex(code), 0x5000_0000_0000)
    wanted = insn.target or insn.iced.ip_rel_memory_address
    copy = displace(insn, wanted + side * 2**31 + beyond)
    end = wanted + side * 2**31 + beyond + displaced_length(insn)
    assert isinstance(copy, bytes) == (-(2**31) <= wanted - end < 2**31)
    if isinstance(copy, bytes):
        last = decode_range(copy, end - len(copy))[-1]
        assert wanted == (last.target or last.iced.ip_rel_memory_address)


@given(chance=st.randoms(use_true_random=False), place=st.integers(-(2**30), 2**30))
def test_a_branch_led_elsewhere_is_as_if_it_went_there(chance, place):
    code = chance.choice(list(direct_branches(chance)))
    insn = decode_one(code, 0x401000_0000)
    other = decode_one(code[:-1] + bytes([code[-1] ^ 1]), insn.address)
    copy = displace(insn, insn.address + place)
    assert insn.target != other.target
    if isinstance(copy, bytes):
        assert displace(other, insn.address + place, target=insn.target) == copy


@given(st.integers(0, 2**64 - 1))
def test_pushing_an_address_pushes_all_of_it(address):
    code = push_address(address)
    (low,) = struct.unpack_from("<i", code, 1)
    value = low & (2**64 - 1)
    if len(code) > 5:
        assert code[5:9] == b"\xc7\x44\x24\x04"
        value = value & 0xFFFFFFFF | struct.unpack_from("<I", code, 9)[0] << 32
    assert value == address


def test_an_instruction_moves_with_its_module():
    linked = decode_one(bytes.fromhex("e800010000"), 0x1000)
    running = linked.at(0x7F0000001000)
    assert isinstance(running, Insn)
    assert running.target == 0x7F0000001105
    assert displaced_length(running) == 18
    assert displaced_length(linked) == 10
