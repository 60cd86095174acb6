/* A thread whose saved signal context lies inside the first instructions: the handler waits, then returns there. */
#include "protocol.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
TALLY(faulting);
int faulting(int *p);
asm(".p2align 4\n" FUNCTION(faulting) "push %rbx\nmov (%rdi),%eax\ninc %eax\npop %rbx\nret\n" END(faulting) ".p2align 4\n");
static int *page;
static volatile int inside, release_it;
static long finished;
static void on_fault(int signal) {
    (void)signal;
    __atomic_store_n(&inside, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&release_it, __ATOMIC_SEQ_CST)) ;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}
static void *parker(void *unused) {
    for (;;) {
        CALLED(faulting);
        check(faulting(page) == 78, "faulting");
        RETURNED(faulting);
        mprotect(page, 4096, PROT_NONE);
        __atomic_store_n(&release_it, 0, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&finished, 1, __ATOMIC_SEQ_CST);
    }
    return unused;
}
static void wait_parked(void) { while (!__atomic_load_n(&inside, __ATOMIC_SEQ_CST)) sched_yield(); }
static void one_round(void) {
    long before = finished;
    inside = 0;
    __atomic_store_n(&release_it, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&finished, __ATOMIC_SEQ_CST) == before) sched_yield();
    wait_parked();
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    pthread_t t;
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *page = 77;
    mprotect(page, 4096, PROT_NONE);
    signal(SIGSEGV, on_fault);
    pthread_create(&t, 0, parker, 0);
    wait_parked();
    USE_TALLY(faulting);
}
