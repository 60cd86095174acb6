"""What comes behind an instruction of the kernel."""

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.probes.providers.kernel.places.following import following
from anyprobe.target.kernel.symbols import Symbols

BASE = 0xFFFFFFFF81000000
NOP5 = bytes.fromhex("0f1f440000")
ENDBR = bytes.fromhex("f30f1efa")
CALL = bytes.fromhex("e811223344")


def place(code, offset, cold=b"", thunks=True):
    text = code.ljust(0x100, b"\xcc") + cold.ljust(0x100, b"\xcc")
    listing = f"{BASE:016x} T function\n"
    if cold:
        listing += f"{BASE + 0x100:016x} t function.cold\n"
    listing += f"{BASE + 0x200:016x} T next\n"
    if thunks:
        listing += f"{BASE + 0x300:016x} T __x86_indirect_thunk_rax\n"
    symbols = Symbols(listing.encode())
    (function,) = symbols.named("function")
    return following(symbols, lambda at, size: text[at - BASE : at - BASE + size], function, offset)


@pytest.mark.parametrize(("head", "end"), [(NOP5, 5), (CALL, 5), (ENDBR + NOP5, 9), (ENDBR + CALL, 9), (b"\x55", 1)])
def test_behind_the_entry(head, end):
    assert place(head + bytes.fromhex("90c3"), 0) == end


def test_inside():
    assert place(NOP5 + bytes.fromhex("4889e5c3"), 5) == 8


@pytest.mark.parametrize(
    ("text", "offset", "reason"),
    [
        ("0f1f440000eb0190c3", 5, Reason.CONTROL_FLOW_UNKNOWN),  # a jump
        ("0f1f4400007401c390c3", 5, Reason.CONTROL_FLOW_UNKNOWN),  # goes on, or not
        ("0f1f440000e8000000009090c3", 5, Reason.CONTROL_FLOW_UNKNOWN),  # a call, of which the callee is next
        ("0f1f4400009090ebfdc3", 5, Reason.CONTROL_FLOW_UNKNOWN),  # the next one is jumped to
        ("0f1f440000cc90c3", 5, Reason.FOREIGN_BYTES),  # somebody's breakpoint
        ("0f1f4400004889e5c3", 6, Reason.NOT_A_BOUNDARY),
    ],
)
def test_refusals(text, offset, reason):
    assert place(bytes.fromhex(text), offset).reason is reason


def test_cold_part_jumps_back():
    back = bytes.fromhex("e9") + (5 - 0x105).to_bytes(4, "little", signed=True)
    found = place(NOP5 + bytes.fromhex("9090c3"), 0, cold=back)
    assert found.reason is Reason.CONTROL_FLOW_UNKNOWN
    assert "+0x100" in found.detail
    assert place(NOP5 + bytes.fromhex("9090c3"), 5, cold=back) == 6


def test_indirect_jumps_are_of_tables_where_there_are_no_thunks():
    text = NOP5 + bytes.fromhex("90ffe0")
    assert place(text, 0) == 5
    assert place(text, 0, thunks=False).reason is Reason.CONTROL_FLOW_UNKNOWN
