/* Locks of each kind, of which the program itself measures how long it waits for them and holds them.
   usage: waits_for_locks contended THREADS ROUNDS HOLD_NS OUTSIDE_NS | kinds
   It prints "ready", waits for a line, works, prints what it has measured as JSON, and ends when its input does. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static void spin(long ns) { for (long begin = now(); now() - begin < ns;) ; }
static struct timespec later(long ns) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += ns % 1000000000L;
    t.tv_sec += ns / 1000000000L + t.tv_nsec / 1000000000L;
    t.tv_nsec %= 1000000000L;
    return t;
}

/* How long a thread was ready and had no processor, by the kernel: what may lie between two clocks that are read at once. */
struct queue { long delay, preempted; };
static struct queue queued(void) {
    struct rusage usage;
    struct queue queue = {0, 0};
    FILE *f = fopen("/proc/thread-self/schedstat", "r");
    if (fscanf(f, "%*d %ld", &queue.delay) != 1) abort();
    fclose(f);
    getrusage(RUSAGE_THREAD, &usage);
    queue.preempted = usage.ru_nivcsw;
    return queue;
}
static long lost(struct queue before) {
    struct queue after = queued();
    return after.preempted == before.preempted ? 0 : after.delay - before.delay;
}

struct truth { long taken, waits, wait, holds, hold, lost; };
static int printed;
static void tell(const char *name, struct truth t) {
    printf("%s\"%s\": {\"taken\": %ld, \"waits\": %ld, \"wait\": %ld, \"holds\": %ld, \"hold\": %ld, \"lost\": %ld}",
           printed++ ? ", " : "{", name, t.taken, t.waits, t.wait, t.holds, t.hold, t.lost);
}

/* -- many threads and one lock */

pthread_mutex_t hot = PTHREAD_MUTEX_INITIALIZER, cold = PTHREAD_MUTEX_INITIALIZER, guard = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long rounds, hold_ns, outside_ns;
struct sums { struct truth hot; struct truth changed; };
__attribute__((noinline)) void critical(struct truth *t) {
    struct queue before = queued();
    long a = now();
    pthread_mutex_lock(&hot);
    long b = now();
    spin(hold_ns);
    long c = now();
    pthread_mutex_unlock(&hot);
    t->wait += b - a, t->hold += c - b, t->taken++, t->holds++, t->lost += lost(before);
}
static void *work(void *place) {
    struct sums *sums = place;
    for (long i = 0; i < rounds; i++) {
        critical(&sums->hot);
        pthread_mutex_lock(&cold);
        pthread_mutex_unlock(&cold);
        spin(outside_ns);
        if (i % 100 == 0) {
            pthread_mutex_lock(&guard);
            pthread_cond_broadcast(&changed);
            struct timespec until = later(10000000); /* beside which the handlers' own time, in ours alone, is small */
            struct queue before = queued();
            long a = now();
            pthread_cond_timedwait(&changed, &guard, &until);
            sums->changed.wait += now() - a, sums->changed.taken++;
            sums->changed.lost += lost(before);
            pthread_mutex_unlock(&guard);
        }
    }
    return 0;
}
static void contended(int threads) {
    pthread_t started[64];
    static struct sums sums[64];
    struct sums all = {{0}, {0}};
    for (int i = 0; i < threads; i++) pthread_create(&started[i], 0, work, &sums[i]);
    for (int i = 0; i < threads; i++) {
        pthread_join(started[i], 0);
        all.hot.taken += sums[i].hot.taken, all.hot.holds += sums[i].hot.holds;
        all.hot.wait += sums[i].hot.wait, all.hot.hold += sums[i].hot.hold, all.hot.lost += sums[i].hot.lost;
        all.changed.wait += sums[i].changed.wait, all.changed.taken += sums[i].changed.taken;
        all.changed.lost += sums[i].changed.lost;
    }
    tell("hot", all.hot);
    tell("changed", all.changed);
    tell("cold", (struct truth){all.hot.taken, 0, 0, all.hot.taken, 0, 0});
}

