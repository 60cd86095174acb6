/* Threads (argument 1) that call functions for changes without a stop, and count the calls themselves: "one_byte" begins
 * with a short instruction, "loaded" and "scaled" with one of five and one of seven bytes. Argument 2: "handler" has a
 * SIGTRAP handler of its own that must never run, "forks" makes children that call the functions, too; one that finds an
 * int3 in its own text, copied in the middle of a change, waits until somebody has taken it out ("completed"). */
static void many_rounds(long n);
#define MANY_ROUNDS 1 /* "go N" is N calls of each function on each thread */
#include "protocol.h"
#include "in_threads.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
TALLY(one_byte); TALLY(loaded); TALLY(scaled); TALLY(completed);
static int forking;
long one_byte(long), loaded(long), scaled(long);
asm(".p2align 4\n" FUNCTION(one_byte) "mov %rdi,%rax\nimul $3,%rax,%rax\nadd $1,%rax\nret\n" END(one_byte)
    ".p2align 4\n" FUNCTION(loaded) "mov $7,%eax\nadd %rdi,%rax\nret\n" END(loaded)
    ".p2align 4\n" FUNCTION(scaled) ".byte 0x48,0x69,0xc7,5,0,0,0\nadd $2,%rax\nret\n" END(scaled) ".p2align 4\n");
static volatile long traps;
static void on_trap(int signal) { (void)signal; traps++; }
static long calls(long n, long from) {
    for (long i = 0; i < n; i++) {
        long x = i + from;
        if (one_byte(x) != 3 * x + 1) check(0, "one_byte");
        if (loaded(x) != x + 7) check(0, "loaded");
        if (scaled(x) != 5 * x + 2) check(0, "scaled");
    }
    return n;
}
static long children_calls(void) { /* what a child calls is the parent's to report, once it has ended */
    pid_t child = fork();
    if (!child) {
        const volatile unsigned char *text = (const unsigned char *)loaded;
        int marked = *text == 0xcc;
        for (int i = 0; *text == 0xcc; i++) {
            if (i == 20000) _exit(1);
            usleep(1000);
        }
        calls(100, 1);
        _exit(marked ? 3 : 0);
    }
    int status;
    check(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status), "a child came to a bad end");
    check(WEXITSTATUS(status) != 1, "a child's int3 stayed");
    if (WEXITSTATUS(status) == 3) __atomic_fetch_add(&completed_tally.calls, 1, __ATOMIC_RELAXED);
    return 100;
}
static void *caller(void *argument) {
    long n = rounds_of_each, mine = 0;
    while (mine < n) {
        long some = n - mine < 2000 ? n - mine : 2000;
        mine += calls(some, (long)argument);
        if (forking && argument) {
            long more = children_calls();
            __atomic_fetch_add(&one_byte_tally.calls, more, __ATOMIC_RELAXED);
            __atomic_fetch_add(&loaded_tally.calls, more, __ATOMIC_RELAXED);
            __atomic_fetch_add(&scaled_tally.calls, more, __ATOMIC_RELAXED);
        }
    }
    __atomic_fetch_add(&one_byte_tally.calls, mine, __ATOMIC_RELAXED);
    __atomic_fetch_add(&loaded_tally.calls, mine, __ATOMIC_RELAXED);
    __atomic_fetch_add(&scaled_tally.calls, mine, __ATOMIC_RELAXED);
    return 0;
}
static void many_rounds(long n) {
    in_threads(caller, n);
    one_byte_tally.returns = one_byte_tally.calls; loaded_tally.returns = loaded_tally.calls;
    scaled_tally.returns = scaled_tally.calls;
    check(traps == 0, "the program's own SIGTRAP handler has run");
}
static void one_round(void) { many_rounds(20000); }
static void setup(int argc, char **argv) {
    const char *kind = argc > 2 ? argv[2] : "";
    set_threads(argc, argv);
    if (!strcmp(kind, "handler")) signal(SIGTRAP, on_trap);
    forking = !strcmp(kind, "forks");
    USE_TALLY(one_byte); USE_TALLY(loaded); USE_TALLY(scaled); USE_TALLY(completed);
}
