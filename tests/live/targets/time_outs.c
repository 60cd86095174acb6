/* Threads asleep in one system call each, with a time-out of so many milliseconds (argument 1); each says what came of it,
 * after how long, and what became of what it was given. "all asleep" is said when all are. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long ms;
static struct timespec given;
static struct timespec now(clockid_t clock) { struct timespec t; clock_gettime(clock, &t); return t; }
static struct timespec later(clockid_t clock) {
    struct timespec t = now(clock);
    t.tv_sec += given.tv_sec;
    t.tv_nsec += given.tv_nsec;
    if (t.tv_nsec >= 1000000000) { t.tv_sec++; t.tv_nsec -= 1000000000; }
    return t;
}
static int requeued_from, requeued_to, barrier_word, semaphores;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static struct timespec rest = {7, 7}, clock_rest = {7, 7};
static int socket_pair[2], epolled;
static mqd_t queue;

static long do_nanosleep(void) { return nanosleep(&given, &rest); }
static long do_clock_nanosleep(void) { errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &given, &clock_rest); return errno ? -1 : 0; }
static long do_clock_nanosleep_until(void) { struct timespec t = later(CLOCK_MONOTONIC); errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0); return errno ? -1 : 0; }
static long do_poll(void) { return poll(0, 0, ms); }
static long do_ppoll(void) { return ppoll(0, 0, &given, 0); }
static long do_select(void) { struct timeval t = {ms / 1000, ms % 1000 * 1000}; return select(0, 0, 0, 0, &t); }
static long do_pselect(void) { return pselect(0, 0, 0, 0, &given, 0); }
static long do_epoll_wait(void) { struct epoll_event e; return epoll_wait(epolled, &e, 1, ms); }
static long do_recv(void) { char b; return recv(socket_pair[0], &b, 1, 0); }
static long do_semtimedop(void) { struct sembuf o = {0, -1, 0}; return semtimedop(semaphores, &o, 1, &given); }
static long do_sigtimedwait(void) { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2); return sigtimedwait(&s, 0, &given); }
static long do_mq_timedreceive(void) { char b[64]; struct timespec t = later(CLOCK_REALTIME); return mq_timedreceive(queue, b, sizeof b, 0, &t); }
static long do_futex(void) { return syscall(SYS_futex, &barrier_word, FUTEX_WAIT, 0, &given, 0, 0); }
static long do_futex_until(void) { struct timespec t = later(CLOCK_MONOTONIC); return syscall(SYS_futex, &barrier_word, FUTEX_WAIT_BITSET, 0, &t, 0, -1); }
static long do_cond_timedwait(void) {
    struct timespec t = later(CLOCK_REALTIME);
    pthread_mutex_lock(&mutex);
    errno = pthread_cond_timedwait(&condition, &mutex, &t);
    pthread_mutex_unlock(&mutex);
    return errno ? -1 : 0;
}
static long do_requeued(void) { return syscall(SYS_futex, &requeued_from, FUTEX_WAIT, 0, 0, 0, 0); }

static const struct call { const char *name; long (*call)(void); } calls[] = {
#define CALL(name) {#name, do_##name}
    CALL(nanosleep), CALL(clock_nanosleep), CALL(clock_nanosleep_until), CALL(poll), CALL(ppoll), CALL(select),
    CALL(pselect), CALL(epoll_wait), CALL(recv), CALL(semtimedop), CALL(sigtimedwait), CALL(mq_timedreceive), CALL(futex),
    CALL(futex_until), CALL(cond_timedwait), CALL(requeued),
};
enum { CALLS = sizeof calls / sizeof *calls };
static pid_t tids[CALLS];

static void *sleeper(void *number) {
    const struct call *mine = &calls[(long)number];
    struct timespec begin = now(CLOCK_MONOTONIC), end;
    tids[(long)number] = gettid();
    long result = mine->call();
    int error = errno;
    end = now(CLOCK_MONOTONIC);
    long passed = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
    printf("%s %ld %s %ld\n", mine->name, result, result < 0 ? strerrorname_np(error) : "-", passed);
    return 0;
}

static int sleeps(pid_t tid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    if (!file) return 1;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    return strstr(text, ") S ") != 0;
}

__attribute__((noinline)) int work(int x) { __asm__ volatile("" : "+r"(x)); return x; }

int main(int argc, char **argv) {
    pthread_t threads[CALLS];
    sigset_t mask;
    char byte;
    ms = atol(argv[1]);
    given = (struct timespec){ms / 1000, ms % 1000 * 1000000};
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &mask, 0);
    epolled = epoll_create1(0);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    struct timeval limit = {ms / 1000, ms % 1000 * 1000};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, socket_pair)) return 2;
    setsockopt(socket_pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    char name[64];
    snprintf(name, sizeof name, "/time_outs.%d", getpid());
    struct mq_attr form = {.mq_maxmsg = 1, .mq_msgsize = 64};
    queue = mq_open(name, O_RDWR | O_CREAT, 0600, &form);
    if (queue < 0) return 3;
    mq_unlink(name);
    for (long i = 0; i < CALLS; i++) pthread_create(&threads[i], 0, sleeper, (void *)i);
    for (int i = 0; i < CALLS; i++) while (!tids[i] || !sleeps(tids[i])) usleep(1000);
    requeued_from = 1;
    if (syscall(SYS_futex, &requeued_from, FUTEX_CMP_REQUEUE, 0, 1L, &requeued_to, 1) != 1) return 4;
    puts("all asleep");
    fflush(stdout);
    if (read(0, &byte, 1) != 1) return 5;
    syscall(SYS_futex, &requeued_to, FUTEX_WAKE, 1, 0, 0, 0);
    for (int i = 0; i < CALLS; i++) pthread_join(threads[i], 0);
    semctl(semaphores, 0, IPC_RMID);
    printf("rest %s %s\n", rest.tv_sec == 7 ? "untouched" : "written", clock_rest.tv_sec == 7 ? "untouched" : "written");
    return work(0);
}
