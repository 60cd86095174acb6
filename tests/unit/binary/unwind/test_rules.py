"""Rules for going up stacks, against what readelf makes of the same tables."""

import re
import subprocess

import numpy as np
import pytest

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.unwind import rules as unwindrules
from anyprobe.binary.unwind.rules import (
    AT_RBP,
    END,
    NONE,
    OF_RBP,
    OF_RSP,
    OFFSET_SHIFT,
    SAVED_MASK,
    SAVED_SHIFT,
    SIGNAL,
    STUB,
    unwind_rules,
)

LIBC = "/lib/x86_64-linux-gnu/libc.so.6"
_FDE = re.compile(r"^[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ FDE .*pc=([0-9a-f]+)\.\.([0-9a-f]+)")
_CIE = re.compile(r"^[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ CIE \"(\w*)\"")
_LOC = re.compile(r"^([0-9a-f]{16}) (\S+)\s+(.*)$")


def decoded(rule):
    offset = (rule >> OFFSET_SHIFT ^ 0x8000) - 0x8000
    return rule & 7, offset, rule >> SAVED_SHIFT & SAVED_MASK


def read_by_readelf(path):
    """Yield address, frame address, and where rbp and the return address are, for each row of each function."""
    # it fails where a separate debug file is not installed, and prints all the same
    command = ["readelf", "--debug-dump=frames-interp", path]
    listing = subprocess.run(command, capture_output=True, text=True).stdout
    columns, inside, end = [], False, 0
    for line in listing.splitlines():
        if found := _FDE.match(line):
            inside, end = True, int(found[2], 16)
        elif _CIE.match(line):
            inside = False
        elif line.lstrip().startswith("LOC"):
            columns = line.split()[2:]
        elif inside and (found := _LOC.match(line)):
            values = re.sub(r" \(\w+\)", "", found[3]).split()  # r10 (r10): in another register
            saved = dict(zip(columns, values, strict=True))
            if int(found[1], 16) < end:
                yield int(found[1], 16), found[2], saved.get("rbp", "u"), saved.get("ra", "c-8")


@pytest.fixture(scope="module", params=[LIBC, "/lib64/ld-linux-x86-64.so.2", "/usr/bin/env"])
def path(request):
    return request.param


def test_the_rules_are_those_that_readelf_prints(path):
    rules = unwind_rules(ElfFile.open(path), 0)
    kinds = set()
    for address, frame, rbp, ra in read_by_readelf(path):
        kind, words, saved = decoded(rules.at(address))
        kinds.add(kind)
        if kind == SIGNAL:
            continue
        if ra != "c-8":
            assert kind == (END if ra == "u" else NONE), hex(address)
            continue
        found = re.fullmatch(r"(rsp|rbp)\+(\d+)", frame)
        if found is None:
            assert kind in (NONE, STUB, AT_RBP), (hex(address), frame)
            continue
        if kind == NONE:  # saved where no rule here can say
            assert rbp not in ("u", "s") and not re.fullmatch(r"c-\d+", rbp), (hex(address), frame, rbp)  # noqa: PT018
            continue
        assert kind == {"rsp": OF_RSP, "rbp": OF_RBP}[found[1]], hex(address)
        assert words * 8 == int(found[2]), hex(address)
        assert saved * 8 == (0 if rbp in ("u", "s") else int(rbp.removeprefix("c-"))), hex(address)
    assert OF_RSP in kinds


def test_between_functions_there_is_no_rule(path):
    elf = ElfFile.open(path)
    rules = unwind_rules(elf, 0)
    assert rules.at(0) == NONE
    assert rules.at(int(rules.starts[-1])) == NONE
    assert (np.diff(rules.starts.astype(np.int64)) > 0).all()
    assert (rules.rules[1:] != rules.rules[:-1]).all()


def test_frames_that_are_found_by_another_pointer():
    machine = unwindrules._Machine(unwindrules._Common(0x1B, True, False, 1, -8, b""))
    # def_cfa rsp+8; offset ra at cfa-8; advance 4; def_cfa_expression breg6 -8, deref; expression rbp: breg6 0
    machine.run(bytes.fromhex("0c 07 08 90 01 44 0f 03 76 78 06 10 06 02 76 00"))
    assert [(at, decoded(rule)) for at, rule in machine.rows] == [(0, (OF_RSP, 1, 0)), (4, (AT_RBP, -1, 0))]
    machine.run(bytes.fromhex("42 07 10"))  # advance 2; undefined ra
    assert decoded(machine.rows[-1][1])[0] == END
    machine.run(bytes.fromhex("41 ff"))  # advance 1; nothing that is known
    assert decoded(machine.rows[-1][1])[0] == END


def test_states_are_remembered():
    machine = unwindrules._Machine(unwindrules._Common(0x1B, True, False, 1, -8, b""))
    # def_cfa rsp+8; ra; advance 1; def_cfa_offset 16; offset rbp at cfa-16; remember; advance 1; def_cfa_offset 8;
    # restore rbp; advance 1; restore state
    machine.run(bytes.fromhex("0c 07 08 90 01 41 0e 10 86 02 0a 41 0e 08 c6 41 0b"))
    assert [decoded(rule) for _, rule in machine.rows] == [
        (OF_RSP, 1, 0),
        (OF_RSP, 2, 2),
        (OF_RSP, 1, 0),
        (OF_RSP, 2, 2),
    ]


def test_rows_that_say_the_same_are_one():
    starts, rules = np.array([0, 5, 5, 7, 9, 9], np.uint32), np.array([1, 2, 2, 2, 3, 1], np.uint32)
    found = unwindrules._without_repetition(starts, rules)
    assert list(zip(found.starts.tolist(), found.rules.tolist(), strict=True)) == [(0, 1), (5, 2), (9, 1)]
