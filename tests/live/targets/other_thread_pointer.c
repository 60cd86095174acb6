/* A function that gives its thread another thread pointer for a while, and puts the C library's back. */
#include "protocol.h"
#include <sys/auxv.h>
#include <sys/mman.h>
TALLY(moves_fs); TALLY(between);
long moves_fs(long), between(long);
asm(".p2align 4\n" FUNCTION(between) "mov %fs:8,%rax\nadd $1,%rax\nret\n" END(between)
    ".p2align 4\n" FUNCTION(moves_fs) "rdfsbase %rdx\nwrfsbase %rdi\nsub $8,%rsp\ncall between\nadd $8,%rsp\nwrfsbase %rdx\nret\n" END(moves_fs) ".p2align 4\n");
static char *page;
static void one_round(void) {
    long *last = (long *)(page + 4096 - 64), *first = (long *)page;
    for (int i = 0; i < 2; i++) {
        long *area = i ? last : first; /* behind the last there is nothing, and behind the first all is ours */
        area[1] = 76;
        CALLED(between);
        COUNTED(moves_fs, check(moves_fs((long)area) == 77, "fs"));
        RETURNED(between);
    }
    for (int i = 2; i < 500; i++) check(first[i] == 0, "somebody wrote to what is not his");
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    if (!(getauxval(AT_HWCAP2) & 2)) { say("unsupported wrfsbase\n"); _exit(0); }
    page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(page + 4096, 4096, PROT_NONE);
    USE_TALLY(moves_fs); USE_TALLY(between);
}
