"""Jumps and calls that lead into a function though nothing names where, and constants that look like padding.

What the program prints and how it ends is what it is without probes, and of each function as many calls end as begin,
or its ends are refused.
"""

import subprocess

import pytest

from support.programs_among_data import LEVELS, check

THREADED = r"""
#include <stdio.h>
static const int *offs; static char *base; volatile long acc;
__attribute__((noinline)) long interp(void **p, long x) {
  static const int off[] = {&&a - &&a, &&b - &&a, &&c - &&a, &&d - &&a, &&e - &&a};
  if (!p) { offs = off; base = &&a; return 0; }
  goto **p++;
a: x += 1; goto **p++;
b: x *= 3; goto **p++;
c: x ^= 5; goto **p++;
d: x -= acc; goto **p++;
e: return x; }
int main(void) { void *code[16]; long x = 1; unsigned n = 1; interp(0, 0);
  for (int i = 0; i < 300; i++) {
    for (int k = 0; k < 15; k++) code[k] = base + offs[(n = n * 1103515245 + 12345) >> 16 & 3];
    code[15] = base + offs[4]; x = interp(code, x); }
  printf("%lx\n", x); return x & 63; }
"""
SWITCH = r"""
#include <stdio.h>
volatile long acc;
__attribute__((noinline)) long choose(long n, long x) {
  switch (n) { case 0: acc++; return x + 1; case 1: x *= 3; break; case 2: x ^= 5; break; case 3: return x - acc;
    case 4: x = ~x; break; case 5: acc += 2; return 7; case 6: x += 11; break; default: return x; }
  acc ^= x; return x; }
int main(void) { long x = 1; for (int i = 0; i < 300; i++) x = choose(i * 7 % 9, x);
  printf("%lx\n", x); return x & 63; }
"""
THUNKS = ("-fcf-protection=none", "-fjump-tables")
PROGRAMS = {
    "labels that only distances name": (THREADED, "c", ("-O2",)),
    "the same at a fixed address": (THREADED, "c", ("-O1", "-no-pie")),
    "the same in small": (THREADED, "c", ("-Os",)),
    "the same by retpolines": (THREADED, "c", ("-O2", *THUNKS, "-mindirect-branch=thunk")),
    "a jump table by retpolines": (SWITCH, "c", ("-O2", *THUNKS, "-mindirect-branch=thunk")),
    "a jump table by inline retpolines": (SWITCH, "c", ("-O2", *THUNKS, "-mindirect-branch=thunk-inline")),
}
MAIN = """.intel_syntax noprefix
.section .note.GNU-stack,"",@progbits
.text
.globl main
.type main, @function
main: .cfi_startproc
 push rbx
 .cfi_adjust_cfa_offset 8
 mov ebx, 300
1: mov edi, ebx
 imul rdi, rdi, 0x1234567
 call probed
 add [rip + total], rax
 dec ebx
 jne 1b
 lea rdi, [rip + format]
 mov rsi, [rip + total]
 xor eax, eax
 call printf@plt
 mov eax, [rip + total]
 and eax, 63
 pop rbx
 .cfi_adjust_cfa_offset -8
 ret
 .cfi_endproc
.size main, .-main
.data
total: .quad 0
format: .asciz "%lx\\n"
.text
.p2align 4
.type probed, @function
probed: .cfi_startproc
"""
END = " .cfi_endproc\n.size probed, .-probed\n"
ASSEMBLED = {
    "a constant behind a return": """ mov rax, rdi
 test rdi, rdi
 je 1f
 and rdi, [rip + .Lhigh]
 shr rdi, 2
 or rax, rdi
1: ret
END
.Lhigh: .quad 0xcccccccccccccccc
""",
    "a constant behind a short function": """ mov rax, [rip + .Lmask]
 ret
END
.Lmask: .quad 0x9090909090909090
""",
    "a constant behind a call that never returns": """ test rdi, rdi
 jne 2f
 mov edi, 3
 call exit@plt
.Lnumber: .quad 0x5150535457505152
2: mov rax, [rip + .Lnumber]
 xor rax, rdi
 ret
END
""",
    "a call into the middle of a line": """ sub rsp, 8
 .cfi_adjust_cfa_offset 8
 and edi, 7
 xor eax, eax
 cmp edi, 7
 je 3f
 lea rdx, [rip + 2f]
 shl rdi, 2
 sub rdx, rdi
 call rdx
 add rsp, 8
 ret
3: call 4f
 add rsp, 8
 ret
4: .rept 8
 lea eax, [rax + rax + 3]
 .endr
2: ret
END
""",
    "a piece that is called through a pointer": """ lea rcx, [rip + 1f]
 sub rsp, 8
 .cfi_adjust_cfa_offset 8
 call rcx
 add rsp, 8
 ret
1: lea rax, [rdi + 5]
 ret
END
""",
    "a call made by hand": """ lea rcx, [rip + 1f]
 push rcx
 jmp leaf
1: add rax, 3
 ret
END
leaf: mov rax, rdi
 ret
""",
}


@pytest.fixture
def build(tmp_path):
    def build(source, language, flags, stripped):
        path = tmp_path / "program"
        command = ["gcc", "-w", "-x", language, "-", "-x", "none", "-o", path, *flags]
        subprocess.run(command, input=source, text=True, check=True)
        if stripped:
            subprocess.run(["strip", path], check=True)
        return path

    return build


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("stripped", [False, True], ids=["symbols", "stripped"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_jumps_where_nothing_names_the_label(build, name, stripped, level):
    source, language, flags = PROGRAMS[name]
    check(build(source, language, flags, stripped), level)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("stripped", [False, True], ids=["symbols", "stripped"])
@pytest.mark.parametrize("name", ASSEMBLED)
def test_constants_and_pieces_of_described_functions(build, name, stripped, level):
    check(build(MAIN + ASSEMBLED[name].replace("END\n", END), "assembler", (), stripped), level)


PARTS = """.intel_syntax noprefix
.section .note.GNU-stack,"",@progbits
.text
.p2align 4
.globl forward
.type forward, @function
forward: mov rcx, rdi
.Lcopy: lea rax, [rcx + 3]
 nop
 ret
.size forward, .-forward
.p2align 4
.globl either
.type either, @function
either: mov rcx, rdi
 test rdi, 1
 jne forward
 inc rcx
 jmp .Lcopy
.size either, .-either
"""
CALLER = r"""
#include <stdio.h>
typedef long fn(long); fn forward, either; fn *volatile ways[] = {forward, either};
int main(void) { long x = 0; for (long i = 0; i < 300; i++) x += ways[i & 1](i * 3); printf("%ld\n", x); return 0; }
"""


def test_what_data_points_to_is_no_part_of_another_function(tmp_path):
    """Who jumps into its middle leaves his own function there; its entries count who jumps to its start, too."""
    (tmp_path / "parts.s").write_text(PARTS)
    (tmp_path / "caller.c").write_text(CALLER)
    path = tmp_path / "program"
    subprocess.run(["gcc", "-O2", "-w", tmp_path / "caller.c", tmp_path / "parts.s", "-o", path], check=True)
    hits = check(path, "functions", shared=("forward",))
    assert hits["either"] == (150, 150)
    assert hits["forward"][0] >= 150
