/* A word on the stack that another party knows: "posts" writes a request there, the handler takes it, and what was taken
 * and what "posts" has taken back itself has to be as much as was posted. */
#include "protocol.h"
#include <signal.h>
#include <sys/time.h>
TALLY(posts);
long posts(void), outer(long);
static volatile long *volatile box;
static unsigned long taken, posted;
asm(".p2align 4\n"
    FUNCTION(posts) "mov $1,%eax\nmov %rax,8(%rsp)\nxor %edx,%edx\nxor %ecx,%ecx\nmov $3,%ecx\nxor %eax,%eax\n"
    "xchg %rax,8(%rsp)\nret\n" END(posts)
    ".p2align 4\n"
    FUNCTION(outer) "push %rbx\npush %r12\nsub $24,%rsp\nmovq $0,(%rsp)\nmov %rsp,box(%rip)\nmov %rdi,%rbx\nxor %r12d,%r12d\n"
    "1: call posts\nadd %rax,%r12\ndec %rbx\njnz 1b\nmovq $0,box(%rip)\nmov %r12,%rax\n"
    "add $24,%rsp\npop %r12\npop %rbx\nret\n" END(outer)
    ".p2align 4\n");
static volatile unsigned long samples;
static void on_tick(int signal, siginfo_t *info, void *context) {
    (void)signal; (void)info; (void)context;
    volatile long *place = box;
    if (place && *place) { *place = 0; taken++; }
    samples++;
}
static void one_round(void) {
    struct itimerval fast = {{0, 50}, {0, 50}}, off = {{0, 0}, {0, 0}};
    unsigned long before = samples;
    setitimer(ITIMER_REAL, &fast, 0);
    while (samples < before + 20) {
        unsigned long own = (unsigned long)outer(1000);
        __atomic_fetch_add(&taken, own, __ATOMIC_SEQ_CST);
        posted += 1000;
        posts_tally.calls += 1000;
        check(taken == posted, "taken twice");
    }
    setitimer(ITIMER_REAL, &off, 0);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    struct sigaction action = {0};
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaction(SIGALRM, &action, 0);
    USE_TALLY(posts);
}
