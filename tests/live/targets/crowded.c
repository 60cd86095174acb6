/* Straight lines too short for a jump, entered from where nobody can be led elsewhere; threads (argument 1) run them. */
static void many_rounds(long n);
#define MANY_ROUNDS 1 /* "go N" is N calls of each function on each thread, "free" goes by 5 000 */
#include "protocol.h"
#include "in_threads.h"
TALLY(loop); TALLY(loop_turns); TALLY(table); TALLY(last_byte); TALLY(right_behind);
long loop(long), table(long), last_byte(long), right_behind(long);

asm(".p2align 4\n"
    /* A loop of four bytes behind a line that can be evicted. */
    FUNCTION(loop) "mov $5,%eax\ntest %edi,%edi\nje 2f\nlea (%rax,%rdi,2),%rax\nadd $1,%rax\n"
    "1: dec %edi\njne 1b\n2: ret\n" END(loop)
    /* The return, one byte, is reached through a table, and the next block follows at once. */
    FUNCTION(table) "mov %rdi,%rax\nand $3,%edi\nlea 9f(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rcx\nadd %rdx,%rcx\njmp *%rcx\n"
    "1: add $100,%rax\n2: ret\n3: add $200,%rax\nadd $33,%rax\nret\n4: xor $7,%rax\nret\n" END(table)
    ".section .rodata\n.p2align 2\n9: .long 1b-9b, 2b-9b, 3b-9b, 4b-9b\n.text\n"
    /* Nothing behind the last byte of one function but the next one. */
    FUNCTION(last_byte) "lea 1(%rdi),%rax\ntest $1,%edi\nje 1f\nadd $10,%rax\n1: ret\n" END(last_byte)
    FUNCTION(right_behind) "lea 2(%rdi),%rdi\njmp last_byte\n" END(right_behind)
    ".p2align 4\n");

static long table_of(long x) {
    switch (x & 3) {
    case 0: return x + 100;
    case 1: return x;
    case 2: return x + 233;
    default: return x ^ 7;
    }
}

static void *caller(void *argument) {
    long n = rounds_of_each, turns = 0;
    for (long i = 0; i < n; i++) {
        long x = i % 7, y = i + (long)argument;
        if (loop(x) != (x ? 6 + 2 * x : 5)) check(0, "loop");
        if (table(y) != table_of(y)) check(0, "table");
        if (last_byte(y) != y + 1 + (y & 1) * 10) check(0, "last_byte");
        if (right_behind(y) != y + 3 + (y & 1) * 10) check(0, "right_behind");
        turns += x;
    }
    __atomic_fetch_add(&loop_tally.calls, n, __ATOMIC_RELAXED);
    __atomic_fetch_add(&table_tally.calls, n, __ATOMIC_RELAXED);
    __atomic_fetch_add(&last_byte_tally.calls, 2 * n, __ATOMIC_RELAXED);
    __atomic_fetch_add(&right_behind_tally.calls, n, __ATOMIC_RELAXED);
    __atomic_fetch_add(&loop_turns_tally.calls, turns, __ATOMIC_RELAXED);
    return 0;
}

static void many_rounds(long n) {
    in_threads(caller, n);
}
static void one_round(void) { many_rounds(5000); }
static void setup(int argc, char **argv) {
    set_threads(argc, argv);
    USE_TALLY(loop); USE_TALLY(loop_turns); USE_TALLY(table); USE_TALLY(last_byte); USE_TALLY(right_behind);
}
