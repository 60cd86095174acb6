/* Tail calls: unconditional in both lengths, conditional in both lengths, and indirect. */
#include "protocol.h"
TALLY(tail_long); TALLY(tail_short); TALLY(second); TALLY(jne_short); TALLY(jne_long); TALLY(tail_indirect); TALLY(thunk);
int thunk(int), tail_long(int), tail_short(int), second(int), jne_short(int), jne_long(int), tail_indirect(int);
int (*pointer)(int) = second;
asm(".p2align 4\n"
    FUNCTION(tail_long) "add $2,%edi\n.byte 0xe9\n.long second-.-4\n" END(tail_long)      /* jmp second, 5 bytes */
    ".p2align 4\n"
    FUNCTION(tail_short) "add $3,%edi\n.byte 0xeb\n.byte second-.-1\n" END(tail_short)    /* jmp second, 2 bytes */
    ".p2align 4\n"
    FUNCTION(jne_short) "test $1,%edi\n.byte 0x75\n.byte second-.-1\nlea 4(%rdi),%eax\nret\n" END(jne_short)
    ".p2align 4\n"
    FUNCTION(second) "lea 1(%rdi),%eax\nret\n" END(second)
    ".p2align 4\n"
    FUNCTION(jne_long) "test $1,%edi\n.byte 0x0f,0x85\n.long second-.-4\nlea 5(%rdi),%eax\nret\n" END(jne_long)
    ".p2align 4\n"
    FUNCTION(thunk) ".byte 0xe9\n.long second-.-4\n" END(thunk)                        /* entry and tail exit are one site */
    ".p2align 4\n"
    FUNCTION(tail_indirect) "add $6,%edi\njmp *pointer(%rip)\n" END(tail_indirect) ".p2align 4\n");
static int next;
static void one_round(void) {
    int x = ++next & 0xffff, odd = x & 1;
    CALLED(tail_long); CALLED(second); check(tail_long(x) == x + 3, "tail_long"); TAILED(tail_long); RETURNED(second);
    CALLED(tail_short); CALLED(second); check(tail_short(x) == x + 4, "tail_short"); TAILED(tail_short); RETURNED(second);
    CALLED(tail_indirect); CALLED(second); check(tail_indirect(x) == x + 7, "tail_indirect"); TAILED(tail_indirect); RETURNED(second);
    CALLED(thunk); CALLED(second); check(thunk(x) == x + 1, "thunk"); TAILED(thunk); RETURNED(second);
    CALLED(jne_short); check(jne_short(x) == (odd ? x + 1 : x + 4), "jne_short");
    CALLED(jne_long); check(jne_long(x) == (odd ? x + 1 : x + 5), "jne_long");
    if (odd) { CALLED(second); CALLED(second); TAILED(jne_short); TAILED(jne_long); RETURNED(second); RETURNED(second); }
    else { RETURNED(jne_short); RETURNED(jne_long); }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(tail_long); USE_TALLY(tail_short); USE_TALLY(second); USE_TALLY(jne_short); USE_TALLY(jne_long); USE_TALLY(tail_indirect); USE_TALLY(thunk);
}
