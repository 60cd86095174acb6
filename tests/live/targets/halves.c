#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#define CALL __attribute__((noinline, noclone, noipa))
static long at(clockid_t which) { struct timespec t; clock_gettime(which, &t); return t.tv_sec * 1000000000L + t.tv_nsec; }
static _Atomic long cpu, off, slept, burnt_off, ran;
static volatile unsigned long kept;
CALL void sleeps(void) { usleep(3000); __asm__ volatile("nop;nop;nop;nop"); }
CALL void burns(void) { for (int n = 0; n < 2000000; n++) kept = kept * 3 + 1; }
CALL void half(void) {
    long wall = at(CLOCK_MONOTONIC), own = at(CLOCK_THREAD_CPUTIME_ID);
    sleeps();
    long wall2 = at(CLOCK_MONOTONIC), own2 = at(CLOCK_THREAD_CPUTIME_ID);
    burns();
    long wall3 = at(CLOCK_MONOTONIC), own3 = at(CLOCK_THREAD_CPUTIME_ID);
    slept += wall2 - wall - (own2 - own);
    burnt_off += wall3 - wall2 - (own3 - own2);
}
CALL void warms(void) { kept++; }
static void *works(void *unused) {
    char line[100];
    warms();
    long wall = at(CLOCK_MONOTONIC), own = at(CLOCK_THREAD_CPUTIME_ID);
    for (int n = 0; n < 40; n++) half();
    own = at(CLOCK_THREAD_CPUTIME_ID) - own;
    wall = at(CLOCK_MONOTONIC) - wall;
    cpu += own, off += wall - own;
    FILE *stat = fopen("/proc/thread-self/schedstat", "r");
    if (!stat || !fgets(line, 100, stat)) abort();
    fclose(stat);
    ran += atol(line);
    return unused;
}
int main(void) {
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) pthread_create(&threads[n], 0, works, 0);
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
    printf("cpu %ld off %ld sleeps %ld burns %ld schedstat %ld\n", cpu, off, slept, burnt_off, ran);
    return 0;
}
