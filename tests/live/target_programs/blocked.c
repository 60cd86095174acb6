// Blocks again and again in one system call with a short timeout; any result but the timeout's is a failure.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static struct timespec nap = {0, 30000000};
static int epoll, semaphore, queue, pair[2], listener;
static void say(int signal) { write(1, "done\n", 5); semctl(semaphore, 0, IPC_RMID); msgctl(queue, IPC_RMID, 0); _exit(0); }

static int block(const char *what) {
    char byte[8];
    struct timeval tv = {0, 30000};
    if (!strcmp(what, "epoll_wait")) { struct epoll_event e; return epoll_wait(epoll, &e, 1, 30) == 0; }
    if (!strcmp(what, "semtimedop")) { struct sembuf o = {0, -1, 0}; return semtimedop(semaphore, &o, 1, &nap) < 0 && errno == EAGAIN; }
    if (!strcmp(what, "sigtimedwait")) { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR1); return sigtimedwait(&s, 0, &nap) < 0 && errno == EAGAIN; }
    if (!strcmp(what, "recv")) return recv(pair[0], byte, 4, 0) < 0 && errno == EAGAIN;
    if (!strcmp(what, "accept")) return accept(listener, 0, 0) < 0 && errno == EAGAIN;
    if (!strcmp(what, "poll")) return poll(0, 0, 30) == 0;
    if (!strcmp(what, "ppoll")) { sigset_t s; sigfillset(&s); sigdelset(&s, SIGTERM); return ppoll(0, 0, &nap, &s) == 0; }
    if (!strcmp(what, "nanosleep")) return nanosleep(&nap, 0) == 0;
    if (!strcmp(what, "select")) return select(0, 0, 0, 0, &tv) == 0;
    if (!strcmp(what, "futex")) { int f = 0; return syscall(SYS_futex, &f, FUTEX_WAIT, 0, &nap, 0, 0) < 0 && errno == ETIMEDOUT; }
    if (!strcmp(what, "msgrcv")) { struct { long t; char b[4]; } m; return msgrcv(queue, &m, 4, 0, 0) < 0 && errno == 0; }
    if (!strcmp(what, "pause")) { pause(); return 0; }
    return 0;
}
int main(int argc, char **argv) {
    struct timeval tv = {0, 30000};
    epoll = epoll_create1(0);
    semaphore = semget(IPC_PRIVATE, 1, 0600);
    queue = msgget(IPC_PRIVATE, 0600);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    struct sockaddr_un a = {AF_UNIX};
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    bind(listener, (void *)&a, sizeof(sa_family_t));
    listen(listener, 1);
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGUSR1);
    sigprocmask(SIG_BLOCK, &s, 0);
    signal(SIGTERM, say);
    write(1, "ready\n", 6);
    for (;;) {
        errno = 0;
        if (!block(argv[1])) { dprintf(1, "FAILED: %s: %s\n", argv[1], strerror(errno)); semctl(semaphore, 0, IPC_RMID); msgctl(queue, IPC_RMID, 0); return 1; }
    }
}
