/* A thread's alternate signal stack lies in the frame of its first function, above where its stack pointer ever is. */
#include "protocol.h"
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
TALLY(handled);
static sem_t asked, answered;
PROBED void handled(void) { CALLED(handled); RETURNED(handled); }
static void on_signal(int signal) { (void)signal; handled(); }
static void *worker(void *nothing) {
    char within[65536];
    stack_t alternate = {.ss_sp = within, .ss_size = sizeof within};
    sigaltstack(&alternate, 0);
    for (;;) {
        sem_post(&answered);
        while (sem_wait(&asked)) ;
        raise(SIGUSR1);
    }
    return nothing;
}
static void one_round(void) { sem_post(&asked); while (sem_wait(&answered)) ; }
static void setup(int argc, char **argv) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    pthread_t thread;
    (void)argc; (void)argv;
    USE_TALLY(handled);
    sigaction(SIGUSR1, &action, 0);
    check(!pthread_create(&thread, 0, worker, 0), "pthread_create");
    while (sem_wait(&answered)) ;
}
