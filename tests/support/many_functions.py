"""A program with as many functions as one likes, each of which it calls once a round and checks."""

from pathlib import Path

from support.driver import build

HEAD = """#include "protocol.h"
extern long (*const all_functions[])(long);
static void setup(int argc, char **argv) { (void)argc; (void)argv; }
static void one_round(void) {
    for (long n = 0; n < NUMBER; n++) check(all_functions[n](n) == n * 4, "one of many");
}
"""
FUNCTION = """.globl many_N
.type many_N,@function
many_N:
push %rbp
lea (%rdi,%rdi,2),%rax
add $N,%rax
pop %rbp
ret
.size many_N,.-many_N
.p2align 4
"""


def many_functions(number: int) -> Path:
    """Return a program with the functions ``many_0``, ``many_1`` and so on."""
    functions = "".join(FUNCTION.replace("N", str(n)) for n in range(number))
    table = "".join(f".quad many_{n}\n" for n in range(number))
    assembly = (
        f".text\n.p2align 4\n{functions}"
        f'.section .data.rel.ro,\\"aw\\"\n.globl all_functions\n.p2align 3\nall_functions:\n{table}.text'
    )
    lines = "\n".join(f'"{line}\\n"' for line in assembly.splitlines())
    return build("many.c", text=HEAD.replace("NUMBER", str(number)) + f"__asm__(\n{lines});\n")