/* -- one thread holds, another one waits */

enum { NAP = 100000000, TIMES = 3 };
pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER, limited = PTHREAD_MUTEX_INITIALIZER, recursive, checked, robust, inherits;
pthread_mutex_t tried = PTHREAD_MUTEX_INITIALIZER, orphan;
pthread_rwlock_t shared = PTHREAD_RWLOCK_INITIALIZER, written = PTHREAD_RWLOCK_INITIALIZER;
sem_t counted;
pthread_barrier_t meeting;
int word;

static int lock(void *m) { return pthread_mutex_lock(m); }
static int unlock(void *m) { return pthread_mutex_unlock(m); }
static int lock_limited(void *m) { struct timespec t = later(10 * 1000000000L); return pthread_mutex_timedlock(m, &t); }
static int lock_shared(void *l) { return pthread_rwlock_rdlock(l); }
static int lock_written(void *l) { return pthread_rwlock_wrlock(l); }
static int unlock_either(void *l) { return pthread_rwlock_unlock(l); }
static int await(void *s) { return sem_wait(s); }
static int post(void *s) { return sem_post(s); }
static int meet(void *b) { int r = pthread_barrier_wait(b); return r == PTHREAD_BARRIER_SERIAL_THREAD ? 0 : r; }
static int sleep_on(void *w) { while (!__atomic_load_n((int *)w, __ATOMIC_ACQUIRE)) syscall(SYS_futex, w, FUTEX_WAIT_PRIVATE, 0, 0); return 0; }
static int nothing(void *unused) { (void)unused; return 0; }

