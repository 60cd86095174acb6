/* Threads that come and go, each with the calls of outer() and inner() that it says: "PID TID NAME OUTER INNER".
 * Arguments: how many threads there are at a time; how often they come; how many fork children do the same. With "!"
 * as the last one it says "ready" first, and waits for a line. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int at_a_time, rounds;
static volatile int spin;
static pthread_barrier_t all;
static char (*lines)[64];

__attribute__((noinline)) void inner(int n) { for (int i = 0; i < n; i++) spin = i; }
__attribute__((noinline)) int outer(int n) {
    for (int i = 0; i < n; i++) inner(i);
    return spin;
}

static void say(char *line, const char *name, int calls, int each) {
    snprintf(line, sizeof *lines, "%d %ld %s %d %d\n", getpid(), syscall(SYS_gettid), name, calls, calls * each);
}

static void *work(void *number) {
    int n = (int)(long)number, calls = 1 + n % 7;
    char name[16];
    snprintf(name, sizeof name, "thread%d", n);
    pthread_setname_np(pthread_self(), name);
    for (int i = 0; i < calls; i++) outer(3);
    say(lines[n], name, calls, 3);
    pthread_barrier_wait(&all); /* none ends before all have begun: they are there at the same time */
    return 0;
}

static void process(void) {
    pthread_attr_t small;
    pthread_t *threads = calloc(at_a_time, sizeof *threads);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_barrier_init(&all, 0, at_a_time);
    outer(5);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < at_a_time; i++)
            if (pthread_create(&threads[i], &small, work, (void *)(long)(round * at_a_time + i))) _exit(9);
        for (int i = 0; i < at_a_time; i++) pthread_join(threads[i], 0);
    }
    say(lines[at_a_time * rounds], "main", 1, 5);
    for (int i = 0; i <= at_a_time * rounds; i++)
        if (write(1, lines[i], strlen(lines[i])) < 0) _exit(8);
}

int main(int argc, char **argv) {
    char line[16];
    int children = atoi(argv[3]);
    at_a_time = atoi(argv[1]), rounds = atoi(argv[2]);
    lines = calloc(at_a_time * rounds + 1, sizeof *lines);
    if (argc > 4) {
        puts("ready");
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) return 1;
    }
    for (int i = 0; i < children; i++)
        if (!fork()) {
            process();
            _exit(0);
        }
    process();
    while (wait(0) > 0) continue;
    return 0;
}
