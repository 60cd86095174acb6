/* Signals between and in instructions that must not run twice: another x87 stack would be left, other bytes copied. */
#include "protocol.h"
#include <signal.h>
#include <sys/time.h>
TALLY(pushes); TALLY(compares); TALLY(rotates); TALLY(shifts);
double pushes(void), compares(void), rotates(void);
void shifts(unsigned char *to, unsigned char *from, long size);
asm(".p2align 4\n"
    FUNCTION(pushes) "fld1\nfld1\nxor %eax,%eax\ninc %eax\ninc %eax\nfaddp\nfstpl -8(%rsp)\nmovsd -8(%rsp),%xmm0\nret\n" END(pushes)
    ".p2align 4\n"
    FUNCTION(compares) "fld1\nfldz\nfld1\nfucompp\nxor %eax,%eax\ninc %eax\ninc %eax\nfstpl -8(%rsp)\nmovsd -8(%rsp),%xmm0\nret\n" END(compares)
    ".p2align 4\n"
    FUNCTION(rotates) "fdecstp\nxor %eax,%eax\ninc %eax\ninc %eax\nfincstp\nfld1\nfstpl -8(%rsp)\nmovsd -8(%rsp),%xmm0\nret\n" END(rotates)
    ".p2align 4\n"
    FUNCTION(shifts) "mov %edx,%ecx\nrep movsb\nxor %eax,%eax\nret\n" END(shifts)
    ".p2align 4\n");
static unsigned char bytes[610];
static volatile unsigned long samples;
static int x87_depth(void) {
    unsigned short status;
    asm volatile("fnstsw %0" : "=a"(status));
    return -(status >> 11) & 7;
}
static void on_tick(int signal, siginfo_t *info, void *context) { (void)signal; (void)info; (void)context; samples++; }
static void one_round(void) {
    struct itimerval fast = {{0, 100}, {0, 100}}, off = {{0, 0}, {0, 0}};
    unsigned long before = samples;
    setitimer(ITIMER_REAL, &fast, 0);
    while (samples < before + 20) {
        COUNTED(pushes, check(pushes() == 2 && !x87_depth(), "pushes"));
        COUNTED(compares, check(compares() == 1 && !x87_depth(), "compares"));
        COUNTED(rotates, check(rotates() == 1 && !x87_depth(), "rotates"));
        for (int i = 0; i < 609; i++) bytes[i] = (unsigned char)i;
        COUNTED(shifts, shifts(bytes, bytes + 9, 600));
        for (int i = 0; i < 600; i++) check(bytes[i] == (unsigned char)(i + 9), "shifts");
    }
    setitimer(ITIMER_REAL, &off, 0);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    struct sigaction action = {0};
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaction(SIGALRM, &action, 0);
    USE_TALLY(pushes); USE_TALLY(compares); USE_TALLY(rotates); USE_TALLY(shifts);
}
