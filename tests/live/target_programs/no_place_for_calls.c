// Threads in which no system call may be made at the moment. "alternate": a handler on an alternate stack that is an array
// on the thread's own, with little of it left and living frames below. "dispatching": system calls come back as SIGSYS,
// which nobody handles, most of the time.
#define _GNU_SOURCE
#include <alloca.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#define LEFT 1500
static char *lowest;
static volatile char selector, byte;
static int asked(void) { struct pollfd p = {0, POLLIN, 0}; return poll(&p, 1, 0) > 0; }
static void handler(int signal) {
    char *room = alloca((char *)__builtin_frame_address(0) - lowest - LEFT);
    for (long i = 0; room + i < (char *)__builtin_frame_address(0) - 256; i += 64) *(volatile char *)(room + i) = 1;
    write(1, "ready\n", 6);
    while (!asked()) {}
}
static __attribute__((noinline)) void below(void) {
    volatile unsigned char canary[16384];
    for (unsigned i = 0; i < sizeof canary; i++) canary[i] = 0xA5;
    raise(SIGUSR1);
    for (unsigned i = 0; i < sizeof canary; i++) if (canary[i] != 0xA5) { write(1, "FAILED: overwritten\n", 20); _exit(1); }
}
int main(int argc, char **argv) {
    char alternate[32768];
    if (!strcmp(argv[argc - 1], "alternate")) {
        stack_t s = {.ss_sp = lowest = alternate, .ss_size = sizeof alternate};
        struct sigaction a = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
        sigaltstack(&s, 0);
        sigaction(SIGUSR1, &a, 0);
        below();
    } else {
        if (prctl(59, 1, 0, 0, &selector)) { write(1, "no\n", 3); return 0; }
        write(1, "ready\n", 6);
        while (!asked()) {
            selector = 1;
            for (volatile int i = 0; i < 50000000; i++) {}
            selector = 0;
        }
    }
    write(1, "fine\n", 5);
    return 0;
}
