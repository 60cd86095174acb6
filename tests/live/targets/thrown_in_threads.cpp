/* Eight threads throw all day long, each interrupted by a timer of its own whose handler looks back up the stack.
 *
 * argv[1]: microseconds between the signals of a thread. Each round of each thread does the same, so that hits are
 * proportional to rounds; what handlers call is called by nobody else, but for what looks back.
 */
#define MANY_ROUNDS
extern "C" { static void many_rounds(long); }
#include "protocol.h"
#include <exception>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <time.h>
#include <ucontext.h>
#include <unwind.h>
#include <vector>

enum { THREADS = 8, CALLS = 48 };
extern "C" {
TALLY(tiny); TALLY(chosen); TALLY(looped); TALLY(thrower); TALLY(passer); TALLY(rethrower); TALLY(catcher); TALLY(again);
TALLY(carried); TALLY(kept_quiet); TALLY(__cxa_throw); TALLY(__cxa_rethrow); TALLY(look_back);
}
static __thread long objects; /* that have been made and not destroyed */
static __thread char worker_here;

struct guard {
    long value;
    explicit guard(long v) : value(v) { objects++; }
    guard(const guard &other) : value(other.value) { objects++; }
    ~guard() { objects--; }
};
struct base_error { guard held; explicit base_error(long v) : held(v) {} virtual ~base_error() {} virtual long worth() const { return held.value; } };
struct other_error : base_error { explicit other_error(long v) : base_error(v) {} long worth() const override { return held.value * 3; } };
#define THROW(what) (CALLED(__cxa_throw), throw what)

