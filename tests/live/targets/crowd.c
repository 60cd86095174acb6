/* Threads that are all there at once, and make timed calls; prints their time on processors by their own clocks. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#define CALL __attribute__((noinline, noclone, noipa))
static _Atomic long spent;
static volatile unsigned long kept;
static pthread_barrier_t all_there, all_done;
static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
CALL void work(void) { for (int n = 0; n < 4000000; n++) kept = kept * 3 + 1; }
CALL void waits(void) { usleep(1000); work(); }
CALL void warms(void) { kept++; }
static void *in_thread(void *unused) {
    warms();
    pthread_barrier_wait(&all_there);
    long before = now();
    waits();
    spent += now() - before;
    pthread_barrier_wait(&all_done);
    return unused;
}
int main(int count, char **words) {
    int threads = atoi(words[1]);
    pthread_t some[threads];
    char line[8];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, 8, stdin)) return 1;
    pthread_barrier_init(&all_there, 0, threads);
    pthread_barrier_init(&all_done, 0, threads);
    for (int n = 0; n < threads; n++) if (pthread_create(&some[n], 0, in_thread, 0)) abort();
    for (int n = 0; n < threads; n++) pthread_join(some[n], 0);
    printf("%ld\n", spent);
    fflush(stdout);
    return fgets(line, 8, stdin) == 0;
}
