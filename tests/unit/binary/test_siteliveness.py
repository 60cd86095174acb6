import time

import pytest

from anyprobe.binary.siteliveness import SiteLiveness, site_scratch
from module_under_test import Module, function


def scratch_at(build, assembly, *others, place="tested", flags=("-Wl,-Bsymbolic",)):
    """Return what is dead at the instruction behind the label ``here``, marked by a nop."""
    module = Module.assembled(build, function("tested", assembly), *others, flags=list(flags))
    code = module[place]
    here = next(insn.address for insn in code.insns if insn.raw == b"\x90")
    return site_scratch(module.map, code, here)


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
