"""Where the decoder and objdump disagree about an instruction's length, from each of objdump's labels on."""

import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow, decode_one, decode_range
from anyprobe.isa.relocate import displace

_LABEL = re.compile(r"^[0-9a-f]+ <.*>:$")
_LONGEST = 100_000
"""Instructions of a block: of a stripped file there is one label for all."""


class Disagreement(NamedTuple):
    """What both make of the same bytes."""

    address: int
    content: bytes
    theirs: str
    ours: str
    our_length: int


def blocks(path) -> Iterator[list[tuple[int, bytes, str]]]:
    """Yield the (address, bytes, assembly) between two labels or gaps of objdump's listing of all code."""
    process = subprocess.Popen(
        ["objdump", "-dwMintel", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
    )
    block: list[tuple[int, bytes, str]] = []
    end = 0
    with process:
        for line in process.stdout:
            where, separator, rest = line.partition(":\t")
            if not separator:
                if block and _LABEL.match(line):
                    yield block
                    block = []
                continue
            code, separator, text = rest.partition("\t")
            if not separator:  # bytes that it takes for data
                continue
            address, content = int(where, 16), bytes.fromhex(code)
            if block and (address != end or len(block) >= _LONGEST):  # it leaves zeros out
                yield block
                block = []
            block.append((address, content, text.strip()))
            end = address + len(content)
    assert process.returncode == 0, f"objdump cannot read {path}"
    if block:
        yield block


def disagreements(block) -> Iterator[Disagreement]:
    """Compare one block; after a disagreement go on at the next address where both begin an instruction."""
    start = block[0][0]
    content = b"".join([code for _, code, _ in block])
    theirs = {address: (code, text) for address, code, text in block}
    for insn in decode_range(content, start):
        address = insn.address
        found = theirs.get(address)
        if found is None:
            continue
        code, text = found
        if insn.length != len(code) or (insn.flow is Flow.INVALID) != ("(bad)" in text):
            offset = address - start
            yield Disagreement(address, content[offset : offset + 15], text, insn.text, insn.length)


_PREFIX = re.compile(r"^(rex(\.\w+)?|data16|addr32|lock|repn?[ze]?|[cdefgs]s|bnd|notrack|xacquire|xrelease)$")


def explanation(found: Disagreement) -> str | None:
    """Return why both differ, or None."""
    words = found.theirs.split()
    if found.content[0] == 0x9B and found.our_length == 1:
        return "objdump takes fwait for a prefix of what follows"
    if words and all(_PREFIX.match(word) for word in words):
        return "objdump prints prefixes without use as instructions of their own"
    if "(bad)" in found.theirs:
        return "objdump does not know it"
    if found.ours == "(bad)":
        return "the decoder does not know it"
    verdict = displace(decode_one(found.content, found.address), found.address)
    if isinstance(verdict, Refusal) and verdict.detail.endswith("depends on the processor's make"):
        return "a branch with an operand size prefix: objdump reads it as AMD does, the decoder as Intel does"
    return None
