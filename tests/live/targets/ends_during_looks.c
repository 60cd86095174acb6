/* Sets signal handlers, works for so many microseconds, sets another one and ends through many exit handlers. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile int steps;

static void on_signal(int number, siginfo_t *info, void *context) { (void)number; (void)info; (void)context; }

__attribute__((noinline)) static void bye(void) {
    for (int i = 0; i < 20000; i++) steps++;
}

static long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int main(int argc, char **argv) {
    long end = now_us() + (argc > 1 ? atol(argv[1]) : 0);
    for (int i = 0; i < 20; i++) atexit(bye);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGUSR1, &action, 0);
    do raise(SIGUSR1);
    while (now_us() < end);
    sigaction(SIGBUS, &action, 0);
    return 7;
}
