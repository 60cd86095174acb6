"""Programs of which nothing tells where their functions are: data among the code, and functions that look like one.

Built without unwind tables and stripped. What they print and how they end is what it is without probes, and of each
function that is counted to its end as many calls end as begin.
"""

import shutil
import subprocess

import pytest

from support.programs_among_data import LEVELS, check

BARE = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions", "-w")
TOP = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#define N __attribute__((noinline, noipa))\n"
TOP += "volatile int sink;\n"
ASSEMBLY = '.intel_syntax noprefix\n.section .note.GNU-stack,"",@progbits\n.text\n'
MAIN = (
    ASSEMBLY
    + ".globl main\n.type main, @function\nmain: push rbx\n{}\n xor eax, eax\n pop rbx\n ret\n.size main, .-main\n"
)
START = (
    ASSEMBLY
    + """.globl _start
_start: lea rdi, [{}]
 call say
 xor edi, edi
 call exit@plt
 hlt
 .p2align 4
say: push rbx
"""
)
OPS = "static int plus(int x) { sink++; return x + 1; }\nstatic int minus(int x) { sink++; return x - 1; }\n"
COMPUTED = """.p2align 4
shifted: lea rax, [rip + base]
 lea rax, [rax + rdi*4]
 imul rcx, rdi, 4
 sub rax, rcx
 jmp rax
 .p2align 3
base: add edi, 1
 mov eax, edi
 ret
 .p2align 4
"""
"""A jump that nobody can follow."""

