/* A program that is interrupted again and again, by signals whose handler does nothing. */
#ifndef INTERRUPTED_H
#define INTERRUPTED_H
#include <signal.h>
#include <sys/time.h>
static void on_tick(int signal, siginfo_t *info, void *context) { (void)signal; (void)info; (void)context; }
static void be_interrupted_every(long microseconds) {
    struct sigaction action = {0};
    struct itimerval often = {{0, microseconds}, {0, microseconds}};
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &often, 0);
}
#endif
