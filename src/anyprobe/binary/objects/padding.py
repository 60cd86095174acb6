"""Bytes that compilers and linkers put between code to align it."""

import re

_NOPS = (
    b"\x0f\x1f\x84\x00\x00\x00\x00\x00",  # nop dword ptr [rax+rax+0]
    b"\x0f\x1f\x80\x00\x00\x00\x00",  # nop dword ptr [rax+0]
    b"\x0f\x1f\x44\x00\x00",  # nop dword ptr [rax+rax+0]
    b"\x0f\x1f\x40\x00",  # nop dword ptr [rax+0]
    b"\x0f\x1f\x00",  # nop dword ptr [rax]
    b"\x90",  # nop
    b"\xcc",  # int3
)
ALIGNED = 15
"""These bits of an address are zero where compilers align functions."""
_ZEROS = b"\x00\x00"
_PREFIXES = b"\x66\x2e"
_RUN = re.compile(rb"\x90{64,}|\xcc{64,}|\x00{64,}")

PADDING_BEGINS = frozenset(b"\x66\x2e\x0f\x90\xcc\x00")
"""The first bytes of everything that may be padding."""


def is_padding(raw: bytes) -> bool:
    """Return whether an instruction that nothing leads to is padding."""
    return raw[0] in PADDING_BEGINS and padding_length(raw, 0) > 0  # of most the first byte says that they are not


def padding_length(content: bytes, offset: int, *, zeros: bool = True) -> int:
    """Return how many bytes from ``offset`` on are padding, in whole instructions. They must be unreachable.

    ``zeros`` counts them, too: as the first of many bytes that are no code they may be a table's.
    """
    start = offset
    size = len(content)
    nops = (*_NOPS, _ZEROS) if zeros else _NOPS
    while offset < size:
        run = _RUN.match(content, offset)
        if run is not None and (zeros or content[offset]):  # thousands of the same: a look at all of them at once
            offset = run.end() - (content[offset] == 0 and run.end() < size and (run.end() - offset) & 1)
            continue
        at = offset
        while at < size and content[at] in _PREFIXES:
            at += 1
        nop = next((nop for nop in nops if content.startswith(nop, at)), None)
        if nop is None:
            if zeros and content[offset] == 0 and offset + 1 == size:
                offset = size  # the odd zero at the end
            break
        offset = at + len(nop)
    return min(offset, size) - start
