/* Branches back into the first bytes: to the first instruction, to the second, from a distance, and compiled ones. */
#include "protocol.h"
TALLY(to_first); TALLY(to_first_far); TALLY(to_second); TALLY(to_third); TALLY(scan); TALLY(gcd);
long to_first(long, long), to_first_far(long, long), to_second(long, long), to_third(long, long);
asm(".p2align 4\n"
    FUNCTION(to_first)                     /* 2-byte branch to the first byte */
    "add %rdi,%rsi\ndec %rdi\njnz to_first\nmov %rsi,%rax\nret\n" END(to_first)
    ".p2align 4\n"
    FUNCTION(to_first_far)                 /* 6-byte branch to the first byte, and a second one */
    "dec %rdi\njz 1f\nadd $2,%rsi\n.byte 0x0f,0x8f\n.long to_first_far-.-4\nud2\n1: lea (%rsi),%rax\nret\n" END(to_first_far)
    ".p2align 4\n"
    FUNCTION(to_second)
    "mov %esi,%eax\n1: add $3,%eax\ndec %edi\njnz 1b\nret\n" END(to_second)
    ".p2align 4\n"
    FUNCTION(to_third)
    "push %rbx\nmov %esi,%eax\n1: inc %eax\ndec %edi\njnz 1b\npop %rbx\nret\n" END(to_third)
    ".p2align 4\n");
PROBED int scan(const char *p) { int r; do { r = *p++; } while (r); return 0; }
PROBED unsigned long gcd(unsigned long a, unsigned long b) { while (b) { unsigned long t = a % b; a = b; b = t; } return a; }
static long next;
static void one_round(void) {
    long n = 1 + ++next % 50;
    COUNTED(to_first, check(to_first(n, 7) == 7 + n * (n + 1) / 2, "to_first"));
    COUNTED(to_first_far, check(to_first_far(n, 7) == 7 + 2 * (n - 1), "to_first_far"));
    COUNTED(to_second, check(to_second(n, 5) == 5 + 3 * n, "to_second"));
    COUNTED(to_third, check(to_third(n, 5) == 5 + n, "to_third"));
    COUNTED(scan, check(scan("some text to walk over") == 0, "scan"));
    COUNTED(gcd, check(gcd(1071 * n, 462 * n) == 21 * n, "gcd"));
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(to_first); USE_TALLY(to_first_far); USE_TALLY(to_second); USE_TALLY(to_third); USE_TALLY(scan); USE_TALLY(gcd);
}
