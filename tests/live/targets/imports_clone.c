/* Calls the C library's `clone` in some way, and `work` before, in what it has made, and after. With -DBY_NUMBER it
   calls `syscall` for that, and for `clone3` where the task gets a pointer. Argument: the way. Prints "done" if all have computed what they should. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 1000, STACK = 1 << 17 };
static const char *way;
static volatile int ended;

__attribute__((noipa)) int work(int number) { return number + 1; }
static int works(void) {
    int number = 0;
    while (number < CALLS) number = work(number);
    return number;
}
static int task(void *unused) {
    (void)unused;
    ended = works() == CALLS;
    return 0;
}
static void *thread(void *unused) { return works() == CALLS ? unused : NULL; }

/* The words before and after what a task is given as its thread pointer must stay as they are. */
static char words[8192] __attribute__((aligned(64)));
static int words_stay(void) {
    for (size_t at = 0; at < sizeof words; at++) if (at / 8 != 4096 / 8 && words[at] != 0x5a) return 0;
    return 1;
}

#ifdef BY_NUMBER
static void begins(void) {
    long result;
    task(NULL);
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_exit), "D"(0) : "rcx", "r11", "memory");
}
/* The task returns from `syscall` on its own stack. Programs that do so are known by constant flags near the call. */
static inline __attribute__((always_inline)) int by_number(char *top, unsigned long flags, void *pointer) {
    void **stack = (void **)top - 2;
    unsigned long asked[8] = {flags, 0, 0, 0, SIGCHLD, (unsigned long)top - STACK, STACK - 16, (unsigned long)pointer};
    stack[0] = begins;
    if (flags & CLONE_SETTLS) return syscall(SYS_clone3, asked, sizeof asked);
    return syscall(SYS_clone, flags | SIGCHLD, stack, NULL, NULL, NULL);
}
#define clone(function, top, flags, ...) by_number(top, (flags) & ~SIGCHLD, pointer)
#endif

static inline __attribute__((always_inline)) int make(int flags, void *pointer) {
    static char *stack;
    int status = 0, child;
    stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    child = clone(task, stack + STACK, flags | SIGCHLD, NULL, NULL, pointer, NULL);
    if (child < 0 || waitpid(child, &status, 0) != child) return 0;
    return status == 0 && (!(flags & CLONE_VM) || ended);
}

int main(int argc, char **argv) {
    pthread_t made;
    void *result = NULL;
    int good;
    if (argc < 2) return 2;
    way = argv[1];
    memset(words, 0x5a, sizeof words);
    *(void **)(words + 4096) = words + 4096;
    if (!strcmp(way, "in-child")) {
        int status = 0;
        if (!fork()) {
            good = works() == CALLS && make(CLONE_VM, NULL) && works() == CALLS;
            _exit(!good);
        }
        wait(&status);
        if (status) return 3;
    }
    good = works() == CALLS;
    pthread_create(&made, NULL, thread, &made);
    pthread_join(made, &result);
    good = good && result == &made;
    if (!strcmp(way, "memory")) good = good && make(CLONE_VM, NULL);
    if (!strcmp(way, "memory-files")) good = good && make(CLONE_VM | CLONE_FILES | CLONE_FS, NULL);
    if (!strcmp(way, "vfork")) good = good && make(CLONE_VM | CLONE_VFORK, NULL);
    if (!strcmp(way, "fork")) good = good && make(0, NULL);
    if (!strcmp(way, "pointer")) good = good && make(CLONE_VM | CLONE_SETTLS, words + 4096) && words_stay();
    if (!strcmp(way, "fork-no-pointer")) good = good && make(CLONE_SETTLS, NULL);
    if (!strcmp(way, "no-pointer")) good = good && make(CLONE_VM | CLONE_SETTLS, NULL);
    good = good && works() == CALLS;
    puts(good ? "done" : "bad");
    return !good;
}
