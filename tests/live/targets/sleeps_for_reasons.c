/* A thread that sleeps for one reason after the other, each some times, and measures its own time off processors for each.
   It prints "ready", waits for a line, works, prints what it has measured as JSON, and ends when its input does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMES = 20, NAP_US = 5000 };
static long clock_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static long off(void) { return clock_of(CLOCK_MONOTONIC) - clock_of(CLOCK_THREAD_CPUTIME_ID); }
static struct timespec later(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += NAP_US * 1000L;
    t.tv_sec += t.tv_nsec / 1000000000L, t.tv_nsec %= 1000000000L;
    return t;
}
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, taken = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t written = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static int pipe_ends[2], sockets[2];
static void naps(void) { usleep(NAP_US); }
static void awaits_condition(void) {
    struct timespec t = later();
    pthread_mutex_lock(&mutex);
    pthread_cond_timedwait(&condition, &mutex, &t);
    pthread_mutex_unlock(&mutex);
}
static void awaits_semaphore(void) { struct timespec t = later(); sem_timedwait(&semaphore, &t); }
static void awaits_mutex(void) { struct timespec t = later(); pthread_mutex_timedlock(&taken, &t); }
static void awaits_rwlock(void) { struct timespec t = later(); pthread_rwlock_timedrdlock(&written, &t); }
static void polls(void) { struct pollfd p = {pipe_ends[0], POLLIN, 0}; poll(&p, 1, NAP_US / 1000); }
static void *writes(void *descriptor) {
    usleep(NAP_US);
    if (write(*(int *)descriptor, "x", 1) != 1) abort();
    return 0;
}
static void *short_lived(void *unused) { usleep(NAP_US); return unused; }
static pthread_t other;
static void begins_writer(int *descriptor) { if (pthread_create(&other, 0, writes, descriptor)) abort(); }
static void reads(void) { char c; if (read(pipe_ends[0], &c, 1) != 1) abort(); }
static void receives(void) { char c; if (recv(sockets[0], &c, 1, 0) != 1) abort(); }
static void joins(void) { pthread_join(other, 0); }
static pid_t child;
static void waits_for_child(void) { waitpid(child, 0, 0); }
static void does_not_wait(void) {
    int zero = open("/dev/zero", O_RDONLY);
    char bytes[64];
    for (int i = 0; i < 2000; i++) if (read(zero, bytes, sizeof bytes) != sizeof bytes) abort();
    close(zero);
}
static void awaits_signal(void) {
    sigset_t none;
    struct timespec t = {0, NAP_US * 1000L};
    sigemptyset(&none);
    sigaddset(&none, SIGUSR1);
    sigtimedwait(&none, 0, &t);
}

static int printed;
static void measure(const char *name, void (*wait)(void), void (*before)(int)) {
    long sum = 0;
    for (int i = 0; i < TIMES; i++) {
        if (before) before(0);
        long a = off();
        wait();
        sum += off() - a;
        if (before && wait != joins && wait != waits_for_child) pthread_join(other, 0);
    }
    printf("%s\"%s\": %ld", printed++ ? ", " : "{", name, sum);
}
static void before_read(int unused) { (void)unused; begins_writer(&pipe_ends[1]); }
static void before_receive(int unused) { (void)unused; begins_writer(&sockets[1]); }
static void before_join(int unused) { (void)unused; if (pthread_create(&other, 0, short_lived, 0)) abort(); }
static void before_child(int unused) {
    (void)unused;
    if (!(child = fork())) {
        struct timespec t = {0, NAP_US * 1000L};
        nanosleep(&t, 0);
        _exit(0);
    }
}
static void *keeps(void *unused) {
    pthread_mutex_lock(&taken);
    pthread_rwlock_wrlock(&written);
    return unused;
}
int main(void) {
    char line[8];
    if (pipe(pipe_ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) abort();
    sem_init(&semaphore, 0, 0);
    if (pthread_create(&other, 0, keeps, 0)) abort();
    pthread_join(other, 0);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &one, 0);
    puts("ready");
    fflush(stdout);
    if (!fgets(line, 8, stdin)) return 1;
    measure("naps", naps, 0);
    measure("awaits_condition", awaits_condition, 0);
    measure("awaits_semaphore", awaits_semaphore, 0);
    measure("awaits_mutex", awaits_mutex, 0);
    measure("awaits_rwlock", awaits_rwlock, 0);
    measure("polls", polls, 0);
    measure("awaits_signal", awaits_signal, 0);
    measure("reads", reads, before_read);
    measure("receives", receives, before_receive);
    measure("joins", joins, before_join);
    measure("waits_for_child", waits_for_child, before_child);
    measure("does_not_wait", does_not_wait, 0);
    puts("}");
    fflush(stdout);
    while (fgets(line, 8, stdin)) ;
}
