/* Code that no compiler's function holds: linkage stubs, the vdso, an IFUNC and its resolver, functions that share
 * their instructions, have several entries, or hold data; code between functions. */
#include "protocol.h"
#include <math.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <time.h>
TALLY(clock_gettime); TALLY(gettimeofday); TALLY(getcpu); TALLY(stub); TALLY(chosen);
TALLY(two_doors); TALLY(second_door); TALLY(shared_tail_a); TALLY(shared_tail_b); TALLY(holds_data); TALLY(between); TALLY(falls_in);
TALLY(overlapping);
int getcpu(unsigned *, unsigned *);
long two_doors(long), second_door(long), shared_tail_a(long), shared_tail_b(long), holds_data(long), falls_in(long), call_between(long), overlapping(long);
#define ALIGNED(name) ".p2align 4\n" FUNCTION(name)
asm(/* one function with two symbols: falls from the first into the second */
    ALIGNED(two_doors) "add $100,%rdi\n.globl second_door\n.type second_door,@function\nsecond_door: lea 1(%rdi),%rax\nret\n"
    ".size second_door, . - second_door\n" END(two_doors)
    /* jumps into the middle of another function */
    ALIGNED(shared_tail_a) "mov %rdi,%rax\nadd $1,%rax\n1: shl $1,%rax\nret\n" END(shared_tail_a)
    ALIGNED(shared_tail_b) "mov %rdi,%rax\nadd $2,%rax\njmp 1b\n" END(shared_tail_b)
    /* runs into the next function */
    ALIGNED(falls_in) "add $5,%rdi\n" END(falls_in) "jmp second_door\n"
    /* a table in the middle of the text that is no code, and looks like some */
    ALIGNED(holds_data) "lea 2f(%rip),%rax\nand $3,%edi\nmovzbl (%rax,%rdi),%eax\njmp 3f\n2: .byte 0xe8, 0x0f, 0xc7, 0x48\n3: add $1,%eax\nret\n" END(holds_data)
    /* no symbol, no unwind entry */
    ".p2align 4\nlea 7(%rdi),%rax\nret\n"
    ALIGNED(call_between) "lea call_between-16(%rip),%rax\njmp *%rax\n" END(call_between)
    /* the second way in skips a prefix: lock add or add */
    ALIGNED(overlapping) "xor %eax,%eax\nmov %rdi,-8(%rsp)\ntest $1,%dil\nje 4f+1\n4: lock addq $3,-8(%rsp)\nmov -8(%rsp),%rax\nret\n" END(overlapping)
    ".p2align 4\n");
static long plain_choice(long x) { return x + 11; }
static long (*resolve_chosen(void))(long) { return plain_choice; }
long chosen(long) __attribute__((ifunc("resolve_chosen")));
static long next;
static void one_round(void) {
    struct timespec now;
    struct timeval day;
    unsigned processor;
    volatile double x = 0.5;
    long n = ++next;
    COUNTED(clock_gettime, check(!clock_gettime(CLOCK_MONOTONIC, &now), "clock_gettime"));
    COUNTED(clock_gettime, check(!clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now), "clock_gettime by the kernel"));
    COUNTED(gettimeofday, check(!gettimeofday(&day, 0) && day.tv_sec > 1000000, "gettimeofday"));
    COUNTED(getcpu, check(!getcpu(&processor, 0), "getcpu"));
    COUNTED(stub, check(cos(x) > 0.8, "a stub"));
    COUNTED(chosen, check(chosen(n) == n + 11, "an IFUNC"));
    COUNTED(two_doors, check(two_doors(n) == n + 101, "two_doors"));
    COUNTED(second_door, check(second_door(n) == n + 1, "second_door"));
    COUNTED(falls_in, check(falls_in(n) == n + 6, "falls_in"));
    COUNTED(shared_tail_a, check(shared_tail_a(n) == 2 * n + 2, "shared_tail_a"));
    COUNTED(shared_tail_b, check(shared_tail_b(n) == 2 * n + 4, "shared_tail_b"));
    static const int held[] = {0xe9, 0x10, 0xc8, 0x49};
    COUNTED(holds_data, check(holds_data(n) == held[n & 3], "data in the text"));
    COUNTED(between, check(call_between(n) == n + 7, "code between functions"));
    COUNTED(overlapping, check(overlapping(n) == n + 3, "overlapping instructions"));
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(clock_gettime); USE_TALLY(gettimeofday); USE_TALLY(getcpu); USE_TALLY(stub); USE_TALLY(chosen);
    USE_TALLY(two_doors); USE_TALLY(second_door); USE_TALLY(shared_tail_a); USE_TALLY(shared_tail_b); USE_TALLY(holds_data);
    USE_TALLY(between); USE_TALLY(falls_in); USE_TALLY(overlapping);
}
