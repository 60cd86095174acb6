/* Functions that call and jump to each other at random: directly (through the PLT where this is a library), by pointers, by
 * virtual calls, with recursion, exceptions, longjmp, coroutines, signals and threads.
 * Arguments: threads, then any of "wild" (exceptions and longjmp), "coroutines", "signals" (a timer whose handler calls), and
 * "shallow" (chains of few calls).
 * Its own record: each function notes that it is entered; who calls, not by a jump, ends all that was entered since, and
 * their results are what comes back. "tails" of a function are the sum of its results; tallies eXY are calls of Y by X, and
 * eNY those by nobody. */
#include "protocol.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <thread>
#include <ucontext.h>
#include <vector>
#define NOINLINE __attribute__((noinline, noclone))
enum { COUNT = 8, HEIGHT = 1 << 12, NOBODY = COUNT, STACK = 1 << 18 };
static tally functions[COUNT], edges[COUNT + 1][COUNT];
static char names[COUNT][4], edge_names[COUNT + 1][COUNT][4];
typedef long (*function)(long, unsigned);
static int threads = 1, depth = 14, wild, coroutines, signals;
/* What is under way on one stack. */
struct lane {
    unsigned char entered[HEIGHT];
    volatile int height;
    jmp_buf *volatile out;
    ucontext_t context;
    char *stack;
    volatile int done;
    unsigned seed;
};
static thread_local lane *volatile here;
static thread_local lane *lanes[2];
static thread_local volatile int quiet;
static volatile long spin;
static inline void enter(int number) {
    lane *own = here;
    int at = own->height;
    int caller = at ? own->entered[at - 1] : NOBODY;
    own->height = at + 1;
    own->entered[at] = (unsigned char)number;
    __atomic_fetch_add(&functions[number].calls, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&edges[caller][number].calls, 1, __ATOMIC_RELAXED);
}
static NOINLINE void ended(int down_to, long result) {
    lane *own = here;
    while (own->height > down_to) {
        tally *of = &functions[own->entered[own->height - 1]];
        __atomic_fetch_add(&of->returns, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&of->tails, result, __ATOMIC_RELAXED);
        own->height = own->height - 1;
    }
}
static NOINLINE void yield(void) {
    lane *own = here, *other = lanes[own == lanes[0]];
    if (!coroutines || quiet || other->done) return;
    quiet = quiet + 1; /* no signal handler asks which lane it is on between the two */
    here = other;
    swapcontext(&own->context, &other->context);
    here = own;
    quiet = quiet - 1;
}
static NOINLINE long leaf(long x, unsigned s) {
    spin = spin + 1;
    if (s % 5 == 0) yield();
    return x + (long)(s & 3);
}
static NOINLINE long leave(long x, unsigned s) {
    if (wild && !quiet && s >> 29 == 1) throw 1;
    if (wild && !quiet && s >> 29 == 2) longjmp(*here->out, 1);
    return x;
}
extern function table[COUNT];
struct node { virtual ~node() {} virtual NOINLINE long run(long x, unsigned s) const { return leaf(x, s); } };
extern const node *const nodes[COUNT];
static NOINLINE long guard(function f, long x, unsigned s) {
    volatile int height = here->height;
    jmp_buf back, *volatile before = here->out;
    volatile long r = -1;
    here->out = &back;
    if (setjmp(back) == 0) {
        try { r = f(x, s); ended(height, r); }
        catch (int) { here->height = height; r = -2; }
    } else here->height = height;
    here->out = before;
    return r;
}
#define RANDOM_FUNCTION(n, A, B, C) \
    NOINLINE long f##n(long x, unsigned s) { \
        enter(n); \
        s = s * 1664525u + 1013904223u; \
        if (x <= 0) return leaf(x, s); \
        switch ((s >> 12) % 8) { \
        case 0: return A(x - 1, s); \
        case 1: return table[(s >> 20) % COUNT](x - 1, s); \
        case 2: { int height = here->height; long r = B(x - 2, s); ended(height, r); spin = spin + r; return r; } \
        case 3: { int height = here->height; long r = table[(s >> 20) % COUNT](x - 2, s); ended(height, r); return C(x - 3 - (r & 1), s + 1); } \
        case 4: { long r = guard(table[(s >> 20) % COUNT], x - 2, s); spin = spin + r; return A(x - 4, s + 2); } \
        case 5: return leave(x, s); \
        case 6: return nodes[(s >> 20) % COUNT]->run(x - 1, s); \
        default: for (int i = 0; i < 2; i++) { if (s & (1u << (16 + i))) { int height = here->height; long r = C(x / 2 - 1, s + (unsigned)i); ended(height, r); spin = spin + r; } } return leaf(x, s); \
        } \
    }
