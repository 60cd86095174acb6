"""Lines by their shape: displaced as one by one, and the same instructions where they are asked for."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import decode_range
from anyprobe.isa.lines import MOST, KeptLine, content_of, copies_of, count_of, displaced, shape_of
from anyprobe.isa.relocate import displace
from support.case_files import read_cases
from support.displaced.encodings import scan_every_opcode
from support.displaced.forms import Forms

ADDRESS = 0x555555600000
PIECES = [
    "55",
    "48 89 e5",
    "f3 0f 1e fa",
    "74 20",
    "7f 80",
    "0f 8f 10 00 01 00",
    "0f 84 f0 ff ff ff",
    "e8 10 00 00 00",
    "e8 00 ff ff ff",
    "e3 75",
    "e2 f0",
    "48 8b 05 10 00 00 00",
    "c7 05 10 00 00 00 78 56 34 12",
    "62 f1 7c 48 10 05 10 00 00 00",
]
"""Plain instructions, conditional jumps, calls, and operands relative to rip, one before an immediate."""
NONE = ["67 8b 05 10 00 00 00", "ff d0", "c3", "0f 05", "eb 10", "0f 0b", "ff 15 10 00 00 00", "3e 74 20"]
"""What has no shape: an operand relative to eip, indirect branches, what does not go on, a jump with a prefix."""


def line_of(pieces, address=ADDRESS):
    return decode_range(b"".join(map(bytes.fromhex, pieces)), address)


def one_by_one(insns, at):
    """Return the copies that ``displace`` makes, and where each lies."""
    code, places = b"", []
    for insn in insns:
        places.append((insn.address, at + len(code)))
        code += displace(insn, at + len(code))
    return code, [*places, (insns[-1].end, at + len(code))]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=MOST), st.integers(-(1 << 30), 1 << 30))
@pytest.mark.parametrize("address", [ADDRESS, 0x401000])
def test_a_line_is_displaced_as_its_instructions_are(address, pieces, distance):
    insns, at = line_of(pieces, address), max(address + distance, 0x10000)
    shape = shape_of(insns)
    assert 0 < shape < 1 << 63
    assert count_of(shape) == len(insns)
    made = displaced(content_of(insns), shape, address, at)
    assert (made.code, [*copies_of(shape, address, at)]) == one_by_one(insns, at)
    assert made.targets == [insn.target for insn in insns if insn.target is not None and not insn.is_call]


@pytest.mark.parametrize("piece", NONE)
def test_what_has_no_shape(piece):
    assert shape_of(line_of([piece])) == 0
    assert shape_of(line_of(["55", piece])) == 0
    assert shape_of(line_of(["55"] * (MOST + 1))) == 0


def test_every_opcode_that_has_a_shape_is_displaced_as_alone():
    found = Forms()
    scan_every_opcode(found)
    compared = 0
    for code in found.codes():
        insns = decode_range(bytes.fromhex(code), ADDRESS)[:1]
        shape, copy = shape_of(insns), displace(insns[0], ADDRESS + 0x12345)
        if shape:
            assert displaced(content_of(insns), shape, ADDRESS, ADDRESS + 0x12345).code == copy
            compared += 1
    assert compared > 1000


@pytest.mark.parametrize("case", read_cases("relocate.case"), ids=lambda case: case.name)
def test_what_cannot_be_displaced_has_no_shape(case):
    address, content = case.lines[0].split(" ; ")[0].split(": ")
    insns = decode_range(bytes.fromhex(content), int(address, 16))[:1]
    if isinstance(displace(insns[0], ADDRESS), Refusal):
        shape = shape_of(insns)
        assert not shape or displaced(content_of(insns), shape, insns[0].address, ADDRESS) is None


@pytest.mark.parametrize("piece", ["e8 10 00 00 00", "0f 84 10 00 00 00", "48 8b 05 10 00 00 00", "74 10"])
def test_what_is_out_of_reach(piece):
    insns = line_of([piece])
    assert displaced(content_of(insns), shape_of(insns), ADDRESS, ADDRESS + (1 << 32)) is None


def test_a_kept_line_has_the_same_instructions():
    insns = line_of(PIECES[:MOST])
    kept = KeptLine(content_of(insns), ADDRESS, shape_of(insns))
    assert (kept.address, kept.first_end, kept.end) == (ADDRESS, insns[0].end, insns[-1].end)
    assert (len(kept), shape_of(kept), content_of(kept)) == (len(insns), shape_of(insns), content_of(insns))
    for same in (kept, kept[:], [*kept]):
        assert [(each.address, each.raw) for each in same] == [(each.address, each.raw) for each in insns]
    assert kept[-1].target == insns[-1].target


def test_shapes_fit_into_the_numbers_that_are_kept():
    insns = line_of(["62 f1 7c 48 10 05 10 00 00 00"] * MOST)
    assert struct.unpack("<q", struct.pack("<q", shape_of(insns)))[0] == shape_of(insns)