ASSEMBLED = {
    "text that the start of the program hands on": START.format("rip + text")
    + """ call puts@plt
 pop rbx
 ret
 .p2align 4
text: .asciz "Hello, world!"
""",
    "texts that data points to": MAIN.format(
        "xor ebx, ebx\n1: lea rax, [rip + words]\n mov rdi, [rax + rbx*8]\n call puts@plt\n"
        " inc ebx\n cmp ebx, 3\n jne 1b"
    )
    + """.p2align 4
.Lone: .asciz "\\303\\211cole normale"
 .p2align 4, 0x90
.Ltwo: .asciz "Zone\\303\\251"
 .p2align 4, 0x90
.Lthree: .asciz "PXPX\\303\\251 abc"
 .p2align 4
 .section .data.rel.ro, "aw"
 .p2align 3
words: .quad .Lone, .Ltwo, .Lthree
""",
    "numbers behind a jump that nobody can follow": MAIN.format(
        """xor ebx, ebx
1: mov edi, ebx
 and edi, 3
 call shifted
 add ebx, 1
 cmp ebx, 8
 jne 1b
 xor edi, edi
 lea rdx, [rip + line]
 lea rcx, [rip + line + 40]
3: add edi, [rdx]
 add rdx, 4
 cmp rdx, rcx
 jne 3b
 call exit@plt"""
    )
    + COMPUTED
    + "line: .long 1, 2, 3, 4, 5, 8, 9, 10, 11, 12\n .p2align 4\n",
    "text in a function beside one that nobody can follow": MAIN.format("mov edi, 1\n call shifted\n call [rip + ops]")
    + COMPUTED
    + """pointed: push rbx
 lea rdi, [rip + text]
 jmp 1f
text: .ascii "PQRSTUVWXPQRSTUVWX\\0\\0"
 nop
1: call puts@plt
 pop rbx
 ret
 .p2align 4
 .data
ops: .quad pointed
""",
    "text behind a call": MAIN.format("call greet")
    + '.p2align 4\ngreet: push rbx\n call 1f\n .asciz "hello\\n"\n'
    + "1: pop rdi\n call puts@plt\n pop rbx\n ret\n.p2align 4\n",
    "text behind the last system call": ASSEMBLY
    + """.globl _start
_start: mov ebx, 3
1: mov edi, 1
 lea rsi, [rip + text]
 mov edx, 15
 call write@plt
 dec ebx
 jne 1b
 xor edi, edi
 mov eax, 60
 syscall
text: .ascii "PQRSTUVWXYZ 12\\n"
 .p2align 4
""",
    "two ways in that only data points to": MAIN.format(
        """ mov ebx, 300
1: lea rdx, [rip + ways]
 mov eax, ebx
 and eax, 1
 mov edi, ebx
 call [rdx + rax*8]
 add [rip + total], eax
 dec ebx
 jne 1b
 lea rdi, [rip + format]
 mov esi, [rip + total]
 xor eax, eax
 call printf@plt"""
    )
    + """.p2align 4
first: push rbx
 add edi, 3
 pop rbx
second: push rbx
 mov ebx, edi
 lea eax, [rbx + rbx]
 pop rbx
 ret
.section .data.rel.ro, "aw"
ways: .quad first, second
.data
total: .long 0
format: .asciz "%d\\n"
""",
    "a jump into the middle of a function that is called": MAIN.format(
        "mov ebx, 1000\n1: mov edi, ebx\n and edi, 3\n call dispatch\n call three\n dec ebx\n jne 1b"
    )
    + """.p2align 4
dispatch: xor eax, eax
 neg rdi
 lea rcx, [rip + zero]
 lea rcx, [rcx + rdi*2]
 jmp rcx
 .p2align 4
three: xor eax, eax
 inc eax
 inc eax
 inc eax
zero: mov ecx, 5
 ret
 .p2align 4
""",
    "a function in three pieces": MAIN.format(
        "mov ebx, 100\n1: mov edi, 10\n call f\n call g\n call h\n dec ebx\n jne 1b"
    )
    + """.p2align 4
f: xor eax, eax
.Lloop: add eax, edi
 jmp .Lsecond
 .p2align 4
g: nop
 ret
 .p2align 4
.Lsecond: sub edi, 1
 jmp .Lthird
 .p2align 4
h: nop
 ret
 .p2align 4
.Lthird: test edi, edi
 jne .Lloop
 ret
 .p2align 4
""",
    "an address far away": START.format("rip - 0x10000")
    + """ lea rdi, [rip + text]
 call puts@plt
 pop rbx
 ret
 .p2align 4
 .ascii "zzzzz"
 .section .rodata
text: .asciz "hi"
""",
}
COMPILED = {
    "a table that a constructor reads": (
        r"""extern const char table[] __attribute__((visibility("hidden")));
__asm__(".text\n.p2align 5\n.hidden table\n.globl table\ntable: .ascii \"Salted__key0123456789\\n\\0\"\n.p2align 4\n");
int n;
__attribute__((constructor)) static void setup(void) { n = strlen(table); }
int main(void) { fputs(table, stdout); return n; }""",
        ("-O2", "-fno-builtin"),
    ),
    "nops at the beginning of a function that a table of distances leads to": (
        r"""__asm__(".text\n.p2align 4\nf: lea 1(%rdi), %eax\n movl %eax, sink(%rip)\n add $5, %eax\n nop\n ret\n"
 ".p2align 4\ng: .byte 0x90,0x90,0x90,0x90,0x90\n lea 2(%rdi), %eax\n ret\n .p2align 4\n"
 ".section .rodata\n.p2align 2\ntbl: .long f-tbl, g-tbl\n.text\n"
 "invoke: lea tbl(%rip), %rax\n movslq (%rax,%rsi,4), %rcx\n add %rcx, %rax\n"
 " sub $8,%rsp\n call *%rax\n add $8,%rsp\n ret\n"
 "direct: sub $8,%rsp\n call f\n add $8,%rsp\n ret\n");
int invoke(int, long); int direct(int);
int main(void) { int s = 0; for (int i = 0; i < 100; i++) s += invoke(i, i & 1) + direct(i); printf("%d\n", s); }""",
        ("-O2",),
    ),
    "a neighbour that others jump to": (
        r"""N static int g(int x);
N static int f(int x) { sink++; return g(x + 1); }
N static int g(int x) { sink += x; return sink & 7; }
N static int h(int x) { sink--; return g(x - 1); }
int main(void) { int s = 0; for (int i = 0; i < 10; i++) s += f(i); for (int i = 0; i < 1000; i++) s += h(i);
 printf("%d\n", s); return 0; }""",
        ("-O2", "-fno-toplevel-reorder"),
    ),
    "a call of the library that never returns": (
        r"""__attribute__((noinline, noreturn)) static void give_up(int c) { sink = c; exit(c); }
"""
        + OPS
        + r"""static int (*ops[])(int) = {plus, minus};
int (**volatile where)(int) = ops;
int main(int c, char **v) { int x = 0; for (int i = 0; i < 100; i++) x += where[i & 1](i); printf("%d\n", x);
 if (c > 3) give_up(c); return 0; }""",
        ("-Os", "-fno-plt", "-fno-toplevel-reorder"),
    ),
    "retpolines": (
        OPS
        + r"""int (*volatile ops[])(int) = {plus, minus};
__attribute__((noinline)) static int apply(int k, int x) {
 if (__builtin_expect(k & 1, 1)) { sink++; return x ^ 5; }
 int r = ops[k >> 1 & 1](x); sink += r; if (r > 50) r -= 7; return r; }
int main(void) { int x = 0; for (int i = 0; i < 100; i++) x += apply(i, x); printf("%d\n", x); return 0; }""",
        ("-O2", "-mindirect-branch=thunk"),
    ),
    "labels behind a call with arguments on the stack": (
        r"""N void *next_of(void **pc, long a, long b, long c, long d, long e, long f) {
 static long n; return pc[n++ % 5 == 4 ? 0 : n % 2 + 1]; }
long acc;
N void interp(void) {
 static void *ops[] = {&&halt, &&inc, &&dbl};
top: goto *next_of(ops, 1, 2, 3, 4, 5, 6);
halt: acc += 100; return;
inc: acc++; goto top;
dbl: acc += 2; goto top; }
int main(void) { for (int i = 0; i < 100; i++) interp(); printf("%ld\n", acc); return 0; }""",
        ("-O2",),
    ),
    "room for patches in front of functions": (
        OPS
        + r"""int (*volatile ops[])(int) = {plus, minus};
int main(void) { int x = 0; for (int i = 0; i < 100; i++) x += ops[i & 1](i); printf("%d\n", x); return 0; }""",
        ("-O2", "-fpatchable-function-entry=8,4"),
    ),
}