extern "C" {
PROBED long tiny(long x) { CALLED(tiny); RETURNED(tiny); return x ^ 0x55; }
PROBED long chosen(long x) {
    long r;
    CALLED(chosen);
    switch (x & 7) {
        case 0: r = x + 1; break;
        case 1: r = x * 5; break;
        case 2: r = x - 9; break;
        case 3: r = ~x; break;
        case 4: r = x << 2; break;
        case 5: r = tiny(x); break;
        case 6: r = x | 3; break;
        default: r = -x;
    }
    RETURNED(chosen);
    return r;
}
PROBED double looped(long n) {
    CALLED(looped);
    double sum = 0;
    for (long i = 1; i <= n; i++) sum += (double)i * 0.5 + (double)(n % i);
    RETURNED(looped);
    return sum;
}
PROBED long thrower(long x) {
    CALLED(thrower);
    switch (x % 6) {
        case 0: break;
        case 1: THROW(std::runtime_error("odd " + std::to_string(x)));
        case 2: THROW(x * 7);
        case 3: THROW(base_error(x));
        case 4: THROW(other_error(x));
        default: THROW(std::vector<long>(3, x));
    }
    RETURNED(thrower);
    return x * 2;
}
PROBED long passer(long x, long depth) {
    CALLED(passer);
    guard held(depth);
    double before = looped(depth & 3);
    long r = depth ? passer(x, depth - 1) : thrower(x);
    check(held.value == depth && before == looped(depth & 3), "locals of a frame that was returned to");
    RETURNED(passer);
    return r + 1;
}
PROBED long rethrower(long x, long depth) {
    CALLED(rethrower);
    guard held(x);
    long r;
    try { r = passer(x, depth); }
    catch (...) {
        check(held.value == x && std::current_exception() != nullptr, "what is seen in a handler");
        CALLED(__cxa_rethrow);
        throw;
    }
    RETURNED(rethrower);
    return r + 1;
}
PROBED long catcher(long x, long depth) {
    CALLED(catcher);
    long r;
    try { r = rethrower(x, depth); }
    catch (const std::runtime_error &error) { r = error.what() == "odd " + std::to_string(x) ? -1 : 0x7eadbeef; }
    catch (long value) { r = value == x * 7 ? -2 : 0x7eadbeef; }
    catch (const other_error &error) { r = error.worth() == x * 3 ? -4 : 0x7eadbeef; }
    catch (const base_error &error) { r = error.worth() == x ? -3 : 0x7eadbeef; }
    catch (const std::vector<long> &list) { r = list.size() == 3 && list[2] == x ? -5 : 0x7eadbeef; }
    RETURNED(catcher);
    return r;
}
/* Thrown anew out of a handler, another thing. */
PROBED long again(long x) {
    CALLED(again);
    long r = 0;
    try {
        try { r = passer(x, 1); }
        catch (const base_error &error) { THROW(std::string("again")); }
        catch (...) { r = -8; }
    } catch (const std::string &text) { r = text == "again" ? -9 : 0x7eadbeef; }
    RETURNED(again);
    return r;
}
/* Carried out of its handler and thrown elsewhere. */
PROBED long carried(long x) {
    CALLED(carried);
    long r = 0;
    std::exception_ptr pointer;
    try { r = passer(x, 0); } catch (...) { pointer = std::current_exception(); }
    if (pointer) {
        try { std::rethrow_exception(pointer); }
        catch (long value) { r = value == x * 7 ? -2 : 0x7eadbeef; }
        catch (...) { r = -7; }
    }
    RETURNED(carried);
    return r;
}
/* Catches in a destructor what is thrown there, while something else is under way. */
struct quiet {
    long x;
    ~quiet() { try { passer(x, 0); } catch (...) { check(std::uncaught_exceptions() == 1, "exceptions under way"); } }
};
PROBED long kept_quiet(long x) {
    CALLED(kept_quiet);
    long r;
    try { quiet q{x}; r = passer(1, 2); } catch (const std::runtime_error &) { r = -1; }
    RETURNED(kept_quiet);
    return r;
}

/* -- signals */
struct bases { void *text, *data, *function; };
const void *_Unwind_Find_FDE(void *, struct bases *);
extern char __executable_start[], etext[];
static _Unwind_Reason_Code look(struct _Unwind_Context *context, void *found);
PROBED void *worker(void *number);
static _Unwind_Reason_Code look(struct _Unwind_Context *context, void *found) {
    struct bases bases;
    if (_Unwind_Find_FDE((void *)(_Unwind_GetIP(context) - 1), &bases) && bases.function == (void *)worker) {
        *(int *)found = 1;
        return _URC_NORMAL_STOP;
    }
    return _URC_NO_REASON;
}
static void on_tick(int, siginfo_t *, void *context) {
    struct bases bases;
    int found = 0, saved = errno;
    unsigned long pc = (unsigned long)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    CALLED(look_back);
    /* From functions of ours only: libgcc cannot unwind from the middle of itself. Between two copies it may not be known. */
    if (worker_here && pc >= (unsigned long)__executable_start && pc < (unsigned long)etext && _Unwind_Find_FDE((void *)pc, &bases)) {
        RETURNED(look_back);
        _Unwind_Backtrace(look, &found);
        if (!found) { say("BAD nothing unwound from %#lx, in the function at %#lx\n", pc, (unsigned long)bases.function); _exit(1); }
    }
    asm volatile("fninit; fldpi; std; cld" ::: "memory");
    errno = saved;
}
static void be_interrupted(long microseconds) {
    struct sigevent event = {};
    struct itimerspec often = {{0, 1000 * microseconds}, {0, 1000 * microseconds}};
    timer_t timer;
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGALRM;
    event._sigev_un._tid = gettid();
    check(!timer_create(CLOCK_MONOTONIC, &event, &timer) && !timer_settime(timer, 0, &often, 0), "timer");
}

/* -- rounds */
static const long outcomes[] = {0, -1, -2, -3, -4, -5};
static void one_threads_round(void) {
    for (long x = 0; x < CALLS; x++) {
        long depth = x % 5, kind = x % 6;
        check(catcher(x, depth) == (kind ? outcomes[kind] : x * 2 + depth + 2), "wrong result of catcher");
        check(again(x) == (kind == 0 ? x * 2 + 2 : kind == 3 || kind == 4 ? -9 : -8), "wrong result of again");
        check(carried(x) == (kind == 0 ? x * 2 + 1 : kind == 2 ? -2 : -7), "wrong result of carried");
        check(kept_quiet(x) == -1, "wrong result of kept_quiet");
        check(chosen(8 * x + 5) == ((8 * x + 5) ^ 0x55) && chosen(8 * x + 4) == 32 * x + 16, "wrong result of chosen");
        check(looped(4) == 6.0, "wrong result of looped");
        check(!objects, "objects that were not destroyed");
        check(!std::uncaught_exceptions() && !std::current_exception(), "exceptions that are left");
    }
}
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;
static long wanted, made, microseconds;
PROBED void *worker(void *number) {
    static char stacks[THREADS][65536];
    stack_t alternate = {};
    alternate.ss_sp = stacks[(long)number];
    alternate.ss_size = sizeof stacks[0];
    if ((long)number % 2) sigaltstack(&alternate, 0);
    worker_here = 1;
    be_interrupted(microseconds);
    for (long done = 0;; done++) {
        pthread_mutex_lock(&lock);
        while (done == wanted) pthread_cond_wait(&begun, &lock);
        pthread_mutex_unlock(&lock);
        one_threads_round();
        pthread_mutex_lock(&lock);
        if (++made == wanted * THREADS) pthread_cond_signal(&ended);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}
static void many_rounds(long number) {
    pthread_mutex_lock(&lock);
    wanted += number;
    pthread_cond_broadcast(&begun);
    while (made < wanted * THREADS) pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
}
static void one_round(void) { many_rounds(1); }
static void setup(int argc, char **argv) {
    USE_TALLY(tiny); USE_TALLY(chosen); USE_TALLY(looped); USE_TALLY(thrower); USE_TALLY(passer); USE_TALLY(rethrower);
    USE_TALLY(catcher); USE_TALLY(again); USE_TALLY(carried); USE_TALLY(kept_quiet); USE_TALLY(__cxa_throw);
    USE_TALLY(__cxa_rethrow); USE_TALLY(look_back);
    struct sigaction action = {};
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_RESTART | SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGALRM, &action, 0);
    microseconds = argc > 1 ? atol(argv[1]) : 400;
    pthread_t thread;
    for (long i = 0; i < THREADS; i++) check(!pthread_create(&thread, 0, worker, (void *)i), "pthread_create");
    many_rounds(1);
}
}