extern "C" {
long f0(long, unsigned), f1(long, unsigned), f2(long, unsigned), f3(long, unsigned);
long f4(long, unsigned), f5(long, unsigned), f6(long, unsigned), f7(long, unsigned);
RANDOM_FUNCTION(0, f1, f2, f3)
RANDOM_FUNCTION(1, f0, f5, f2)
RANDOM_FUNCTION(2, f7, f6, f1)
RANDOM_FUNCTION(3, f4, f0, f4)
RANDOM_FUNCTION(4, f3, f1, f6)
RANDOM_FUNCTION(5, f6, f7, f0)
RANDOM_FUNCTION(6, f2, f3, f7)
RANDOM_FUNCTION(7, f5, f4, f5)
}
function table[COUNT] = {f0, f1, f2, f3, f4, f5, f6, f7};
template <int n> struct of : node { NOINLINE long run(long x, unsigned s) const override { return table[n](x, s + n); } };
static const of<0> n0; static const of<1> n1; static const of<2> n2; static const of<3> n3;
static const of<4> n4; static const of<5> n5; static const of<6> n6; static const of<7> n7;
const node *const nodes[COUNT] = {&n0, &n1, &n2, &n3, &n4, &n5, &n6, &n7};
static void on_alarm(int) {
    if (!here) return;
    jmp_buf *before = here->out;
    quiet = quiet + 1;
    guard(table[spin & 7], 3, (unsigned)spin * 2654435761u);
    quiet = quiet - 1;
    here->out = before;
}
static void calls(unsigned s) {
    for (int i = 0; i < 40; i++) { s = s * 1103515245u + 12345u; guard(table[s >> 29], depth, s); yield(); }
}
static void beside(void) {
    quiet = quiet - 1;
    lane *own = here;
    calls(own->seed);
    quiet = quiet + 1;
    own->done = 1;
    here = lanes[0];
    if (wild) setcontext(&lanes[0]->context); /* which may leave calls behind */
    swapcontext(&own->context, &lanes[0]->context);
}
static void work(unsigned s) {
    lane first = {}, second = {};
    sigset_t all, before;
    sigfillset(&all);
    lanes[0] = &first;
    lanes[1] = &second;
    second.done = !coroutines;
    here = &first;
    if (coroutines) {
        second.seed = s ^ 0x5bd1e995u;
        second.stack = (char *)malloc(STACK);
        getcontext(&second.context);
        second.context.uc_stack.ss_sp = second.stack;
        second.context.uc_stack.ss_size = STACK;
        makecontext(&second.context, beside, 0);
    }
    calls(s);
    while (!second.done) yield();
    check(first.height == 0 && second.height == 0, "height");
    pthread_sigmask(SIG_BLOCK, &all, &before); /* from here on there is no lane to be on */
    here = nullptr;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    free(second.stack);
}
static unsigned seed;
static void one_round(void) {
    std::vector<std::thread> all;
    for (int i = 1; i < threads; i++) all.emplace_back(work, seed + (unsigned)i * 7919u);
    work(++seed);
    for (auto &each : all) each.join();
    seed += 104729u;
}
static void add(tally &which, char *name) {
    which.name = name;
    which.next = tallies;
    tallies = &which;
}
static void setup(int argc, char **argv) {
    threads = argc > 1 ? atoi(argv[1]) : 1;
    for (int i = 2; i < argc; i++) {
        wild |= !strcmp(argv[i], "wild");
        coroutines |= !strcmp(argv[i], "coroutines");
        signals |= !strcmp(argv[i], "signals");
        if (!strcmp(argv[i], "shallow")) depth = 2;
    }
    for (int i = 0; i < COUNT; i++) { snprintf(names[i], 4, "f%d", i); add(functions[i], names[i]); }
    for (int i = 0; i <= COUNT; i++)
        for (int j = 0; j < COUNT; j++) {
            char *name = edge_names[i][j];
            name[0] = 'e'; name[1] = i == NOBODY ? 'N' : (char)('0' + i); name[2] = (char)('0' + j);
            add(edges[i][j], name);
        }
    if (signals) {
        struct sigaction action = {};
        action.sa_handler = on_alarm;
        action.sa_flags = SA_RESTART;
        sigaction(SIGALRM, &action, nullptr);
        itimerval often = {{0, 700}, {0, 700}};
        setitimer(ITIMER_REAL, &often, nullptr);
    }
}
