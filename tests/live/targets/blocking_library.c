/* A library that may block signals. */
#include <signal.h>
void quietly(void (*call)(void)) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    call();
    pthread_sigmask(SIG_SETMASK, &before, 0);
}
