/* Timer signals all the time. A handler finds only pcs of the program, registers that fit them, and may leave for good.
 *
 * Argument: j the handler often leaves by siglongjmp, a it runs on an alternate stack, n it may be interrupted by itself
 * and by a second timer, p it has no siginfo, b it takes a backtrace, d the program calls it too, t four threads run. */
#define MANY_ROUNDS
static void many_rounds(long);
#include "protocol.h"
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>
TALLY(counted); TALLY(pops); TALLY(on_tick);
long counted_ran, pops_ran;
extern char counted_at[], counted_behind[], caller_end[];
long counted(long), caller(long), pops(long);
/* The first instruction says whether it has run. r12 is the argument's complement in all of the function. */
asm(".p2align 4\n" FUNCTION(counted) "counted_at: lock incq counted_ran(%rip)\ncounted_behind: lea (%rdi,%rdi),%rax\n"
    "cmp $0,%r12\nje 1f\nxor %rdi,%r12\nnot %r12\ntest %r12,%r12\njne 1f\nret\n1: ud2\n" END(counted)
    ".p2align 4\n" FUNCTION(pops) "push %rbx\n.cfi_def_cfa_offset 16\nmov %rdi,%rbx\nlock incq pops_ran(%rip)\nlea 1(%rbx),%rax\npop %rbx\n.cfi_def_cfa_offset 8\nret\n" END(pops)
    ".p2align 4\n" FUNCTION(caller) "push %r12\n.cfi_def_cfa_offset 16\nmov %rdi,%r12\nnot %r12\ncall counted\npop %r12\n.cfi_def_cfa_offset 8\nret\ncaller_end:\n" END(caller) ".p2align 4\n");
static struct { unsigned long low, high; } text[64];
static int texts, jumping, tracing, threads;
static volatile long samples, at_site, behind;
static __thread sigjmp_buf back;
static __thread volatile int may_leave;
static __thread volatile long depth, ticks;
static int is_text(unsigned long pc) {
    for (int i = 0; i < texts; i++) if (pc >= text[i].low && pc < text[i].high) return 1;
    return 0;
}
PROBED void on_tick(int signal, siginfo_t *info, void *context) {
    (void)info;
    CALLED(on_tick);
    if (signal == 0) { RETURNED(on_tick); return; }
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned long pc = (unsigned long)registers[REG_RIP];
    if (!is_text(pc)) { say("BAD a handler saw the pc %#lx\n", pc); _exit(1); }
    if (pc == (unsigned long)counted_at || pc == (unsigned long)counted_behind) {
        check(registers[REG_R12] == ~registers[REG_RDI], "registers at the site");
        unsigned long to = *(unsigned long *)registers[REG_RSP];
        check(to > (unsigned long)caller && to < (unsigned long)caller_end, "the stack pointer at the site");
        if (pc == (unsigned long)counted_at) __atomic_fetch_add(&at_site, 1, __ATOMIC_RELAXED);
        else __atomic_fetch_add(&behind, 1, __ATOMIC_RELAXED);
    }
    if (tracing && pc >= (unsigned long)counted && pc < (unsigned long)pops) {
        void *stack[32];
        int found = 0, size = backtrace(stack, 32);
        for (int i = 0; i < size; i++) found |= stack[i] > (void *)caller && stack[i] <= (void *)caller_end;
        check(found, "backtrace reaches the caller");
    }
    __atomic_fetch_add(&samples, 1, __ATOMIC_RELAXED);
    ticks++;
    if (jumping && may_leave && ticks % 3) { may_leave = 0; RETURNED(on_tick); siglongjmp(back, 1); }
    RETURNED(on_tick);
}
static void *work(void *count) {
    volatile long rounds = (long)count;
    while (rounds > 0) {
        if (!sigsetjmp(back, 1)) {
            may_leave = 1;
            for (volatile long i = 1; i < 2000; i++) {
                check(caller(i) == 2 * i, "caller");
                check(pops(i) == i + 1, "pops");
                if (threads < 0) on_tick(0, 0, 0);
            }
            may_leave = 0;
            rounds--;
        }
    }
    return 0;
}
static void many_rounds(long count) {
    struct itimerval fast = {{0, 100}, {0, 100}}, slower = {{0, 300}, {0, 300}}, off = {{0, 0}, {0, 0}};
    long before = samples;
    setitimer(ITIMER_REAL, &fast, 0);
    setitimer(ITIMER_PROF, &slower, 0);
    if (threads > 0) {
        pthread_t workers[4];
        for (int i = 0; i < 4; i++) pthread_create(&workers[i], 0, work, (void *)count);
        for (int i = 0; i < 4; i++) pthread_join(workers[i], 0);
    } else work((void *)count);
    setitimer(ITIMER_REAL, &off, 0);
    setitimer(ITIMER_PROF, &off, 0);
    check(samples > before, "there were signals");
    counted_tally.calls = counted_ran;
    pops_tally.calls = pops_ran;
}
static void one_round(void) { many_rounds(1); }
static void setup(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    char line[512];
    void *warm[4];
    backtrace(warm, 4);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        char permissions[8];
        if (sscanf(line, "%lx-%lx %7s", &text[texts].low, &text[texts].high, permissions) == 3 && strchr(permissions, 'x')) texts++;
    }
    fclose(maps);
    jumping = !!strchr(how, 'j'), tracing = !!strchr(how, 'b'), threads = strchr(how, 't') ? 1 : strchr(how, 'd') ? -1 : 0;
    if (strchr(how, 'a')) {
        stack_t stack = {malloc(1 << 22), 0, 1 << 22}; /* a machine that stands still now and then nests handlers deeply */
        sigaltstack(&stack, 0);
    }
    struct sigaction action = {0};
    action.sa_flags = SA_RESTART | (strchr(how, 'a') ? SA_ONSTACK : 0) | (strchr(how, 'n') ? SA_NODEFER : 0);
    action.sa_flags |= strchr(how, 'p') ? 0 : SA_SIGINFO;
    action.sa_sigaction = on_tick;
    if (!strchr(how, 'n')) sigfillset(&action.sa_mask);
    sigaction(SIGALRM, &action, 0);
    sigaction(SIGPROF, &action, 0);
    USE_TALLY(counted); USE_TALLY(pops); USE_TALLY(on_tick);
}
