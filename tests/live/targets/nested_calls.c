/* Functions that call each other, and measure on their own how long they take and what of that is in calls.
 * Its record: "calls NAME N"; "calls NAME_self N" and "calls NAME_all N" in ticks, recursion counted once. */
#include "protocol.h"
#include <pthread.h>
#include <x86intrin.h>
#define FUNCTIONS(DO) DO(outer) DO(middle) DO(deep) DO(fib)
#define TALLIES(name) TALLY(name); TALLY(name##_self); TALLY(name##_all);
#define USE_TALLIES(name) USE_TALLY(name); USE_TALLY(name##_self); USE_TALLY(name##_all);
#define NUMBER(name) name##_number,
FUNCTIONS(TALLIES)
enum { FUNCTIONS(NUMBER) COUNT };
static __thread struct { unsigned long long start, within; } frames[64];
static __thread int height, inside[COUNT];
static volatile int spin;
static void burn(int n) { for (int i = 0; i < n; i++) spin++; }
#define BEGIN(name) \
    int frame = height++, first = !inside[name##_number]++; \
    CALLED(name); \
    frames[frame].within = 0; \
    frames[frame].start = __rdtsc()
#define ENDING(name) \
    unsigned long long took = __rdtsc() - frames[frame].start; \
    __atomic_fetch_add(&name##_self_tally.calls, (long)(took - frames[frame].within), __ATOMIC_RELAXED); \
    if (first) __atomic_fetch_add(&name##_all_tally.calls, (long)took, __ATOMIC_RELAXED); \
    if (frame) frames[frame - 1].within += took; \
    inside[name##_number]--; \
    height--
PROBED int deep(int n) { BEGIN(deep); burn(n); ENDING(deep); return n; }
PROBED int fib(int n) { BEGIN(fib); burn(2000); int r = n < 2 ? n : fib(n - 1) + fib(n - 2); ENDING(fib); return r; }
PROBED int middle(int n) { BEGIN(middle); deep(3 * n); burn(n); deep(n); ENDING(middle); return n; }
PROBED int outer(int n) { BEGIN(outer); burn(2 * n); middle(n); fib(6); middle(n); ENDING(outer); return n; }
static int threads = 1;
static void *work(void *unused) { outer(20000); return unused; }
static void one_round(void) {
    pthread_t others[8];
    for (int i = 1; i < threads; i++) check(pthread_create(&others[i], 0, work, 0) == 0, "thread");
    work(0);
    for (int i = 1; i < threads; i++) pthread_join(others[i], 0);
}
static void setup(int argc, char **argv) {
    threads = argc > 1 ? atoi(argv[1]) : 1;
    FUNCTIONS(USE_TALLIES)
}
