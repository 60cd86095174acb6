/* Rounds in several threads at once: each runs `caller`, which makes `rounds_of_each` of them and is given its number. */
#include <pthread.h>
#include <stdlib.h>
static long threads = 1, rounds_of_each;

static void in_threads(void *(*caller)(void *), long n) {
    pthread_t thread[64];
    rounds_of_each = n;
    for (long i = 1; i < threads; i++) check(!pthread_create(&thread[i], 0, caller, (void *)i), "pthread_create");
    caller(0);
    for (long i = 1; i < threads; i++) pthread_join(thread[i], 0);
}
static void set_threads(int argc, char **argv) {
    if (argc > 1) threads = atoi(argv[1]);
}
