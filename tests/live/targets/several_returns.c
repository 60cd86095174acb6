/* Functions with one return, with several, with none that is an instruction of their own; a hot and a cold part. */
#include "protocol.h"
TALLY(one_return); TALLY(leaf); TALLY(three_returns); TALLY(hot_and_cold); TALLY(last_call);
static long by_return[3], state;
long three_returns(long), hot_and_cold(long, long);
asm(".p2align 4\n"
    FUNCTION(three_returns)                    /* which ret is left by depends on the argument */
    "cmp $1,%rdi\njb 1f\nje 2f\nlea 0x100(%rdi),%rax\nret\n1: mov $7,%eax\nret\n2: mov %rdi,%rax\nneg %rax\nret\n" END(three_returns)
    ".p2align 4\n"
    FUNCTION(hot_and_cold)                     /* five instructions run for each round, seven for each call */
    "push %rbx\nmov %rdi,%rcx\nxor %eax,%eax\nmov %rsi,%rbx\n"
    "1: add %rbx,%rax\nrol $3,%rax\nxor $0x55,%rax\ndec %rcx\njnz 1b\n"
    "shr $1,%rax\npop %rbx\nret\n" END(hot_and_cold)
    ".p2align 4\n");
PROBED long leaf(long x) { return x * 3 + 1; }
PROBED long one_return(long x) { long y = leaf(x); asm volatile("" : "+r"(y)); return y + leaf(y); }
PROBED long last_call(long x) { return one_return(x + 1); }
static long expected(long rounds, long with) {
    unsigned long a = 0;
    for (; rounds; rounds--) a += (unsigned long)with, a = (a << 3 | a >> 61) ^ 0x55;
    return (long)(a >> 1);
}
static void one_round(void) {
    long which = state++ % 3, got;
    by_return[which]++;
    COUNTED(three_returns, got = three_returns(which));
    check(got == (which == 0 ? 7 : which == 1 ? -1 : 0x102), "three_returns");
    COUNTED(hot_and_cold, check(hot_and_cold(1000, state) == expected(1000, state), "hot_and_cold"));
    CALLED(last_call); CALLED(one_return);
    check(last_call(state) == 3 * (3 * (state + 1) + 1) + 1 + 3 * (state + 1) + 1, "last_call");
    RETURNED(one_return); TAILED(last_call);
    for (int i = 0; i < 2; i++) { CALLED(leaf); RETURNED(leaf); }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(one_return); USE_TALLY(leaf); USE_TALLY(three_returns); USE_TALLY(hot_and_cold); USE_TALLY(last_call);
}
