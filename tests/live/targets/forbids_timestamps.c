/* Threads that forbid themselves the time stamp counter, in several ways, and call `work` afterwards, which `ends` in it.
   Arguments: the way, and who: "main", "thread" (another one goes on), "child" (of fork). */
#define _GNU_SOURCE
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 1000 };
static const char *way;

__attribute__((noipa)) int work(int number) { return number + 1; }

__attribute__((noipa)) int ends(int number) { return work(number); } /* by a jump */

static int forbid(void) {
    if (!strcmp(way, "prctl")) return prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
    if (!strcmp(way, "syscall")) return (int)syscall(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
    if (!strcmp(way, "strict")) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
    if (!strcmp(way, "seccomp")) return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL);
    if (strcmp(way, "raw")) return -1;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_prctl), "D"(PR_SET_TSC), "S"(PR_TSC_SIGSEGV), "d"(0)
                     : "rcx", "r11", "memory");
    return (int)result;
}

__attribute__((noipa)) static int forbidden_work(void) {
    int number = 0;
    if (forbid()) return 9;
    while (number < CALLS) number = ends(number);
    return number != CALLS;
}

static void leave(int status) {
    if (write(1, status ? "bad\n" : "done\n", status ? 4 : 5) < 0) status = 8;
    syscall(SYS_exit, status);
}

static void *thread_work(void *last) {
    if (last) return (void *)(long)forbidden_work();
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    void *result = NULL;
    int status = 0;
    if (argc < 3) return 2;
    way = argv[1];
    for (int number = 0; number < CALLS;) number = work(number);
    if (!strcmp(argv[2], "main")) leave(forbidden_work());
    if (!strcmp(argv[2], "child")) {
        if (!fork()) syscall(SYS_exit, forbidden_work());
        wait(&status);
        leave(status);
    }
    if (!strcmp(argv[2], "thread")) {
        pthread_create(&thread, NULL, thread_work, argv);
        pthread_join(thread, &result);
        for (int number = 0; number < CALLS;) number = work(number);
        leave(result != NULL);
    }
    return 2;
}
