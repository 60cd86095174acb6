/* Signals between instructions that move registers about: whoever is brought back to the first of them has to find each
 * register where it was. "shuffles" moves arguments as compilers do; in "ors" two blocks differ in a constant that makes
 * all the difference; "reads" and "stores" have a register's copy next to a word that they read and overwrite. */
#include "protocol.h"
#include <signal.h>
#include <sys/time.h>
TALLY(shuffles); TALLY(ors); TALLY(reads); TALLY(stores);
long shuffles(long, long), ors(long), reads(void), stores(void);
asm(".p2align 4\n"
    FUNCTION(shuffles) "mov %rsi,%rdx\nmov %rdi,%rsi\nmov $1,%edi\nxor %ecx,%ecx\nxor %r8d,%r8d\n"
    "lea (%rsi,%rsi,4),%rax\nsub %rdx,%rax\nret\n" END(shuffles)
    ".p2align 4\n"
    FUNCTION(ors) "mov %rbx,%r8\nxor %ebx,%ebx\ntest %edi,%edi\njs 3f\n"
    "cmp $1,%edi\nje 2f\ncmp $2,%edi\nje 1f\nmov $8,%eax\nmov %r8,%rbx\nret\n"
    "1: or $-1,%ebx\nadd $5,%ebx\nxor %ecx,%ecx\nxor %edx,%edx\nmov $0,%ecx\nmov $0,%edx\nmov %rbx,%rax\nmov %r8,%rbx\nret\n"
    "2: or $16,%ebx\nadd $5,%ebx\nxor %ecx,%ecx\nxor %edx,%edx\nmov $0,%ecx\nmov $0,%edx\nmov %rbx,%rax\nmov %r8,%rbx\nret\n"
    "3: mov $7,%eax\nmov %r8,%rbx\nret\n" END(ors)
    ".p2align 4\n"
    FUNCTION(reads) "mov %rbx,%r8\nmov %r15,%r9\nmov $0x1234,%ebx\nmov $1,%ecx\n"
    "1: push %rbx\nmov (%rsp,%rcx,8),%r15\nxor %ebx,%ebx\nmov $5,%edx\nmov $6,%edx\npop %rdx\n"
    "test %ecx,%ecx\njs 1b\nmov %rdx,%rax\nmov %r8,%rbx\nmov %r9,%r15\nret\n" END(reads)
    ".p2align 4\n"
    FUNCTION(stores) "mov %rbx,%r8\nmov $0x1234,%ebx\nmov $1,%ecx\n"
    "1: push %rbx\npush %rcx\nlea 3(%rbx),%r9\nxor %ebx,%ebx\nmovups %xmm0,(%rsp)\nmov $5,%edx\nmov $6,%edx\n"
    "add $16,%rsp\ntest %ecx,%ecx\njs 1b\nlea -3(%r9),%rax\nmov %r8,%rbx\nret\n" END(stores)
    ".p2align 4\n");
static volatile unsigned long samples;
static void on_tick(int signal, siginfo_t *info, void *context) { (void)signal; (void)info; (void)context; samples++; }
static void one_round(void) {
    struct itimerval fast = {{0, 50}, {0, 50}}, off = {{0, 0}, {0, 0}};
    unsigned long before = samples;
    setitimer(ITIMER_REAL, &fast, 0);
    while (samples < before + 20) {
        COUNTED(shuffles, check(shuffles(100, 7) == 493, "shuffles"));
        COUNTED(ors, check(ors(1) == 21, "ors"));
        COUNTED(reads, check(reads() == 0x1234, "reads"));
        COUNTED(stores, check(stores() == 0x1234, "stores"));
    }
    setitimer(ITIMER_REAL, &off, 0);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    struct sigaction action = {0};
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaction(SIGALRM, &action, 0);
    USE_TALLY(shuffles); USE_TALLY(ors); USE_TALLY(reads); USE_TALLY(stores);
}
