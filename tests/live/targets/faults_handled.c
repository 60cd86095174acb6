/* Faults that the program handles: the handler finds the very instruction, and goes on behind it or has it run again. */
#include "protocol.h"
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
TALLY(reads); TALLY(divides); TALLY(undefined); TALLY(traps); TALLY(writes); TALLY(jumps); TALLY(inner);
extern char reads_at[], reads_on[], divides_at[], divides_on[], undefined_at[], undefined_on[], traps_on[], writes_at[],
    jumps_at[], inner_on[];
long reads(long *), divides(long, long), undefined(long), traps(long), inner(long *, long);
void writes(volatile long *), jumps(long **);
asm(".p2align 4\n" FUNCTION(reads) "reads_at: mov 0x100(%rdi),%rax\nret\nreads_on: mov $77,%eax\nret\n" END(reads)
    ".p2align 4\n" FUNCTION(divides) "mov %rdi,%rax\nxor %edx,%edx\ndivides_at: div %rsi\nret\ndivides_on: mov $-1,%rax\nret\n" END(divides)
    ".p2align 4\n" FUNCTION(undefined) "lea 3(%rdi),%rax\nundefined_at: ud2\nundefined_on: ret\n" END(undefined)
    ".p2align 4\n" FUNCTION(traps) "lea 5(%rdi),%rax\nnop\nint3\ntraps_on: ret\n" END(traps)
    ".p2align 4\n" FUNCTION(writes) "writes_at: lock incq 0x100(%rdi)\nret\n" END(writes)
    ".p2align 4\n" FUNCTION(jumps) "jumps_at: call *0x100(%rdi)\nret\n" END(jumps)
    ".p2align 4\n" FUNCTION(inner) "push %rbx\nmov %rsi,%rbx\nmov (%rdi),%rax\nadd %rbx,%rax\npop %rbx\nret\n"
    "inner_on: mov $78,%eax\npop %rbx\nret\n" END(inner) ".p2align 4\n");
static char *page;
static volatile long seen;
static void called(void) { seen += 1000; }
static long *function_at(void) { return (long *)page; }
static void on_fault(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    char *pc = (char *)registers[REG_RIP];
    check(info->si_signo == signal, "si_signo");
    seen++;
    if (signal == SIGSEGV && pc == reads_at) {
        check(registers[REG_RDI] == (long)page - 0x100 + 8 && (char *)info->si_addr == page + 8, "registers at a load");
        registers[REG_RIP] = (greg_t)reads_on;
    } else if (signal == SIGSEGV && pc == (char *)inner + 4) {
        check(registers[REG_RBX] == 123 && *(long *)registers[REG_RSP] == 0x5151, "registers at an inner load");
        registers[REG_RIP] = (greg_t)inner_on;
    } else if (signal == SIGSEGV && (pc == writes_at || pc == jumps_at)) {
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
        CALLED(writes);  /* and has it run again, which is a new arrival */
        if (pc == jumps_at) writes_tally.calls--, CALLED(jumps);
    } else if (signal == SIGFPE && pc == divides_at) registers[REG_RIP] = (greg_t)divides_on;
    else if (signal == SIGILL && pc == undefined_at) registers[REG_RIP] = (greg_t)undefined_on;
    else if (signal == SIGTRAP && pc == traps_on) ;
    else { say("BAD signal %d at %#lx\n", signal, (long)pc); _exit(1); }
}
static int late, nodefer;
static void handle(void) {
    struct sigaction action = {0};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | (nodefer);
    int signals[] = {SIGSEGV, SIGFPE, SIGILL, SIGTRAP};
    for (int i = 0; i < 4; i++) sigaction(signals[i], &action, 0);
}
static void one_round(void) {
    if (late) { late = 0; handle(); return; }
    long before = seen;
    mprotect(page, 4096, PROT_NONE);
    COUNTED(reads, check(reads((long *)(page - 0x100 + 8)) == 77, "the way on behind a load"));
    COUNTED(inner, check(({ long r; asm volatile("mov $0x5151,%%rbx\nmov %1,%%rdi\nmov $123,%%esi\ncall inner\n" : "=a"(r) : "r"(page) : "rbx", "rdi", "rsi", "memory", "cc"); r; }) == 78, "inner"));
    COUNTED(divides, check(divides(7, 0) == -1, "division by zero"));
    COUNTED(divides, check(divides(42, 6) == 7, "division"));
    COUNTED(undefined, check(undefined(4) == 7, "ud2"));
    COUNTED(traps, check(traps(4) == 9, "int3"));
    COUNTED(writes, writes((volatile long *)(page - 0x100 + 16)));
    ((void **)function_at())[3] = (void *)called;
    mprotect(page, 4096, PROT_NONE);
    COUNTED(jumps, jumps((long **)(page - 0x100 + 24)));
    check(seen == before + 1007, "handled");
}
static void setup(int argc, char **argv) {
    page = (char *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    nodefer = argc > 1 && !strcmp(argv[1], "nodefer") ? SA_NODEFER : 0;
    if (argc > 1 && !strcmp(argv[1], "late")) late = 1;
    else handle();
    USE_TALLY(reads); USE_TALLY(divides); USE_TALLY(undefined); USE_TALLY(traps); USE_TALLY(writes); USE_TALLY(jumps); USE_TALLY(inner);
}
