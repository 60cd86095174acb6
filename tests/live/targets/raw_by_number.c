/* Makes tasks by a system call of its own whose number and flags come from elsewhere. Arguments: the number, the flags in
 * hexadecimal, "area" if the task gets a thread pointer that leads to zeroes, and a file to wait for (or none). Calls
 * `work` before, in the task and beside it. Prints "done" if all have computed what they should. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { CALLS = 1000, TASKS = 5, STACK = 1 << 16 };
static volatile int running, wrong;
__attribute__((noinline)) long work(long x) { volatile long y = x; return y * 3 + 1; }
static void works(void) {
    for (long i = 0; i < CALLS; i++) if (work(i) != i * 3 + 1) wrong = 1;
}
__attribute__((used)) void body(void) {
    works();
    __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
}
/* The system call's number and five parameters. The task calls `body` on its own stack, and ends. */
long raw_task(long number, long first, long second, long third, long fourth, long fifth);
__asm__(".text\n.globl raw_task\n.type raw_task, @function\nraw_task:\n"
        "mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n mov %r8, %r10\n mov %r9, %r8\n"
        "syscall\n test %rax, %rax\n jz 1f\n ret\n"
        "1: xor %ebp, %ebp\n call body\n mov $60, %eax\n xor %edi, %edi\n syscall\n hlt\n.size raw_task, . - raw_task\n");
static long (*volatile through)(long, long, long, long, long, long) = raw_task;
static char area[8192] __attribute__((aligned(64)));
static void make(long number, unsigned long flags, char *pointer) {
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long asked[11] = {flags & ~0xfful, 0, 0, 0, flags & 0xff, (unsigned long)stack, STACK, (unsigned long)pointer};
    int status = 0;
    long made;
    running = 1;
    if (number == 435) made = through(number, (long)asked, sizeof asked, 0, 0, 0);
    else made = through(number, flags, (long)(stack + STACK), 0, 0, (long)pointer);
    works();
    if (made < 0) wrong = 1;
    else if (flags & CLONE_THREAD) while (__atomic_load_n(&running, __ATOMIC_SEQ_CST)) sched_yield();
    else if (waitpid(made, &status, __WALL) != made || status) wrong = 1;
}
int main(int argc, char **argv) {
    if (argc < 5) return 2;
    if (strcmp(argv[4], "none")) {
        puts("ready");
        fflush(stdout);
        while (access(argv[4], F_OK)) usleep(1000);
    }
    works();
    for (int i = 0; i < TASKS; i++) make(atol(argv[1]), strtoul(argv[2], NULL, 16), strcmp(argv[3], "area") ? NULL : area + 4096);
    puts(wrong ? "bad" : "done");
    return wrong;
}
