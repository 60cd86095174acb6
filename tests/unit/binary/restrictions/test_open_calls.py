"""System calls of which the code does not say that they make no task."""

import pytest

from anyprobe.binary.images.image import Image
from anyprobe.binary.restrictions.open_calls import values_at
from anyprobe.isa.assemble import Assembler
from anyprobe.isa.decode import decode_range
from anyprobe.isa.registers import NUMBERS

HEAD = """
static inline __attribute__((always_inline)) long raw(long number, long flags) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(flags), "S"(0), "d"(0) : "rcx", "r11", "memory");
    return result;
}
static inline __attribute__((always_inline)) long old(long number) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number) : "memory");
    return result;
}
long given, flags;
"""
CASES = {
    "raw(given, 0)": True,
    "raw(56, flags)": True,
    "raw(435, flags)": True,
    "raw(argc > 1 ? 39 : given, 0)": True,
    "raw(39, flags)": False,
    "raw(56, 17)": False,
    "old(given)": True,
    "old(120)": True,
    "old(20)": False,
}


@pytest.mark.parametrize("level", ["-O1", "-O2", "-Os"])
@pytest.mark.parametrize("call", CASES)
def test_what_may_make_a_task(build, call, level):
    image = Image.open(build(HEAD + f"int main(int argc, char **argv) {{ (void)argv; return (int){call}; }}", level))
    found = [image.functions.containing(at).name for at in image.open_calls.tolist()]
    assert found == ["main"] * CASES[call]


@pytest.mark.parametrize("path", ["/usr/bin/python3.11", "/usr/bin/redis-server", "/usr/bin/perl"])
def test_everyday_programs_have_none(path):
    assert not len(Image.open(path).open_calls)


LISTINGS = {
    "mov eax, 39; syscall": {39},
    "mov ebx, 202; again: mov eax, ebx; syscall; jmp again": {202},
    "mov ebx, 202; again: mov eax, ebx; syscall; call rdx; jmp again": {202},
    "mov r8d, 202; again: mov eax, r8d; syscall; call rdx; jmp again": None,
    "xor eax, eax; syscall": {0},
    "test edi, edi; jz short two; mov eax, 1; jmp both; two: mov eax, 2; both: syscall": {1, 2},
    "test edi, edi; jz short two; mov eax, 1; jmp both; two: mov rax, [rsi]; both: syscall": None,
    "mov rax, rdi; syscall": None,
    "mov eax, 39; inc eax; syscall": None,
    "mov eax, 39; ret; nop; syscall": None,
}


@pytest.mark.parametrize("listing", LISTINGS)
def test_all_values_that_a_register_may_have(listing):
    asm = Assembler()
    asm.code(listing.replace(": ", ":\n"))
    code = decode_range(asm.finish(0), 0)
    number = next(number for number, insn in enumerate(code) if insn.raw == b"\x0f\x05")
    assert values_at(code, number, NUMBERS["rax"]) == LISTINGS[listing]
