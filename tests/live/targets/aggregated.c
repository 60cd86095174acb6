/* Eight threads call one function with values that follow from the number of the call; with "timer", a signal handler
 * in each thread does, too. */
#include "protocol.h"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#define THREADS 8
#define CALLS 3500
#define KEYS 1000
TALLY(work);
PROBED uint64_t work(uint64_t value, uint64_t key) {
    CALLED(work);
    RETURNED(work);
    return value * 3 + key;
}
static uint64_t mixed(uint64_t step) {
    uint64_t z = (step + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static void once(uint64_t step) {
    uint64_t value = mixed(step) >> (step % 64), key = mixed(step) % KEYS;
    check(work(value, key) == value * 3 + key, "work");
}
static int by_timer;
static uint64_t round_number;
static __thread uint64_t interrupting;
static void on_timer(int signal) {
    (void)signal;
    once(interrupting++);
}
static void *thread_main(void *argument) {
    uint64_t first = (round_number * THREADS + (uint64_t)(long)argument) * CALLS;
    timer_t timer;
    interrupting = ((uint64_t)1 << 40) + first;
    if (by_timer) {
        struct itimerspec every = {{0, 200000}, {0, 200000}};
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
        event._sigev_un._tid = (int)syscall(SYS_gettid);
        check(!timer_create(CLOCK_MONOTONIC, &event, &timer), "timer_create");
        timer_settime(timer, 0, &every, 0);
    }
    for (uint64_t n = 0; n < CALLS; n++) once(first + n);
    if (by_timer) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR2);
        pthread_sigmask(SIG_BLOCK, &set, 0); /* what is pending ends with the thread */
        timer_delete(timer);
    }
    return 0;
}
static void one_round(void) {
    pthread_t threads[THREADS];
    for (long n = 0; n < THREADS; n++) check(!pthread_create(&threads[n], 0, thread_main, (void *)n), "pthread_create");
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], 0);
    round_number++;
}
static void setup(int argc, char **argv) {
    by_timer = argc > 1 && !strcmp(argv[1], "timer");
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &action, 0);
    USE_TALLY(work);
}
