/* A forked child that lives: the first round forks it, it calls the function for ever, the last line of the parent's life
 * asks it whether all its results were right. Its pid is printed as "calls child PID". */
#include "protocol.h"
#include <sys/mman.h>
#include <sys/wait.h>
TALLY(child); TALLY(shared_work); TALLY(child_rounds);
PROBED long shared_work(long x) { volatile long y = x; return y * 7; }
static volatile struct { int stop; long rounds; } *shared;
static pid_t child_pid;
static void ask_child(void) {
    int status;
    shared->stop = 1;
    if (waitpid(child_pid, &status, 0) != child_pid || status) { say("BAD the living child failed\n"); _exit(1); }
}
static void one_round(void) {
    if (!child_pid) {
        child_pid = fork();
        check(child_pid >= 0, "fork");
        if (!child_pid) {
            while (!shared->stop) { for (long i = 0; i < 1000; i++) if (shared_work(i) != 7 * i) _exit(9); shared->rounds++; }
            _exit(0);
        }
        child_tally.calls = child_pid;
        atexit(ask_child);
    }
    long before = shared->rounds;
    for (long i = 0; i < 1000; i++) check(shared_work(i) == 7 * i, "shared_work");
    while (shared->rounds < before + 2) check(!waitpid(child_pid, 0, WNOHANG), "the living child died");
    child_rounds_tally.calls = shared->rounds;
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    USE_TALLY(child); USE_TALLY(shared_work); USE_TALLY(child_rounds);
}
