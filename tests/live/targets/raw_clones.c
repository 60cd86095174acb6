/* Tasks made by clone(2) itself that share the thread pointer of their maker: threads, or (argument "processes") other
 * processes that share only the memory. What is kept per thread by thread pointer would be shared by them. */
#include "protocol.h"
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
TALLY(cloned);
enum { TASKS = 3, CALLS = 20000 };
static char stacks[TASKS][65536] __attribute__((aligned(16)));
static volatile int wrong, running;
static int processes;
PROBED long cloned(long x) { volatile long y = x; return y * 3 + 1; }
/* Uses nothing that needs a thread pointer of its own. */
static int body(void *argument) {
    long from = (long)argument;
    for (long i = from; i < from + CALLS; i++) if (cloned(i) != i * 3 + 1) wrong = 1;
    __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_exit, 0);
    return 0;
}
static void one_round(void) {
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | (processes ? SIGCHLD : CLONE_THREAD | CLONE_SYSVSEM);
    int pid[TASKS];
    running = TASKS;
    for (long i = 0; i < TASKS; i++) check((pid[i] = clone(body, stacks[i] + sizeof stacks[i], flags, (void *)(i * 1000))) > 0, "clone");
    for (long i = 0; i < CALLS; i++) check(cloned(i) == i * 3 + 1, "cloned");
    while (__atomic_load_n(&running, __ATOMIC_SEQ_CST)) sched_yield();
    if (processes) for (int i = 0; i < TASKS; i++) check(waitpid(pid[i], 0, 0) == pid[i], "waitpid");
    for (int i = 0; !processes && i < TASKS; i++) { char path[64]; snprintf(path, sizeof path, "/proc/self/task/%d", pid[i]); while (!access(path, F_OK)) sched_yield(); }
    check(!wrong, "a result in a cloned task");
    cloned_tally.calls += (TASKS + 1) * CALLS;
    cloned_tally.returns = cloned_tally.calls;
}
static void setup(int argc, char **argv) { processes = argc > 1 && !strcmp(argv[1], "processes"); USE_TALLY(cloned); }
