// Threads that verify, for ever, what a stop or an injected system call could disturb: registers, flags, vector state, the
// red zone, results of blocked system calls, the signal mask, the alternate stack. With "restartable" only calls that the
// kernel itself restarts, with "alone" in one thread. Answers "ok" to a byte on stdin.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long checks;
static void fail(const char *what) { dprintf(1, "FAILED: %s: %s\n", what, strerror(errno)); _exit(1); }

unsigned long constants[16] = {0x1111111111111101, 0x2222222222222202, 0x3333333333333303, 0, 0x5555555555555505,
    0x6666666666666606, 0x7777777777777707, 0x8888888888888808, 0x9999999999999909, 0xaaaaaaaaaaaaaa0a,
    0xbbbbbbbbbbbbbb0b, 0xcccccccccccccc0c, 0xdddddddddddddd0d, 0xeeeeeeeeeeeeee0e};
unsigned char vectors[16][32], seen[16][32];
extern int hold_registers(void);
__asm__(
    ".globl hold_registers\nhold_registers:\n"
    "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
    "vmovdqu vectors(%rip), %ymm0; vmovdqu vectors+32(%rip), %ymm1; vmovdqu vectors+224(%rip), %ymm7\n"
    "vmovdqu vectors+480(%rip), %ymm15\n fld1; fldpi\n"
    "mov constants(%rip), %rax; mov constants+8(%rip), %rbx; mov constants+16(%rip), %rdx\n"
    "mov constants+32(%rip), %rsi; mov constants+40(%rip), %rdi; mov constants+48(%rip), %rbp\n"
    "mov constants+56(%rip), %r8; mov constants+64(%rip), %r9; mov constants+72(%rip), %r10\n"
    "mov constants+80(%rip), %r11; mov constants+88(%rip), %r12; mov constants+96(%rip), %r13\n"
    "mov constants+104(%rip), %r14; mov %rdx, %r15\n"
    "mov %rax, -8(%rsp); mov %rbx, -64(%rsp); mov %r14, -128(%rsp)\n"
    "mov $100000, %ecx\n stc\n std\n"
    "1: lea -1(%rcx), %rcx\n jrcxz 2f\n jmp 1b\n"
    "2: jnc 9f\n cld\n"
    "cmp constants(%rip), %rax; jne 9f; cmp constants+8(%rip), %rbx; jne 9f; cmp constants+16(%rip), %rdx; jne 9f\n"
    "cmp constants+32(%rip), %rsi; jne 9f; cmp constants+40(%rip), %rdi; jne 9f; cmp constants+48(%rip), %rbp; jne 9f\n"
    "cmp constants+56(%rip), %r8; jne 9f; cmp constants+64(%rip), %r9; jne 9f; cmp constants+72(%rip), %r10; jne 9f\n"
    "cmp constants+80(%rip), %r11; jne 9f; cmp constants+88(%rip), %r12; jne 9f; cmp constants+96(%rip), %r13; jne 9f\n"
    "cmp constants+104(%rip), %r14; jne 9f; cmp %rdx, %r15; jne 9f\n"
    "cmp %rax, -8(%rsp); jne 9f; cmp %rbx, -64(%rsp); jne 9f; cmp %r14, -128(%rsp); jne 9f\n"
    "fldpi; fcomip %st(1), %st; fstp %st(0); jne 9f; fld1; fcomip %st(1), %st; fstp %st(0); jne 9f\n"
    "vmovdqu %ymm0, seen(%rip); vmovdqu %ymm1, seen+32(%rip); vmovdqu %ymm7, seen+224(%rip)\n"
    "vmovdqu %ymm15, seen+480(%rip)\n"
    "xor %eax, %eax; jmp 8f\n 9: cld; mov $1, %eax\n"
    "8: pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; vzeroupper; ret\n");

static void *registers(void *unused) {
    for (;;) {
        if (hold_registers()) fail("registers");
        static const int held[] = {0, 1, 7, 15};
        for (int i = 0; i < 4; i++)
            if (memcmp(vectors[held[i]], seen[held[i]], 32)) fail("vector registers");
        checks++;
    }
}
static void *sleeper(void *unused) {
    struct timespec nap = {0, 3000000};
    for (;;) {
        if (nanosleep(&nap, 0)) fail("nanosleep");
        checks++;
    }
}
static void *waiter(void *unused) {
    int e = epoll_create1(0);
    struct epoll_event event;
    for (;;) {
        if (epoll_wait(e, &event, 1, 5)) fail("epoll_wait");
        checks++;
    }
}
int main(int argc, char **argv) {
    sigset_t mask, now;
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536}, other;
    sigaltstack(&stack, 0);
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &mask, 0);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 32; k++) vectors[i][k] = i * 32 + k + 1;
    pthread_t thread;
    if (argc < 2 || argv[1][0] == 'r') {
        pthread_create(&thread, 0, registers, 0);
        pthread_create(&thread, 0, sleeper, 0);
    }
    if (argc < 2) pthread_create(&thread, 0, waiter, 0);
    dprintf(1, "ready\n");
    for (;;) {
        struct pollfd in = {0, POLLIN, 0};
        int ready = poll(&in, 1, 20);
        if (ready < 0) fail("poll");
        pthread_sigmask(SIG_BLOCK, 0, &now);
        for (int s = 1; s < 32; s++)
            if (sigismember(&now, s) != sigismember(&mask, s)) fail("signal mask");
        sigaltstack(0, &other);
        if (other.ss_sp != stack.ss_sp || other.ss_flags) fail("alternate stack");
        char byte;
        if (ready && read(0, &byte, 1) < 1) return 0;
        if (ready) dprintf(1, "ok %lu\n", checks);
    }
}
