import random
import time

import pytest

from anyprobe.binary.liveness.entry import EntryLiveness
from anyprobe.binary.liveness.site import SiteLiveness, site_scratch
from anyprobe.binary.liveness.vectors import VectorLiveness
from support.module_under_test import Module, function


def scratch_at(build, assembly, *others, place="tested", flags=("-Wl,-Bsymbolic",)):
    """Return what is dead at the only nop; whether the flags are is found alone as well."""
    module = Module.assembled(build, function("tested", assembly), *others, flags=list(flags))
    code = module[place]
    here = next(insn.address for insn in code.insns if insn.raw == b"\x90")
    found = site_scratch(module.map, code, here)
    assert module.map.analyses.get(EntryLiveness).flags_dead_before(code, here) is found.flags_dead
    return found


@pytest.mark.parametrize(
    ("assembly", "dead", "live", "flags"),
    [
        ("nop\n mov rcx, rdi\n add rcx, 1\n mov rax, rcx\n ret", "rcx rax", "rdi rdx r11", True),
        ("cmp rdi, 1\n nop\n jc 1f\n mov eax, 1\n1: ret", "", "rax r11", False),
        ("1: nop\n mov eax, [rdi]\n add rdi, rax\n dec rsi\n jnz 1b\n xor edx, edx\n ret", "rax rdx", "rsi r11", True),
        ("nop\n mov r11d, 1\n jmp 1f\n ud2\n1: cmp r11, rdi\n sete al\n ret", "r11", "rax rdi", True),
        ("nop\n mov rax, rdi\n ret", "rax", "r11 rdi", False),
        ("nop\n call rsi\n add eax, 1\n ret", "", "rax r11 rcx", False),
        ("nop\n call callee\n add eax, 1\n ret", "r11", "rdi", True),
        ("nop\n call outside@plt\n ret", "", "r11 rax rcx rdi", False),
        ("nop\n push rbp\n mov rbp, [rdi]\n syscall\n ret", "", "rcx r11 rax", False),
    ],
)
def test_sites(build, assembly, dead, live, flags):
    callee = function("callee", "mov r11, rdi\n test r11, r11\n mov rax, r11\n ret")
    found = scratch_at(build, assembly, callee)
    assert set(found.dead) >= set(dead.split())
    assert not set(found.dead) & set(live.split())
    assert found.flags_dead is flags


def test_nothing_is_dead_where_the_instructions_themselves_are_in_doubt(build):
    found = scratch_at(build, "nop\n mov rcx, 1\n jmp .+3\n .byte 0x48, 0xb8, 0, 0\n ret")
    assert found.dead == ()
    assert not found.flags_dead


def test_the_blocks_of_libc_are_solved_quickly_and_usually_have_room(build):
    module = Module("/lib/x86_64-linux-gnu/libc.so.6")
    functions = [module.map.function_at(int(start)) for start in module.text.function_starts[:1500]]
    codes = [code for code in functions if hasattr(code, "insns")]
    blocks = [(code, address) for code in codes for address in code.blocks]
    slowest = 0.0
    started = time.process_time()
    for code in codes:
        begin = time.process_time()
        SiteLiveness(module.map, code)
        slowest = max(slowest, time.process_time() - begin) if len(code.iced) < 200 else slowest
    assert time.process_time() - started < 4  # the aim is 0.6 s
    found = [site_scratch(module.map, code, address) for code, address in blocks]
    assert sum(each.flags_dead for each in found) > 0.6 * len(found)
    assert sum(bool(each.dead) for each in found) > 0.5 * len(found)


def in_front(solved, number):
    """Return what is live in front of an instruction as a walk to the end of its straight line has it."""
    line = solved._line(number)
    live = line.live
    for successor in line.successors:
        live |= line.pending & solved._live[successor]
    return solved.candidates & live


def random_code(seed):
    """Return the assembly of a function of straight lines of all lengths, with calls and jumps among them."""
    choose = random.Random(seed)
    names = ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
    lines = []
    for block in range(12):
        lines.append(f"{block}0:")
        for _ in range(choose.randrange(12)):
            one, other = choose.choice(names), choose.choice(names)
            forms = (f"mov {one}, {other}", f"add {one}, {other}", f"lea {one}, [{other} + 8]", f"xor {one}, {one}")
            lines.append(choose.choice((*forms, f"cmp {one}, {other}", f"adc {one}, {other}")))
        ends = ("", f"jnz {choose.randrange(block + 1)}0b", f"jmp {block + 1}0f", "call rsi", "call callee", "syscall")
        lines.append(choose.choice(ends))
    return "\n ".join([*lines, "120: ret"])


@pytest.mark.parametrize("kind", [SiteLiveness, VectorLiveness])
@pytest.mark.parametrize("seed", range(4))
def test_one_pass_over_a_line_says_what_a_walk_from_each_site_says(build, kind, seed):
    callee = function("callee", "mov r11, rdi\n test r11, r11\n mov rax, r11\n ret")
    module = Module.assembled(build, function("tested", random_code(seed)), callee)
    code = module["tested"]
    walked = kind(module.map, code)
    expected = [walked.candidates & ~in_front(walked, number) for number in range(len(code.iced))]
    addresses = list(code.addresses)
    random.Random(seed).shuffle(addresses)
    passed = kind(module.map, code)
    assert {address: passed.dead_at(address) for address in addresses} == dict(
        zip(code.addresses, expected, strict=True)
    )


def test_the_sites_of_a_long_straight_line_are_walked_over_once(build, monkeypatch):
    text = "\n ".join(["addps xmm0, xmm1", "mulps xmm1, xmm0"] * 2000 + ["ret"])  # registers stay undecided to the end
    module = Module.assembled(build, function("tested", text))
    code = module["tested"]
    walks = []
    line = SiteLiveness._line
    monkeypatch.setattr(SiteLiveness, "_line", lambda self, here: walks.append(here) or line(self, here))
    solved = SiteLiveness(module.map, code)
    for address in code.addresses:
        solved.dead_at(address)
    assert len(code.addresses) == 4001
    assert len(walks) <= 3