def built(folder, source, language, *flags, stripped=True):
    path = folder / "program"
    command = ["gcc", *BARE, "-x", language, "-", "-x", "none", "-o", path, *flags]
    subprocess.run(command, input=source, text=True, check=True)
    if stripped:
        subprocess.run(["strip", path], check=True)
    return path


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ASSEMBLED)
def test_data_and_functions_of_assembly(tmp_path, name, level):
    source = ASSEMBLED[name]
    check(built(tmp_path, source, "assembler", *(() if "main:" in source else ("-nostartfiles",))), level)


LABELLED = {
    "text behind a call": ASSEMBLED["text behind a call"],
    "text behind the last system call": ASSEMBLED["text behind the last system call"],
    "a table that jumps to itself": MAIN.format(
        """ lea rbx, [rip + table]
 mov rax, [rbx]
 xor rax, [rbx + 8]
 mov edi, 33
 test rax, rax
 je 1f
 mov edi, 64
1: call putchar@plt
 lea rdi, [rip + table + 16]
 call puts@plt
 jmp 3f
table: .byte 0x75, 0xfe, 0xeb, 0xfc, 0xe8, 0xf7, 0xff, 0xff, 0x75, 0xfe, 0xeb, 0xfc, 0xe8, 0xf7, 0xff, 0xff
 .asciz "whole"
3:"""
    ),
    "text with a name that data points to": MAIN.format(
        """ mov rdi, [rip + where]
 call puts@plt
 mov rax, [rip + how]
 call rax"""
    )
    + """.p2align 4
pointed_text: .asciz "PQRST uvw"
.p2align 4
worker: push rbx
 mov ebx, 5
 mov edi, 65
 call putchar@plt
 pop rbx
 ret
.section .data.rel.ro, "aw"
where: .quad pointed_text
how: .quad worker
""",
    "functions and data that only labels name": (
        ASSEMBLY
        + """.globl _start
_start: mov ebx, 5
again: mov rdi, rbx
 call squared
 add [rip + total], rax
 dec ebx
 jnz again
 mov rax, [rip + handlers]
 call rax
 lea rsi, [rip + message]
 mov edx, 6
 call print
 mov edi, [rip + total]
 mov eax, 60
 syscall
message: .ascii "hello\n"
numbers: .byte 1, 2, 3, 4
squared: mov rax, rdi
 imul rax, rdi
 ret
print: mov edi, 1
 mov eax, 1
 syscall
 ret
constant: .quad 0x1122334455667788
pointed: mov rax, [rip + constant]
 movzx ecx, byte ptr [rip + numbers + 3]
 shr rax, 56
 add eax, ecx
 add [rip + total], rax
 ret
.data
total: .quad 0
handlers: .quad pointed
"""
    ),
}
"""Programs with symbols, whose labels have no type, or one."""
LABELS = ("text", "pointed_text", "table", "message", "numbers", "constant", "squared")


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["", ".type {}, @object", ".globl {}"], ids=["label", "object", "global"])
@pytest.mark.parametrize("name", LABELLED)
def test_data_in_functions_that_symbols_tell_of(tmp_path, name, kind, level):
    source = LABELLED[name]
    labels = [label for label in LABELS if f"\n{label}: " in source]
    typed = "".join(f"{kind.format(label)}\n" for label in labels)
    flags = () if "main:" in source else ("-nostartfiles",)
    check(built(tmp_path, source + typed, "assembler", *flags, stripped=False), level)


