/* Calls of work, of threads, fork children and signal handlers; prints what they took by the threads' own clocks. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define CALL __attribute__((noinline, noclone, noipa))
static _Atomic long spent;
static volatile unsigned long kept;
static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
CALL void step(void) { for (int n = 0; n < 20000; n++) kept = kept * 3 + 1; }
static int steps = 20;
CALL void work(void) { for (int n = 0; n < steps; n++) step(); }
CALL void waits(void) { usleep(2000); work(); usleep(2000); }
CALL void warms(void) { kept++; }
static void *in_thread(void *unused) {
    warms(); /* a thread's first timed call maps a page, which takes its time before the call begins */
    long before = now();
    waits();
    waits();
    spent += now() - before;
    return unused;
}
static void handler(int number) { step(); }
static void together(int count) {
    pthread_t threads[count];
    for (int n = 0; n < count; n++) if (pthread_create(&threads[n], 0, in_thread, 0)) abort();
    for (int n = 0; n < count; n++) pthread_join(threads[n], 0);
}
int main(int count, char **words) {
    char line[8];
    const char *way = words[1];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, 8, stdin)) return 1;
    /* so that a probe's first touch of a page, 0.2 ms where the host has to find one, is below one per cent */
    if (!strcmp(way, "threads") || !strcmp(way, "no descriptors") || !strcmp(way, "children")) steps = 80;
    if (!strcmp(way, "threads")) together(atoi(words[2]));
    if (!strcmp(way, "one after the other")) for (int n = 0; n < 100; n++) together(1);
    if (!strcmp(way, "no descriptors")) {
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3});
        together(4);
    }
    if (!strcmp(way, "children"))
        for (int n = 0; n < 4; n++) {
            int ends[2], status;
            long theirs;
            if (pipe(ends)) abort();
            if (!fork()) {
                spent = 0;
                in_thread(0);
                theirs = spent;
                _exit(write(ends[1], &theirs, sizeof theirs) != sizeof theirs);
            }
            wait(&status);
            if (status || read(ends[0], &theirs, sizeof theirs) != sizeof theirs) abort();
            spent += theirs;
        }
    if (!strcmp(way, "signals")) {
        signal(SIGPROF, handler);
        setitimer(ITIMER_PROF, &(struct itimerval){{0, 1000}, {0, 1000}}, 0);
        for (int n = 0; n < 20; n++) in_thread(0);
        setitimer(ITIMER_PROF, &(struct itimerval){{0, 0}, {0, 0}}, 0);
    }
    if (!strcmp(way, "stays")) together(4), puts("waits"), fflush(stdout), in_thread(0);
    printf("%ld\n", spent);
    fflush(stdout);
    while (fgets(line, 8, stdin)) in_thread(0);
    return 0;
}
