/* Functions of one to four bytes, with padding behind them and packed against the next one. */
#include "protocol.h"
TALLY(three); TALLY(three_packed); TALLY(four); TALLY(four_packed); TALLY(two); TALLY(lone_ret); TALLY(lone_ret_packed); TALLY(last_packed);
int three(int), three_packed(int), four(int), four_packed(int), last_packed(int);
void two(void), lone_ret(void), lone_ret_packed(void);
asm(".p2align 4\n"
    FUNCTION(three) "xor %eax,%eax\nret\n" END(three)
    ".p2align 4\n"
    FUNCTION(four) "lea 1(%rdi),%eax\nret\n" END(four)
    ".p2align 4\n"
    FUNCTION(two) "nop\nret\n" END(two)
    ".p2align 4\n"
    FUNCTION(lone_ret) "ret\n" END(lone_ret)
    ".p2align 4\n"
    FUNCTION(three_packed) "xor %eax,%eax\nret\n" END(three_packed)
    FUNCTION(lone_ret_packed) "ret\n" END(lone_ret_packed)
    FUNCTION(four_packed) "lea 2(%rdi),%eax\nret\n" END(four_packed)
    FUNCTION(last_packed) "mov %edi,%eax\nret\n" END(last_packed)
    ".p2align 4\n");
static int next;
static void one_round(void) {
    int x = ++next;
    COUNTED(three, check(three(x) == 0, "three"));
    COUNTED(four, check(four(x) == x + 1, "four"));
    COUNTED(two, two());
    COUNTED(lone_ret, lone_ret());
    COUNTED(three_packed, check(three_packed(x) == 0, "three_packed"));
    COUNTED(lone_ret_packed, lone_ret_packed());
    COUNTED(four_packed, check(four_packed(x) == x + 2, "four_packed"));
    COUNTED(last_packed, check(last_packed(x) == x, "last_packed"));
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(three); USE_TALLY(three_packed); USE_TALLY(four); USE_TALLY(four_packed); USE_TALLY(two);
    USE_TALLY(lone_ret); USE_TALLY(lone_ret_packed); USE_TALLY(last_packed);
}
