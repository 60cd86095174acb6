/* Signal handlers on alternate stacks that are read-only while they run, and that they never write to.
 *
 * Each begins with a system call that makes its stack read-only, in assembly; then it counts itself and returns. main makes
 * the stack writable again after each signal. So whatever else writes there kills the program, at each signal.
 *
 *     unwritten_stacks leaf|onward|branches|context|later THREADS ROUNDS [mapped]
 *
 * "mapped": the stacks are private pages of a file. "later": the handlers are set once a byte has come on standard input.
 * Prints "KIND HITS" of what the program has counted itself.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 64 << 10 };
long leaf_hits, onward_hits, branch_hits, context_hits, seen_stack;

/* mprotect(uc->uc_stack.ss_sp, ss_size, PROT_READ), with the arguments kept in r8 to r10 */
#define READ_ONLY \
    "mov %rdi, %r8\n mov %rsi, %r9\n mov %rdx, %r10\n" \
    "mov 16(%rdx), %rdi\n mov 32(%rdx), %rsi\n mov $1, %edx\n mov $10, %eax\n syscall\n" \
    "mov %r8, %rdi\n mov %r9, %rsi\n mov %r10, %rdx\n"
#define HANDLER(name, code) \
    void name(int, siginfo_t *, void *); \
    asm(".globl " #name "\n .type " #name ", @function\n" #name ":\n" code "\n .size " #name ", .-" #name "\n");

HANDLER(leaf, READ_ONLY "lock incq leaf_hits(%rip)\n ret")
HANDLER(target, "lock incq onward_hits(%rip)\n ret")
HANDLER(onward, READ_ONLY "jmp target")
HANDLER(context, READ_ONLY "mov 16(%rdx), %rax\n mov %rax, seen_stack(%rip)\n lock incq context_hits(%rip)\n ret")
HANDLER(branches,
        READ_ONLY
        "mov $3, %ecx\n"
        "1: lea -1(%ecx), %ecx\n test %ecx, %ecx\n jnz 1b\n"
        "cmpq $0, leaf_hits(%rip)\n je 2f\n"
        "push %rax\n call abort\n"
        "2: lock incq branch_hits(%rip)\n ret")

static int rounds, mapped;
static void (*handler)(int, siginfo_t *, void *);

static void set(void) {
    struct sigaction action = {.sa_flags = SA_ONSTACK | SA_SIGINFO};
    action.sa_sigaction = handler;
    sigaction(SIGUSR1, &action, NULL);
}

static void *raises(void *unused) {
    FILE *file = mapped ? tmpfile() : NULL;
    if (file && ftruncate(fileno(file), SIZE)) abort();
    char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | (file ? 0 : MAP_ANONYMOUS),
                        file ? fileno(file) : -1, 0);
    stack_t stack = {.ss_sp = memory, .ss_size = SIZE};
    if (memory == MAP_FAILED || sigaltstack(&stack, NULL)) abort();
    for (int n = 0; n < rounds; n++) {
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1);
        mprotect(memory, SIZE, PROT_READ | PROT_WRITE);
    }
    return unused;
}

int main(int argc, char **argv) {
    int threads = argc > 3 ? atoi(argv[2]) : 1;
    pthread_t thread[64];
    char go;
    rounds = argc > 3 ? atoi(argv[3]) : 100;
    mapped = argc > 4 && !strcmp(argv[4], "mapped");
    const char *kind = argc > 1 ? argv[1] : "leaf";
    handler = !strcmp(kind, "onward") ? onward : !strcmp(kind, "branches") ? branches
            : !strcmp(kind, "context") ? context : leaf;
    int later = !strcmp(kind, "later");
    if (!later) set();
    if (later || getenv("WAIT")) {
        puts("ready");
        fflush(stdout);
        if (read(0, &go, 1) != 1) return 9;
    }
    if (later) set();
    for (int n = 0; n < threads; n++) pthread_create(&thread[n], NULL, raises, NULL);
    for (int n = 0; n < threads; n++) pthread_join(thread[n], NULL);
    printf("%s %ld\n", kind, leaf_hits + onward_hits + branch_hits + context_hits);
    return 0;
}
