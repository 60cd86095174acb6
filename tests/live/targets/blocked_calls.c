/* Threads asleep in system calls that a visible stop would end with EINTR. Each sleeps with a time-out of 20 ms again and
 * again (argument 1: milliseconds) and must never see EINTR. */
#include "asleep.h"
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
TALLY(waited);
static int ms = 20;
static volatile long sleeps[16], tids[16];
static struct timespec span(void) { struct timespec t = {ms / 1000, (ms % 1000) * 1000000L}; return t; }
static void outcome(const char *call, long result, long expect, int error) {
    int e = errno;
    if (result != expect || (result < 0 && e != error)) { say("BAD %s gave %ld, %s\n", call, result, result < 0 ? strerror(e) : "-"); _exit(1); }
}
static void *epoll(void *a) { int fd = epoll_create1(0); struct epoll_event e; for (;; sleeps[(long)a]++) outcome("epoll_wait", epoll_wait(fd, &e, 1, ms), 0, 0); }
static void *sem(void *a) { int id = semget(IPC_PRIVATE, 1, 0600); struct sembuf o = {0, -1, 0}; check(id >= 0, "semget"); for (;; sleeps[(long)a]++) {
    struct timespec t = span(); long r = semtimedop(id, &o, 1, &t); outcome("semtimedop", r, -1, EAGAIN); } }
static void *sigwaiter(void *a) { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2); pthread_sigmask(SIG_BLOCK, &s, 0); for (;; sleeps[(long)a]++) {
    struct timespec t = span(); outcome("sigtimedwait", sigtimedwait(&s, 0, &t), -1, EAGAIN); } }
static void *receiver(void *a) { int p[2]; char b; struct timeval t = {ms / 1000, (ms % 1000) * 1000}; check(!socketpair(AF_UNIX, SOCK_STREAM, 0, p), "socketpair");
    setsockopt(p[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t); for (;; sleeps[(long)a]++) outcome("recv", recv(p[0], &b, 1, 0), -1, EAGAIN); }
static void *acceptor(void *a) { int l = socket(AF_UNIX, SOCK_STREAM, 0); struct sockaddr_un u = {AF_UNIX, ""}; struct timeval t = {ms / 1000, (ms % 1000) * 1000};
    bind(l, (struct sockaddr *)&u, sizeof(sa_family_t)); listen(l, 1); setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    for (;; sleeps[(long)a]++) outcome("accept", accept(l, 0, 0), -1, EAGAIN); }
static void *sleeper(void *a) { for (;; sleeps[(long)a]++) { struct timespec t = span(); outcome("nanosleep", nanosleep(&t, 0), 0, 0); } }
static void *poller(void *a) { for (;; sleeps[(long)a]++) outcome("poll", poll(0, 0, ms), 0, 0); }
static void *selector(void *a) { for (;; sleeps[(long)a]++) { struct timeval t = {ms / 1000, (ms % 1000) * 1000}; outcome("select", select(0, 0, 0, 0, &t), 0, 0); } }
static void *futexer(void *a) { int f = 0; for (;; sleeps[(long)a]++) { struct timespec t = span(); outcome("futex", syscall(SYS_futex, &f, FUTEX_WAIT, 0, &t, 0, 0), -1, ETIMEDOUT); } }
/* Without any time-out: must still be asleep when the program ends. */
static volatile int woken;
static void *receive_forever(void *a) { int id = msgget(IPC_PRIVATE, 0600); struct { long t; char b[4]; } m; tids[(long)a] = syscall(SYS_gettid); sleeps[(long)a]++; msgrcv(id, &m, 4, 0, 0); woken = 1; return a; }
static void *epoll_forever(void *a) { int fd = epoll_create1(0); struct epoll_event e; tids[(long)a] = syscall(SYS_gettid); sleeps[(long)a]++; epoll_wait(fd, &e, 1, -1); woken = 1; return a; }
static void *pause_forever(void *a) { tids[(long)a] = syscall(SYS_gettid); sleeps[(long)a]++; pause(); woken = 1; return a; }
static void *(*const bodies[])(void *) = {epoll, sem, sigwaiter, receiver, acceptor, sleeper, poller, selector, futexer, receive_forever, epoll_forever, pause_forever};
enum { BODIES = sizeof bodies / sizeof *bodies, REPEATING = 9 };
PROBED int waited(int x) { volatile int y = x; return y - 1; }
static void one_round(void) {
    long before[BODIES];
    memcpy(before, (void *)sleeps, sizeof before);
    COUNTED(waited, check(waited(8) == 7, "waited"));
    for (int i = 0; i < REPEATING; i++)
        while (sleeps[i] == before[i]) usleep(1000);
    check(!woken, "a call that waits for ever came back");
}
static void setup(int argc, char **argv) {
    pthread_t t;
    if (argc > 1) ms = atoi(argv[1]);
    for (long i = 0; i < BODIES; i++) check(!pthread_create(&t, 0, bodies[i], (void *)i), "pthread_create");
    USE_TALLY(waited);
    for (int i = REPEATING; i < BODIES; i++) {
        while (!sleeps[i]) usleep(1000);
        wait_asleep(tids[i], (int[]){SYS_msgrcv, SYS_epoll_wait, SYS_pause}[i - REPEATING]);
    }
}
