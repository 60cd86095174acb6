/* Functions that call and jump to each other at random, with exceptions, longjmp, signals and threads.
 * Arguments: threads, "calm" or "wild" (exceptions and longjmp), and "signals" for a timer whose handler calls them, too.
 * Its own record: each function notes that it is entered; who calls, not by a jump, ends all that was entered since. */
#include "protocol.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <thread>
#include <vector>
#define NOINLINE __attribute__((noinline, noclone))
TALLY(f0); TALLY(f1); TALLY(f2); TALLY(f3); TALLY(f4); TALLY(f5); TALLY(f6); TALLY(f7);
static tally *const known[] = {&f0_tally, &f1_tally, &f2_tally, &f3_tally, &f4_tally, &f5_tally, &f6_tally, &f7_tally};
enum { COUNT = 8, DEPTH = 14 };
typedef long (*function)(long, unsigned);
static int threads = 1, wild, signals;
static thread_local unsigned char entered[1 << 12];
static thread_local volatile int height;
static thread_local jmp_buf *volatile out;
static thread_local volatile int quiet;
static volatile long spin;
static inline void enter(int number) {
    int at = height;
    height = at + 1;
    entered[at] = (unsigned char)number;
    __atomic_fetch_add(&known[number]->calls, 1, __ATOMIC_RELAXED);
}
static NOINLINE void ended(int down_to) {
    while (height > down_to) { __atomic_fetch_add(&known[entered[height - 1]]->returns, 1, __ATOMIC_RELAXED); height = height - 1; }
}
static NOINLINE long leaf(long x, unsigned s) { spin = spin + 1; return x + (long)(s & 3); }
static NOINLINE long leave(long x, unsigned s) {
    if (wild && !quiet && s >> 29 == 1) throw 1;
    if (wild && !quiet && s >> 29 == 2) longjmp(*out, 1);
    return x;
}
extern function table[COUNT];
static NOINLINE long guard(function f, long x, unsigned s) {
    volatile int here = height;
    jmp_buf back, *volatile before = out;
    volatile long r = -1;
    out = &back;
    if (setjmp(back) == 0) {
        try { r = f(x, s); ended(here); }
        catch (int) { height = here; r = -2; }
    } else height = here;
    out = before;
    return r;
}
#define PROBED_FUNCTION(n, A, B, C) \
    NOINLINE long f##n(long x, unsigned s) { \
        enter(n); \
        s = s * 1664525u + 1013904223u; \
        if (x <= 0) return leaf(x, s); \
        switch ((s >> 12) % 7) { \
        case 0: return A(x - 1, s); \
        case 1: return table[(s >> 20) % COUNT](x - 1, s); \
        case 2: { int here = height; long r = B(x - 2, s); ended(here); spin = spin + r; return r; } \
        case 3: { int here = height; long r = table[(s >> 20) % COUNT](x - 2, s); ended(here); return C(x - 3 - (r & 1), s + 1); } \
        case 4: { long r = guard(table[(s >> 20) % COUNT], x - 2, s); spin = spin + r; return A(x - 4, s + 2); } \
        case 5: return leave(x, s); \
        default: for (int i = 0; i < 2; i++) { if (s & (1u << (16 + i))) { int here = height; spin = spin + C(x / 2 - 1, s + (unsigned)i); ended(here); } } return leaf(x, s); \
        } \
    }
extern "C" {
long f0(long, unsigned), f1(long, unsigned), f2(long, unsigned), f3(long, unsigned);
long f4(long, unsigned), f5(long, unsigned), f6(long, unsigned), f7(long, unsigned);
PROBED_FUNCTION(0, f1, f2, f3)
PROBED_FUNCTION(1, f0, f5, f2)
PROBED_FUNCTION(2, f7, f6, f1)
PROBED_FUNCTION(3, f4, f0, f4)
PROBED_FUNCTION(4, f3, f1, f6)
PROBED_FUNCTION(5, f6, f7, f0)
PROBED_FUNCTION(6, f2, f3, f7)
PROBED_FUNCTION(7, f5, f4, f5)
}
function table[COUNT] = {f0, f1, f2, f3, f4, f5, f6, f7};
static void on_alarm(int) {
    jmp_buf *before = out;
    quiet = quiet + 1;
    guard(table[spin & 7], 3, (unsigned)spin * 2654435761u);
    quiet = quiet - 1;
    out = before;
}
static unsigned seed;
static void work(unsigned s) {
    for (int i = 0; i < 50; i++) { s = s * 1103515245u + 12345u; guard(table[s >> 29], DEPTH, s); }
    check(height == 0, "height");
}
static void one_round(void) {
    std::vector<std::thread> all;
    for (int i = 1; i < threads; i++) all.emplace_back(work, seed + (unsigned)i * 7919u);
    work(++seed);
    for (auto &each : all) each.join();
    seed += 104729u;
}
static void setup(int argc, char **argv) {
    threads = argc > 1 ? atoi(argv[1]) : 1;
    wild = argc > 2 && !strcmp(argv[2], "wild");
    signals = argc > 3 && !strcmp(argv[3], "signals");
    USE_TALLY(f0); USE_TALLY(f1); USE_TALLY(f2); USE_TALLY(f3); USE_TALLY(f4); USE_TALLY(f5); USE_TALLY(f6); USE_TALLY(f7);
    if (signals) {
        struct sigaction action = {};
        action.sa_handler = on_alarm;
        action.sa_flags = SA_RESTART;
        sigaction(SIGALRM, &action, nullptr);
        itimerval often = {{0, 700}, {0, 700}};
        setitimer(ITIMER_REAL, &often, nullptr);
    }
}
