/* left_often longjmp|throw THREADS: calls that are left behind over and over, at several depths and in signal handlers. */
#define MANY_ROUNDS
static void many_rounds(long rounds);
#include "protocol.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
TALLY(deeper); TALLY(handled); TALLY(raises); TALLY(plain); TALLY(round_of);
static thread_local sigjmp_buf back;
static bool throws;
static int threads;
[[noreturn]] static void leave(int value) {
    if (throws) throw value;
    siglongjmp(back, value);
}
extern "C" {
PROBED int plain(int x) { CALLED(plain); __asm__ volatile(""); RETURNED(plain); return x + 1; }
PROBED int deeper(int x, int leaves) {
    CALLED(deeper);
    if (!x && leaves) leave(1);
    int r = x ? deeper(x - 1, leaves) + 1 : plain(x);
    __asm__ volatile("" : "+r"(r));
    RETURNED(deeper);
    return r;
}
PROBED void handled(int leaves) { CALLED(handled); if (leaves) siglongjmp(back, 2); RETURNED(handled); }
PROBED int raises(int leaves) {
    CALLED(raises);
    pthread_kill(pthread_self(), leaves ? SIGUSR1 : SIGUSR2);
    RETURNED(raises);
    return leaves;
}
PROBED int round_of(int number) {
    CALLED(round_of);
    volatile int left = 0;
    if (!sigsetjmp(back, 1)) {
        try {
            deeper(number % 7, number % 3);
        } catch (int value) { left = value; }
    } else left = 1;
    check(left == (number % 3 != 0), "what was left");
    left = 0;
    if (!sigsetjmp(back, 1)) raises(number % 2);
    else left = 1;
    check(left == number % 2, "what a signal handler has left");
    deeper(number % 5, 0);
    RETURNED(round_of);
    return 0;
}
}
static void on_signal(int number) { handled(number == SIGUSR1); }
static long rounds_of_each;
static void *work(void *) {
    for (long number = 0; number < rounds_of_each; number++) round_of((int)number);
    return 0;
}
static void many_rounds(long rounds) {
    pthread_t all[16];
    rounds_of_each = rounds;
    for (int i = 0; i < threads; i++) check(!pthread_create(&all[i], 0, work, 0), "a thread");
    for (int i = 0; i < threads; i++) pthread_join(all[i], 0);
}
static void setup(int argc, char **argv) {
    check(argc == 3, "arguments");
    throws = !strcmp(argv[1], "throw");
    threads = atoi(argv[2]);
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    USE_TALLY(deeper); USE_TALLY(handled); USE_TALLY(raises); USE_TALLY(plain); USE_TALLY(round_of);
}
static void one_round(void) { many_rounds(1); }
