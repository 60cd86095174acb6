/* Handles the faults of random functions: of each it knows what to do, and where the program has to be. */
#ifndef RANDOM_FAULTS_H
#define RANDOM_FAULTS_H
#include "protocol.h"
#include <signal.h>
#include <ucontext.h>
enum { SKIP, MEND, DIVIDE, SKIPPED };
extern struct fault { long pc, what, base, length; } __start_faults[], __stop_faults[];
void f0(void);
static _Thread_local char elsewhere[8192];
static void on_fault(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    static const int bases[] = {REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RDI,
                                REG_RSI, REG_RBP, REG_RBX, REG_RDX, REG_RAX, REG_RCX};
    long pc = registers[REG_RIP] - (long)f0;
    (void)info;
    for (struct fault *fault = __start_faults; fault < __stop_faults; fault++) {
        if ((signal == SIGTRAP) != (fault->what == SKIPPED)) continue;
        if (pc != fault->pc + (signal == SIGTRAP ? fault->length : 0)) continue;
        if (fault->what == SKIP) registers[REG_RIP] += fault->length;
        else if (fault->what == DIVIDE) registers[REG_RCX] = 5;
        else if (fault->what == MEND) {
            memset(elsewhere, 7, sizeof elsewhere);
            registers[bases[fault->base]] = (greg_t)(elsewhere + 64);
        }
        return;
    }
    say("BAD signal %d at f0%+ld\n", signal, pc);
    _exit(1);
}
__attribute__((constructor)) static void handle_faults(void) {
    struct sigaction action = {0};
    int signals[] = {SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGBUS};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    for (int i = 0; i < 5; i++) sigaction(signals[i], &action, 0);
}
#endif
