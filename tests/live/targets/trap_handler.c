/* A program with a SIGTRAP handler of its own, which it trips by int3, raise and tgkill: it must see these and no others,
 * with its own signal mask, its own siginfo, and the pc behind its own int3.
 *
 * Argument 1: "info" SA_SIGINFO with an alternate stack; "plain" neither; "once" SA_RESETHAND; "late" is "info", installed
 * by the first round only; "ignore" SIG_IGN; "none" the default. */
#include "protocol.h"
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
TALLY(before); TALLY(inside); TALLY(one_byte);
PROBED long before(long x) { volatile long y = x; return y + 11; }
PROBED long inside(long x) { volatile long y = x; return y * 9; }
void one_byte(void);
asm(".p2align 4\n" FUNCTION(one_byte) "ret\n" END(one_byte) ".p2align 4\n");
void own_int3(void);
asm(".p2align 4\n" FUNCTION(own_int3) "nopl 0(%rax,%rax,1)\nint3\nown_int3_end: ret\n" END(own_int3) ".p2align 4\n");
extern char own_int3_end[];
static volatile long seen, by_int3, sent;
static int ignores, late;
static const char *kind = "info";
static void common(void) {
    sigset_t now;
    seen++;
    pthread_sigmask(SIG_BLOCK, 0, &now);
    check(sigismember(&now, SIGUSR1) == 1, "the handler's mask is not in force");
    COUNTED(inside, check(inside(seen) == seen * 9, "inside"));
    COUNTED(one_byte, one_byte());
}
static void with_info(int number, siginfo_t *info, void *context) {
    ucontext_t *c = context;
    check(number == SIGTRAP && info->si_signo == SIGTRAP, "not a SIGTRAP");
    if (info->si_code == SI_KERNEL) {
        by_int3++;
        check(c->uc_mcontext.gregs[REG_RIP] == (long)own_int3_end, "a trap that is not the program's own");
    } else {
        check(info->si_pid == getpid(), "si_pid");
    }
    common();
}
static void plain(int number) { check(number == SIGTRAP, "not a SIGTRAP"); common(); }
static void install(void) {
    struct sigaction action = {0};
    sigaddset(&action.sa_mask, SIGUSR1);
    if (!strcmp(kind, "ignore")) action.sa_handler = SIG_IGN;
    else if (!strcmp(kind, "plain")) action.sa_handler = plain;
    else { action.sa_sigaction = with_info; action.sa_flags = SA_SIGINFO | SA_ONSTACK; }
    if (!strcmp(kind, "once")) action.sa_flags |= SA_RESETHAND;
    check(!sigaction(SIGTRAP, &action, 0), "sigaction");
}
static int next;
static void one_round(void) {
    if (late) { late = 0; install(); }
    long x = ++next;
    sigset_t after;
    COUNTED(before, check(before(x) == x + 11, "before"));
    if (!ignores) { own_int3(); sent++; }
    raise(SIGTRAP); sent++;
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGTRAP); sent++;
    COUNTED(one_byte, one_byte());
    check(seen == (ignores ? 0 : sent), "a SIGTRAP of the program's own was lost, or one came too many");
    pthread_sigmask(SIG_BLOCK, 0, &after);
    check(!sigismember(&after, SIGUSR1) && !sigismember(&after, SIGTRAP), "the handler's mask is still in force");
}
static void setup(int argc, char **argv) {
    static char other_stack[1 << 16];
    if (argc > 1) kind = argv[1];
    stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    sigaltstack(&stack, 0);
    ignores = !strcmp(kind, "ignore");
    late = !strcmp(kind, "late");
    if (!late && strcmp(kind, "none")) install();
    USE_TALLY(before); USE_TALLY(inside); USE_TALLY(one_byte);
}