struct one { int (*take)(void *), (*give)(void *); void *lock; struct truth truth; int tid; };
static void *waiter(void *place) {
    struct one *one = place;
    __atomic_store_n(&one->tid, (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
    struct queue before = queued();
    long a = now();
    if (one->take(one->lock)) abort();
    long b = now();
    usleep(1000);
    long c = now();
    one->give(one->lock);
    one->truth.wait += b - a, one->truth.hold += c - b;
    one->truth.taken++, one->truth.holds++, one->truth.waits++;
    one->truth.lost += lost(before);
    return 0;
}
static void until_asleep(struct one *one) {
    char path[64], state = 'R';
    while (!__atomic_load_n(&one->tid, __ATOMIC_ACQUIRE)) usleep(100);
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", one->tid);
    while (state != 'S') {
        usleep(100);
        FILE *f = fopen(path, "r");
        if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) abort();
        fclose(f);
    }
}
/* The main thread takes the lock by `mine`, and gives it back when the other one has slept for a while. */
static struct truth blocked(int (*mine)(void *), int (*take)(void *), int (*give)(void *), int (*leave)(void *), void *it) {
    struct one one = {take, leave, it, {0}, 0};
    for (int i = 0; i < TIMES; i++) {
        pthread_t thread;
        one.tid = 0;
        struct queue before = queued();
        if (mine(it)) abort();
        long a = now();
        if (pthread_create(&thread, 0, waiter, &one)) abort();
        until_asleep(&one);
        usleep(NAP / 1000);
        long b = now();
        give(it);
        if (give == meet) one.truth.wait += now() - b;
        pthread_join(thread, 0);
        one.truth.lost += lost(before);
        one.truth.hold += b - a, one.truth.taken += mine != nothing, one.truth.holds += mine != nothing;
    }
    return one.truth;
}
static void make(pthread_mutex_t *m, int type, int is_robust, int protocol) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, type);
    pthread_mutexattr_setrobust(&a, is_robust ? PTHREAD_MUTEX_ROBUST : PTHREAD_MUTEX_STALLED);
    pthread_mutexattr_setprotocol(&a, protocol);
    if (pthread_mutex_init(m, &a)) abort();
}
static struct truth nested(void) {
    struct truth t = {0};
    for (int i = 0; i < TIMES; i++) {
        struct queue before = queued();
        pthread_mutex_lock(&recursive);
        long a = now();
        usleep(2000);
        pthread_mutex_lock(&recursive);
        pthread_mutex_trylock(&recursive);
        usleep(2000);
        pthread_mutex_unlock(&recursive);
        pthread_mutex_unlock(&recursive);
        usleep(2000);
        t.hold += now() - a;
        pthread_mutex_unlock(&recursive);
        t.taken += 3, t.holds++, t.lost += lost(before);
    }
    return t;
}
static void *fails(void *unused) { (void)unused; return (void *)(long)pthread_mutex_trylock(&tried); }
static void *dies(void *unused) { pthread_mutex_lock(&orphan); return unused; }
static void kinds(void) {
    make(&recursive, PTHREAD_MUTEX_RECURSIVE, 0, PTHREAD_PRIO_NONE);
    make(&checked, PTHREAD_MUTEX_ERRORCHECK, 0, PTHREAD_PRIO_NONE);
    make(&robust, PTHREAD_MUTEX_NORMAL, 1, PTHREAD_PRIO_NONE);
    make(&orphan, PTHREAD_MUTEX_NORMAL, 1, PTHREAD_PRIO_NONE);
    make(&inherits, PTHREAD_MUTEX_NORMAL, 0, PTHREAD_PRIO_INHERIT);
    sem_init(&counted, 0, 0);
    tell("plain", blocked(lock, lock, unlock, unlock, &plain));
    tell("checked", blocked(lock, lock, unlock, unlock, &checked));
    tell("robust", blocked(lock, lock, unlock, unlock, &robust));
    tell("inherits", blocked(lock, lock, unlock, unlock, &inherits));
    tell("limited", blocked(lock, lock_limited, unlock, unlock, &limited));
    tell("written", blocked(lock_written, lock_written, unlock_either, unlock_either, &written));
    tell("shared", blocked(lock_written, lock_shared, unlock_either, unlock_either, &shared));
    tell("recursive", nested());
    pthread_t thread;
    void *result;
    struct queue before = queued();
    pthread_mutex_lock(&tried);
    long a = now();
    pthread_create(&thread, 0, fails, 0);
    pthread_join(thread, &result);
    if ((long)result != EBUSY) abort();
    usleep(5000);
    long held = now() - a;
    pthread_mutex_unlock(&tried);
    tell("tried", (struct truth){1, 0, 0, 1, held, lost(before)});
    pthread_create(&thread, 0, dies, 0);
    pthread_join(thread, 0);
    usleep(20000);
    before = queued();
    if (pthread_mutex_lock(&orphan) != EOWNERDEAD) abort();
    pthread_mutex_consistent(&orphan);
    a = now();
    usleep(5000);
    held = now() - a;
    pthread_mutex_unlock(&orphan);
    tell("orphan", (struct truth){2, 0, 0, 1, held, lost(before)});
    tell("counted", blocked(nothing, await, post, nothing, &counted));
    pthread_barrier_init(&meeting, 0, 2);
    struct truth met = blocked(nothing, meet, meet, nothing, &meeting);
    met.taken *= 2, met.waits *= 2; /* the main thread's, too, which hardly waits */
    tell("meeting", met);
    pthread_t sleeper;
    struct one one = {sleep_on, nothing, &word, {0}, 0};
    pthread_create(&sleeper, 0, waiter, &one);
    until_asleep(&one);
    usleep(NAP / 1000);
    __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1);
    pthread_join(sleeper, 0);
    tell("word", one.truth);
}

int main(int count, char **words) {
    char line[16];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 0;
    if (count > 5) {
        rounds = atol(words[3]), hold_ns = atol(words[4]), outside_ns = atol(words[5]);
        contended(atoi(words[2]));
    } else {
        kinds();
    }
    puts("}");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) ;
}
