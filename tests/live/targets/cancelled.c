/* Threads that end in every way while probed functions are being called: cancelled where they wait, cancelled at any
 * instruction, by pthread_exit from far within, and by return. Each way's clean-up has to have run. */
#define MANY_ROUNDS
static void many_rounds(long rounds);
#include "protocol.h"
#include <pthread.h>
#include <sched.h>
enum { EACH = 4, CALLS = 200 };
TALLY(work);
TALLY(waits);
TALLY(leaves);
static long cleaned, made, began, ended; /* began, ended: calls of work_anywhere by threads that are cancelled anywhere */
static volatile int sink;

PROBED int work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
PROBED int work_anywhere(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
PROBED int waits(int fd) {
    char byte;
    ssize_t got = read(fd, &byte, 1); /* a cancellation point */
    return (int)got + 1;
}
PROBED int leaves(int deep) {
    sink = deep;
    if (deep == 0) pthread_exit(0);
    int result = leaves(deep - 1);
    __asm__ volatile("" : "+r"(result));
    return result + 1;
}
static void clean(void *unused) { (void)unused; __atomic_fetch_add(&cleaned, 1, __ATOMIC_RELAXED); }

static void *waiting(void *fd) {
    pthread_cleanup_push(clean, 0);
    for (int i = 0; i < CALLS; i++) { COUNTED(work, check(work(i) == i + 1, "work")); }
    CALLED(waits);
    waits((int)(long)fd);
    check(0, "a thread has not been cancelled where it waits");
    pthread_cleanup_pop(0);
    return 0;
}
struct spinning { _Atomic long began, ended; };
static void *anywhere(void *place) {
    struct spinning *own = place;
    pthread_cleanup_push(clean, 0);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    for (;;) { own->began++; work_anywhere(1); own->ended++; }
    pthread_cleanup_pop(0);
    return 0;
}
static void *leaving(void *deep) {
    pthread_cleanup_push(clean, 0);
    for (int i = 0; i <= (int)(long)deep; i++) CALLED(leaves);
    leaves((int)(long)deep);
    check(0, "a thread has not left");
    pthread_cleanup_pop(0);
    return 0;
}
static void *returning(void *unused) {
    (void)unused;
    for (int i = 0; i < CALLS; i++) { COUNTED(work, check(work(i) == i + 1, "work")); }
    return 0;
}

static void one_round(void) {
    pthread_t threads[4 * EACH];
    struct spinning own[EACH];
    int ends[2], number = 0;
    void *result;
    check(pipe(ends) == 0, "pipe");
    for (long i = 0; i < EACH; i++) {
        own[i] = (struct spinning){0, 0};
        check(!pthread_create(&threads[number++], 0, waiting, (void *)(long)ends[0]), "create");
        check(!pthread_create(&threads[number++], 0, anywhere, &own[i]), "create");
        check(!pthread_create(&threads[number++], 0, leaving, (void *)i), "create");
        check(!pthread_create(&threads[number++], 0, returning, 0), "create");
    }
    for (int i = 0; i < EACH; i++) while (own[i].began < 100) sched_yield();
    for (int i = 0; i < 4 * EACH; i++)
        if (i % 4 < 2) check(!pthread_cancel(threads[i]), "cancel");
    for (int i = 0; i < 4 * EACH; i++) {
        check(!pthread_join(threads[i], &result), "join");
        check((result == PTHREAD_CANCELED) == (i % 4 < 2), "how a thread has ended");
    }
    for (int i = 0; i < EACH; i++) { began += own[i].began; ended += own[i].ended; }
    made += 3 * EACH;
    check(cleaned == made, "clean-up has not run");
    close(ends[0]); close(ends[1]);
}
static void many_rounds(long rounds) {
    while (rounds-- > 0) one_round();
    say("anywhere %ld %ld\n", began, ended);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(work); USE_TALLY(waits); USE_TALLY(leaves);
    sink = work_anywhere(1);
}
