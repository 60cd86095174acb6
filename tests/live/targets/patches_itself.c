/* A program that changes instructions of its own, as static keys do; what it says of its text comes with each command.
 *
 * "r" runs; "k FUNCTION" changes an instruction of it, or back; "w" makes the text writable for good.
 * Each answers "right" or "wrong".
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The key of "near" begins within the first five bytes, that of "far" is an operand behind them. */
long near(long), far(long), plain(long);
extern char near_key[], far_key[], text_begin[], text_end[];
asm(".text\n.p2align 12\n.globl text_begin\ntext_begin:\n"
    ".globl near\n.type near,@function\nnear:\n push %rbx\n mov %rdi,%rbx\n"
    ".globl near_key\nnear_key: .byte 0x0f,0x1f,0x44,0x00,0x00\n lea 1(%rbx),%rax\n pop %rbx\n ret\n.size near,.-near\n"
    ".p2align 4\n.globl far\n.type far,@function\nfar:\n mov %rdi,%rax\n .byte 0x48,0x05\n"
    ".globl far_key\nfar_key: .long 1\n ret\n.size far,.-far\n"
    ".p2align 4\n.globl plain\n.type plain,@function\nplain:\n lea 0x100(%rdi),%rax\n sub $0xff,%rax\n ret\n.size plain,.-plain\n"
    ".p2align 12\n.globl text_end\ntext_end:\n");

static int near_on, far_on, open;

static void protect(int writable) {
    if (mprotect(text_begin, text_end - text_begin, PROT_READ | PROT_EXEC | (writable ? PROT_WRITE : 0))) exit(3);
}

static void toggle(char *key, int *on, const char *changed, const char *original, int size) {
    if (!open) protect(1);
    *on = !*on;
    memcpy(key, *on ? changed : original, size);
    if (!open) protect(0);
}

int main(int argc, char **argv) {
    char line[64];
    setvbuf(stdout, 0, _IONBF, 0);
    if (argc > 1 && !strcmp(argv[1], "writable")) protect(open = 1);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'w') protect(open = 1);
        if (!strcmp(line, "k near\n")) toggle(near_key, &near_on, "\x48\x83\xc3\x10\x90", "\x0f\x1f\x44\0\0", 5);
        if (!strcmp(line, "k far\n")) toggle(far_key, &far_on, "\x11\0\0\0", "\1\0\0\0", 4);
        int right = 1;
        for (long i = 0; i < 100; i++) {
            right &= near(i) == i + 1 + (near_on ? 16 : 0);
            if (line[0] == 'r') right &= far(i) == i + 1 + (far_on ? 16 : 0);
            right &= plain(i) == i + 1;
        }
        puts(right ? "right" : "wrong");
    }
    return 0;
}
