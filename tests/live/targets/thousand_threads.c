/* A thousand threads that each call work() now and then, then the next program of so many; argument: how many follow.
 * A thread that is not the first one executes, while the others are wherever they are; after "wait" the first program's
 * go on until it is told to end. */
#include "protocol.h"
#include <pthread.h>
#include <semaphore.h>
enum { THREADS = 1000, CALLS = 20 };
static char **own_arguments;
static sem_t all_made, done;
static volatile int go_on;
static void stop_going_on(void) { go_on = 0; for (;;) pause(); }
PROBED int work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
static void one_round(void) {}
static void *call(void *unused) {
    (void)unused;
    sem_post(&all_made);
    for (int i = 0; i < CALLS; i++) {
        check(work(i) == i + 1, "work");
        usleep(1000);
    }
    for (int i = 0; go_on; i++) { check(work(i) == i + 1, "work"); usleep(1000000); }
    sem_post(&done);
    pause();
    return 0;
}
static void *execute(void *unused) {
    char number[16];
    (void)unused;
    for (int i = 0; i < THREADS; i++) sem_wait(&done);
    snprintf(number, sizeof number, "%d", atoi(own_arguments[1]) - 1);
    if (atoi(own_arguments[1]) == 0) { say("ok\n"); _exit(0); }
    execl(own_arguments[0], own_arguments[0], number, (char *)0);
    check(0, "exec failed");
    return 0;
}
static void setup(int argc, char **argv) {
    pthread_t one;
    pthread_attr_t small;
    check(argc >= 2, "an argument");
    go_on = argc > 2;
    own_arguments = argv;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&one, &small, call, 0)) { say("unsupported: only %d threads\n", i); _exit(0); }
    }
    for (int i = 0; i < THREADS; i++) sem_wait(&all_made);
    check(!pthread_create(&one, &small, execute, 0), "create");
    if (argc > 2) atexit(stop_going_on);
}