EXITS = {
    "from above": "mov eax, 60\n xor edi, edi\n syscall",
    "from the stack": "push 60\n pop rax\n xor edi, edi\n syscall",
    "in the low byte": "xor eax, eax\n mov al, 60\n xor edi, edi\n syscall",
    "by an addition": "mov edi, 1\n lea eax, [rdi + 58]\n inc eax\n syscall",
    "from a group": "mov rax, 231\n mov rdi, 0\n syscall",
    "from memory": "mov eax, [rip + number]\n xor edi, edi\n syscall",
    "of 32 bits": "mov eax, 1\n xor ebx, ebx\n int 0x80",
}
"""Ways to end a program by a system call, by where its number comes from."""


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("stripped", [True, False], ids=["stripped", "symbols"])
@pytest.mark.parametrize("name", EXITS)
def test_text_behind_the_end_of_a_program(tmp_path, name, stripped, level):
    source = ASSEMBLED["text behind the last system call"]
    end = " xor edi, edi\n mov eax, 60\n syscall\n"
    assert end in source
    source = source.replace(end, f" {EXITS[name]}\n").replace("text", ".Ltext").replace("..Ltext", ".text")
    source += ".data\nnumber: .long 60\n"
    check(built(tmp_path, source, "assembler", "-nostartfiles", stripped=stripped), level)


CHECKED = (
    MAIN.format("mov ebx, 300\n1: mov edi, ebx\n call check\n dec ebx\n jne 1b")
    + """.p2align 4
{}.p2align 4
check: cmp edi, 1000
 jb 2f
 call panic
 .asciz "PQRST: too large"
2: add [rip + total], edi
 ret
.data
total: .long 0
"""
)
TAKERS = {
    "goes on behind the text": ASSEMBLY
    + """.globl _start
print: pop rsi
 xor edx, edx
1: inc edx
 cmp byte ptr [rsi + rdx - 1], 0
 jne 1b
 lea rcx, [rsi + rdx]
 push rcx
 dec edx
 mov edi, 1
 mov eax, 1
 syscall
 ret
_start: mov ebx, 3
1: call print
 .asciz "PQRST uvw\n"
 dec ebx
 jne 1b
 xor edi, edi
 mov eax, 60
 syscall
""",
    "never comes back": CHECKED.format("panic: pop rdi\n push rax\n call puts@plt\n mov edi, 2\n call exit@plt\n"),
    "is an end like any other": CHECKED.format("panic: push rbx\n mov edi, 3\n call exit@plt\n"),
}
"""Text behind a call, which the function that is called knows of, or nobody."""


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("stripped", [True, False], ids=["stripped", "symbols"])
@pytest.mark.parametrize("name", TAKERS)
def test_text_behind_a_call(tmp_path, name, stripped, level):
    source = TAKERS[name]
    flags = () if "main:" in source else ("-nostartfiles",)
    check(built(tmp_path, source, "assembler", *flags, stripped=stripped), level)


