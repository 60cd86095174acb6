/* Two thousand threads, all there at once, that each call work() so many times as the argument says, then wait.
 *
 * They begin when a line comes on standard input, and then the calls of all are printed; a second line ends the program. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 2000 };
static pthread_barrier_t begin, end;
static int calls;

__attribute__((noinline)) void work(void) { __asm__ volatile("" ::: "memory"); }

static void *thread(void *unused) {
    pthread_barrier_wait(&begin);
    for (int i = 0; i < calls; i++) work();
    pthread_barrier_wait(&end);
    return unused;
}

int main(int argc, char **argv) {
    pthread_t one;
    pthread_attr_t small;
    char line[16];
    calls = argc > 1 ? atoi(argv[1]) : 10;
    pthread_barrier_init(&begin, 0, THREADS + 1);
    pthread_barrier_init(&end, 0, THREADS + 1);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&one, &small, thread, 0)) {
            printf("unsupported: only %d threads\n", i);
            fflush(stdout);
            _exit(0);
        }
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) _exit(1);
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&end);
    printf("%d\n", THREADS * calls);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) _exit(1);
    _exit(0);
}
