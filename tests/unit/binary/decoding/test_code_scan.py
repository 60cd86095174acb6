import time

import numpy as np
import pytest

from anyprobe.binary.decoding.code_scan import (
    Kind,
    References,
    calls_into,
    code_bytes,
    jump_tables,
    leas_into,
    words_into,
)
from support.bytes_memory import BytesMemory
from support.module_under_test import Module, function


@pytest.fixture
def module(build):
    return Module.assembled(
        build,
        function("callee", "nop\n nop\n .globl middle\nmiddle: ret"),
        function("caller", "call middle\n je middle\n jmp middle\n lea rax, [rip+middle]\n jc short_ahead\n nop\n"
                 "short_ahead: loop caller\n ret"),
        flags=["-Wl,-Bsymbolic"],
    )  # fmt: skip


def test_every_branch_and_every_address_taken_is_found(module):
    middle = module.start("callee") + 2
    references = References(module.text, code_bytes(module.text))
    found = references.into(middle, middle + 1)
    kinds = [kind for _, _, kind in found]
    near = {module.map.containing(source).covering(source).text.split()[0] for _, source, k in found if k is Kind.NEAR}
    assert kinds.count(Kind.LEA) == 1
    assert near >= {"call"}
    assert len([k for k in kinds if k in (Kind.NEAR, Kind.SHORT)]) >= 3


def test_loops_and_short_jumps_are_found(module):
    caller = module.start("caller")
    references = References(module.text, code_bytes(module.text))
    loop = [source for _, source, kind in references.into(caller, caller + 1) if kind is Kind.SHORT]
    assert any(module.map.layout.byte_at(source) == 0xE2 for source in loop)


def test_what_leads_into_ranges_of_addresses(module):
    middle = module.start("callee") + 2
    code = code_bytes(module.text)
    inside = np.array([middle]), np.array([middle + 1])
    found = References(module.text, code).into(middle, middle + 1)
    calls = [source for _, source, kind in found if kind is Kind.NEAR and module.map.layout.byte_at(source) == 0xE8]
    leas = [source for _, source, kind in found if kind is Kind.LEA]
    assert len(calls) == len(leas) == 1
    for scan, expected in ((calls_into, calls), (leas_into, leas)):
        targets, sources = scan(code, *inside)
        assert (targets.tolist(), sources.tolist()) == ([middle], expected)
    nowhere = np.array([middle + 1]), np.array([middle + 1])
    assert [len(each) for each in calls_into(code, *nowhere)] == [0, 0]


def test_addresses_as_numbers_and_tables_of_them(build):
    body = "mov eax, 0x405060\n jmp qword ptr [0x405070 + rax*8]\n notrack jmp qword ptr [0x405080 + r9*8]"
    code = code_bytes(Module.assembled(build, function("looking", body)).text)
    targets, sources = words_into(code, np.array([0x405060, 0x405080]), np.array([0x405061, 0x405090]))
    assert targets.tolist() == [0x405060, 0x405080]
    assert [source - code[0].start for source in sources.tolist()] == [1, 17]
    assert jump_tables(code) == [0x405070, 0x405080]


def test_branches_at_every_alignment_are_found(build):
    """A branch cannot hide behind the instruction stream that we believe in."""
    hidden = ".byte 0x48, 0xb8, 0xe9\n .long .Ltarget - . - 4\n .byte 0, 0, 0\n ret"  # mov rax, imm64 with a jmp inside
    module = Module.assembled(build, function("hiding", hidden), function("victim", "nop\n.Ltarget: ret"))
    target = module.start("victim") + 1
    candidates = References(module.text, code_bytes(module.text)).into(target, target + 1)
    assert [kind for _, _, kind in candidates] == [Kind.NEAR]
    # Decoding shows that it is an immediate.
    assert module.map.entries.enterable(target, target + 1) == []


def test_absolute_addresses_in_immediates(build):
    source = "int victim(void) { return 1; } int (*volatile place)(void); int main(void) { place = victim; return 0; }"
    module = Module(build(source, "-no-pie", "-fno-pie", "-O1"))
    victim = module.start("victim")
    kinds = {kind for _, _, kind in References(module.text, code_bytes(module.text)).into(victim, victim + 1)}
    assert Kind.ABSOLUTE in kinds
    assert any("its address is in" in why for _, why in module.map.entries.enterable(victim, victim + 1))


def test_three_megabytes_are_scanned_in_a_tenth_of_a_second(build):
    from anyprobe.binary.objects.text import ModuleText
    from anyprobe.core.address import AddressRange

    content = np.random.default_rng(1).integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()
    empty = np.empty(0, np.int64)
    area = (AddressRange(0x400000, 0x400000 + len(content)),)
    memory = BytesMemory(0x400000, content)
    text = ModuleText("random", area, memory, empty, empty, empty, (), frozenset(), {}, False, False)
    code = code_bytes(text)
    started = time.process_time()
    References(text, code)
    assert time.process_time() - started < 0.5  # the aim is 0.1 s; random bytes hold more candidates than code
