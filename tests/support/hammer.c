/* Calls generated update code from many threads, and from a timer signal that interrupts it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

typedef uint64_t (*update)(uint64_t base, uint64_t thread, uint64_t value, uint64_t key);

static pthread_barrier_t together;

struct work {
    update run;
    uint64_t base, thread, first, count, keys, index;
    int signals;
};

static __thread struct work *mine;
static __thread uint64_t nested;

/* splitmix64: the value of step i, the same in numpy */
static inline uint64_t mixed(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void once(struct work *work, uint64_t i)
{
    uint64_t value = mixed(i);
    work->run(work->base, work->thread, value >> (i % 64), work->keys ? value % work->keys : i);
}

/* a handler updates with the values of steps that nobody else has */
static void on_signal(int number)
{
    (void)number;
    for (int i = 0; i < 3; i++)
        once(mine, ((uint64_t)1 << 40) + (mine->index << 32) + nested++);
}

static void *thread_main(void *argument)
{
    struct work *work = argument;
    struct itimerspec every = {{0, 150000}, {0, 150000}};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
    sigset_t ours;
    timer_t timer;
    mine = work;
    if (work->signals) {
        event._sigev_un._tid = syscall(SYS_gettid);
        timer_create(CLOCK_MONOTONIC, &event, &timer);
        timer_settime(timer, 0, &every, 0);
    }
    pthread_barrier_wait(&together);
    for (uint64_t i = 0; i < work->count; i++)
        once(work, work->first + i);
    if (work->signals) {
        sigemptyset(&ours);
        sigaddset(&ours, SIGUSR2);
        pthread_sigmask(SIG_BLOCK, &ours, 0); /* what is pending dies with the thread */
        timer_delete(timer);
    }
    work->count = nested;
    return 0;
}

/* Each thread t of `threads` makes `count` updates, with steps t * count + i; returns nested updates per thread. */
void hammer(update run, uint64_t base, uint64_t threads, uint64_t count, uint64_t keys, int numbered, int signals,
            uint64_t *nested_updates)
{
    pthread_t handles[64];
    struct work works[64];
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigaction(SIGUSR2, &action, &before);
    pthread_barrier_init(&together, 0, threads);
    for (uint64_t t = 0; t < threads; t++) {
        works[t] = (struct work){run, base, numbered ? t + 1 : 0, t * count, count, keys, t, signals};
        pthread_create(&handles[t], 0, thread_main, &works[t]);
    }
    for (uint64_t t = 0; t < threads; t++) {
        pthread_join(handles[t], 0);
        nested_updates[t] = works[t].count;
    }
    sigaction(SIGUSR2, &before, 0);
    pthread_barrier_destroy(&together);
}

struct call {
    update run;
    uint64_t arguments[4];
};

static const struct call *others;
static uint64_t other_count, other_results[16], countdown;
static sigjmp_buf abandoned;
static int abandon;

static uint64_t do_call(const struct call *call)
{
    const uint64_t *a = call->arguments;
    return call->run(a[0], a[1], a[2], a[3]);
}

static void on_step(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    if (--countdown)
        return;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100;
    for (uint64_t i = 0; i < other_count; i++)
        other_results[i] = do_call(&others[i]);
    if (abandon)
        siglongjmp(abandoned, 1);
}

/*
 * Makes one call and, after `steps` instructions of it, `count` others, as a signal handler or another thread would.
 * `leave`: the first call is then never finished. Returns whether it was as long as that; results in `results`, the
 * first call's first.
 */
int interrupted(const struct call *call, uint64_t steps, const struct call *calls, uint64_t count, int leave,
                uint64_t *results)
{
    struct sigaction action = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO}, before;
    sigaction(SIGTRAP, &action, &before);
    others = calls;
    other_count = count;
    countdown = steps;
    abandon = leave;
    if (!sigsetjmp(abandoned, 1)) {
        __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
        uint64_t result = do_call(call);
        __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
        results[0] = result;
    }
    sigaction(SIGTRAP, &before, 0);
    for (uint64_t i = 0; i < count; i++)
        results[1 + i] = other_results[i];
    return (int64_t)countdown <= 0;
}

/* Nanoseconds of `count` updates with values that are computed beforehand. */
double timed(update run, uint64_t base, uint64_t thread, uint64_t count, const uint64_t *values, const uint64_t *keys,
             uint64_t mask)
{
    struct timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (uint64_t i = 0; i < count; i++)
        run(base, thread, values[i & mask], keys[i & mask]);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    return (b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec);
}
