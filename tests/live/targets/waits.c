/* Functions that wait for the controller: in two threads, and while a timer's signals come ("timer"). */
#include "protocol.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
TALLY(asked);
TALLY(named);
TALLY(changed);
TALLY(alarms);
PROBED long asked(long n) {
    CALLED(asked);
    RETURNED(asked);
    return n * 2;
}
PROBED long named(const char *name) {
    CALLED(named);
    RETURNED(named);
    return name[0];
}
PROBED long inner(long n) { return asked(n); }
static void alarmed(int signal) {
    (void)signal;
    CALLED(alarms);
    asked(7);
}
static void *work(void *unused) {
    (void)unused;
    for (long n = 0; n < 20; n++) {
        errno = 77;
        long result = inner(n);
        if (result != n * 2) CALLED(changed);
        check(errno == 77, "errno");
        check(named("a name") == 'a', "named");
    }
    return 0;
}
static void one_round(void) {
    pthread_t other;
    check(!pthread_create(&other, 0, work, 0), "pthread_create");
    work(0);
    pthread_join(other, 0);
}
static void setup(int argc, char **argv) {
    USE_TALLY(asked);
    USE_TALLY(named);
    USE_TALLY(changed);
    USE_TALLY(alarms);
    if (argc > 1 && !strcmp(argv[1], "timer")) {
        struct sigaction action = {.sa_handler = alarmed, .sa_flags = SA_RESTART};
        struct itimerval interval = {{0, 5000}, {0, 5000}};
        sigaction(SIGALRM, &action, 0);
        setitimer(ITIMER_REAL, &interval, 0);
    }
}
