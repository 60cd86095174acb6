/* Signals on alternate stacks that a handler does not write, or that have no room but for the signal's frame:
   "readonly": another thread makes it read-only for moments; what the kernel then cannot deliver becomes SIGSEGV.
   "tiny":     it is as small as the frame, and what lies below it is not to change.
   "switches": the same, and the handler goes on on another stack at once.
   A line is read first. Signals come from where the program sends them, and, after those, from a timer while it calls `work`. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

enum { SIGNALS = 5000, TIMED = 200, BYTES = 16 * 4096, PATTERN = 0x5a };
static char *stack, *lowest;
static unsigned long size;
static volatile int done;
volatile long handled, switched;
char other[65536] __attribute__((aligned(16)));

__attribute__((noinline)) long work(long number) {
    __asm__ volatile("" : "+r"(number));
    return number + 1;
}

void returns(int signal);
void switches(int signal);
__asm__(".text\n"
        ".globl returns\n .type returns, @function\nreturns:\n incq handled(%rip)\n ret\n .size returns, .-returns\n"
        ".globl switches\n .type switches, @function\nswitches:\n mov %rsp, %rax\n lea other+65520(%rip), %rsp\n"
        " push %rax\n incq handled(%rip)\n incq switched(%rip)\n pop %rsp\n ret\n .size switches, .-switches\n");

static void faulted(int signal) { (void)signal; }

static void measures(int signal) {
    (void)signal;
    lowest = (char *)__builtin_frame_address(0) + 8;
}

static void *flip(void *unused) {
    while (!done) {
        mprotect(stack, size, PROT_READ);
        mprotect(stack, size, PROT_READ | PROT_WRITE);
    }
    return unused;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "tiny";
    int readonly = !strcmp(how, "readonly");
    char *pages = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t thread;
    pid_t self = getpid();
    if (pages == MAP_FAILED) return 2;
    stack_t alternate = {.ss_sp = pages, .ss_size = BYTES};
    struct sigaction action = {.sa_handler = measures, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&alternate, 0) || sigaction(SIGHUP, &action, 0) || raise(SIGHUP)) return 3;
    stack = readonly ? pages : lowest - 16;
    alternate.ss_sp = stack;
    alternate.ss_size = size = pages + BYTES - stack;
    action.sa_handler = faulted;
    action.sa_flags = 0;
    if (sigaction(SIGSEGV, &action, 0) || sigaltstack(&alternate, 0)) return 3;
    memset(pages, PATTERN, BYTES);
    action.sa_handler = strcmp(how, "switches") ? returns : switches;
    action.sa_flags = SA_ONSTACK;
    if (sigaction(SIGHUP, &action, 0) || sigaction(SIGALRM, &action, 0)) return 4;
    if (getchar() == EOF) return 6; /* by then they are probed */
    work(0);
    if (readonly && pthread_create(&thread, 0, flip, 0)) return 5;
    for (int each = 0; each < SIGNALS; each++) {
        long result;
        __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_tkill), "D"(self), "S"(SIGHUP) : "rcx", "r11", "memory");
        work(each);
    }
    if (readonly) {
        done = 1;
        pthread_join(thread, 0);
        puts(handled ? "fine" : "none");
        return 0;
    }
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, 0);
    while (handled < SIGNALS + TIMED) work(handled);
    setitimer(ITIMER_REAL, &never, 0);
    for (char *each = pages; each < stack; each++)
        if (*each != PATTERN) return 7;
    puts(!strcmp(how, "switches") && switched != handled ? "not switched" : "fine");
    return 0;
}
