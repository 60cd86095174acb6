/* Tasks that are not made by the C library's own means, as programs that start others make them; argument: how.
 * The children use nothing that needs a thread pointer. Prints how each ended, then the sum. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
enum { TIMES = 50 };
static char stack[65536] __attribute__((aligned(16)));
static long raw(long number, long a, long b, long c) {
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
}
__attribute__((noinline)) int work(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
static int child(void *argument) { return work((int)(long)argument); }
static void fault(int signal) { (void)signal; _exit(99); }
static void leave(long status) { for (;;) raw(SYS_exit_group, work((int)status), 0, 0); }
static long make(const char *how, int i) {
    if (!strcmp(how, "clone")) return clone(child, stack + sizeof stack, SIGCHLD, (void *)(long)i);
    if (!strcmp(how, "shared")) return clone(child, stack + sizeof stack, CLONE_VM | SIGCHLD, (void *)(long)i);
    long pid = -1;
    if (!strcmp(how, "syscall")) pid = syscall(SYS_clone, CLONE_SETTLS | SIGCHLD, 0, 0, 0, 0);
    if (!strcmp(how, "raw")) {
        __asm__ volatile("xor %%r8d, %%r8d\n xor %%r10d, %%r10d\n mov $56, %%eax\n syscall"
                         : "=a"(pid) : "D"((long)(CLONE_SETTLS | SIGCHLD)), "S"(0), "d"(0) : "rcx", "r8", "r10", "r11", "memory");
    }
    if (!strcmp(how, "clone3")) {
        struct { unsigned long long flags, pidfd, child_tid, parent_tid, exit_signal, more[6]; } arguments = {.flags = CLONE_SETTLS, .exit_signal = SIGCHLD};
        pid = syscall(SYS_clone3, &arguments, sizeof arguments);
    }
    if (pid == 0 && !strcmp(how, "raw")) leave(i);
    if (pid == 0) for (;;) syscall(SYS_exit_group, work(i));
    return pid;
}
int main(int argc, char **argv) {
    int sum = 0;
    signal(SIGSEGV, fault);
    for (int i = 0; i < TIMES; i++) {
        int status = -1;
        long pid = make(argv[argc - 1], i);
        if (pid < 0 || waitpid(pid, &status, 0) != pid) { perror("a child"); return 2; }
        if (!WIFEXITED(status) || WEXITSTATUS(status) != i + 1) { printf("child %d: status %#x\n", i, status); return 1; }
        sum += WEXITSTATUS(status);
    }
    printf("%d\n", sum);
    return 0;
}