DISPATCHING = {
    "distances of two bytes": (
        " and edi, 3\n lea rdx, [rip + .Ltable]\n movzx eax, word ptr [rdx + rdi*2]\n add rax, rdx\n jmp rax\n"
        ".Ltable: .word 1f - .Ltable, 2f - .Ltable, 3f - .Ltable, 4f - .Ltable\n"
        "1: lea eax, [rdi + 1]\n ret\n2: lea eax, [rdi + 22]\n ret\n3: mov eax, edi\n ret\n4: lea eax, [rdi - 9]\n ret"
    ),
    "so many instructions less": (
        " xor eax, eax\n and edi, 7\n lea rdx, [rip + 1f]\n neg rdi\n lea rdx, [rdx + rdi*4]\n jmp rdx\n"
        + " lea eax, [rax + rax + 3]\n" * 8
        + '1: ret\n.Ltext: .asciz "PQRST for all"'
    ),
    "text that data points to": (
        " mov rax, [rip + .Lwhere]\n and edi, 7\n movzx eax, byte ptr [rax + rdi]\n ret\n"
        '.Ltext: .asciz "PQRSTUVWXYZ"\n.section .data.rel.ro, "aw"\n.Lwhere: .quad .Ltext\n.text'
    ),
    "classes that look like nops": (
        " movzx eax, dil\n lea rdx, [rip + .Ltable]\n movzx eax, byte ptr [rdx + rax]\n ret\n"
        ".Ltable: .fill 128, 1, 0x50\n .fill 64, 1, 0x90\n .fill 64, 1, 0x66"
    ),
    "a constant that looks like nops": (
        " mov rax, [rip + .Lnumber]\n test edi, 1\n je 1f\n ret\n"
        ".p2align 3\n.Lnumber: .quad 0x9090909090909090\n1: add eax, edi\n ret"
    ),
}


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("stripped", [True, False], ids=["stripped", "symbols"])
@pytest.mark.parametrize("name", DISPATCHING)
def test_data_within_a_function(tmp_path, name, stripped, level):
    source = MAIN.format(
        """ mov ebx, 800
1: mov edi, ebx
 call probed
 imul edx, [rip + total], 31
 add edx, eax
 mov [rip + total], edx
 dec ebx
 jne 1b
 mov esi, [rip + total]
 lea rdi, [rip + format]
 xor eax, eax
 call printf@plt"""
    )
    source += f".p2align 4\n.type probed, @function\nprobed:{DISPATCHING[name]}\n.size probed, .-probed\n"
    source += '.data\ntotal: .long 0\nformat: .asciz "%d\\n"\n'
    check(built(tmp_path, source, "assembler", stripped=stripped), level)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", COMPILED)
def test_functions_as_compilers_make_them(tmp_path, name, level):
    source, flags = COMPILED[name]
    check(built(tmp_path, TOP + source, "c", *flags), level)


def test_a_number_in_the_code_that_points_into_the_middle_of_an_instruction(tmp_path):
    """In a program at a fixed address any number may; each address of the code is tried."""
    source = (
        TOP
        + r"""
void croak(const char *) __attribute__((noreturn));
__asm__(".text\n.globl croak\ncroak: mov $3, %edi\n call exit\n hlt\n");
long big;
N static long one(long x) { return x + 1; }
N static long two(long x) { return x * 3; }
N static long g(long x) { if (x < 0) croak("negative"); big += x; return big >> 50; }
typedef long fn(long);
fn *const table[] = {g, one};
fn *const *volatile where = table;
N static unsigned hash(unsigned k) { return k * 2654435761u; }
int main(int c, char **v) { unsigned h = hash(NUMBER);
 for (long i = 0; i < 1000; i++) h += two(where[c - 1](i << 40)); printf("%lx\n", big); return 0; }"""
    )
    flags = ("-Os", "-fno-pic", "-no-pie", "-fno-toplevel-reorder")
    whole = tmp_path / "whole"
    command = ["gcc", *BARE, "-x", "c", "-", "-o", whole, *flags, "-DNUMBER=0x401234"]
    subprocess.run(command, input=source, text=True, check=True)
    symbols = subprocess.run(["nm", whole], capture_output=True, text=True, check=True).stdout
    start = next(int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(" g"))
    shutil.rmtree(tmp_path / "tries", ignore_errors=True)
    for at in range(start, start + 48, 3):
        folder = tmp_path / "tries" / f"{at:x}"
        folder.mkdir(parents=True)
        check(built(folder, source, "c", *flags, f"-DNUMBER={at:#x}"), "functions")
