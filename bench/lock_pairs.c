/* A pair of lock and unlock of a mutex that is free, in a program of two threads, and two readings of the time stamp
   counter: the least nanoseconds of some rounds, by the thread's own clock. usage: lock_pairs PAIRS */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *sleeps(void *unused) { for (;;) pause(); return unused; }
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
static volatile unsigned long kept;
int main(int count, char **arguments) {
    long pairs = count > 1 ? atol(arguments[1]) : 1000000;
    double pair = 1e18, readings = 1e18;
    pthread_t other;
    pthread_create(&other, 0, sleeps, 0);
    for (int round = 0; round < 9; round++) {
        double began = now();
        for (long i = 0; i < pairs; i++) { pthread_mutex_lock(&mutex); pthread_mutex_unlock(&mutex); }
        double middle = now();
        for (long i = 0; i < pairs; i++) { kept += __rdtsc(); kept += __rdtsc(); }
        double ended = now();
        if (middle - began < pair) pair = middle - began;
        if (ended - middle < readings) readings = ended - middle;
    }
    printf("%.2f %.2f\n", pair / pairs, readings / pairs);
    return 0;
}
