/* Calls of the C library by way of the linker's stubs, and code that nothing names. */
#include "protocol.h"
#include <stdlib.h>
TALLY(labs); TALLY(llabs); TALLY(nameless);
long by_nameless(long);

asm(".p2align 4\n"
    /* No symbol, no unwind entry: only a call leads there. */
    "1: lea 1(%rdi),%rax\nadd %rdi,%rax\ncmp $7,%rax\njle 2f\nadd $100,%rax\n2: ret\n"
    ".byte 0x13, 0x37, 0x48, 0x8b\n" /* a table */
    ".p2align 4\n"
    FUNCTION(by_nameless) "call 1b\nadd $1,%rax\nret\n" END(by_nameless)
    ".p2align 4\n");

static void one_round(void) {
    for (long i = 0; i < 100; i++) {
        long sum = 2 * i + 1;
        labs_tally.calls++, llabs_tally.calls++, nameless_tally.calls++;
        if (labs(-i) != i || llabs(-i * 3) != i * 3) check(0, "libc");
        if (by_nameless(i) != sum + 1 + (sum > 7 ? 100 : 0)) check(0, "nameless");
    }
}
static void setup(int argc, char **argv) {
    (void)argc, (void)argv;
    USE_TALLY(labs); USE_TALLY(llabs); USE_TALLY(nameless);
}
