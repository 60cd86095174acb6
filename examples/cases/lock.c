/* A cache of documents that threads ask for. What is not there is loaded, which takes a millisecond, as storage does:
   while the cache is locked, or, with -DOUTSIDE, after it was unlocked, so that others find what is there meanwhile. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define KEPT __attribute__((noinline))
#define DOCUMENTS 40000
#define SLOTS 2000
enum state { EMPTY, LOADING, THERE };
static struct slot { int document; enum state state; long content; pthread_cond_t loaded; } slots[SLOTS];
static pthread_mutex_t cache = PTHREAD_MUTEX_INITIALIZER;
static long rounds;

KEPT static long load(int document) {
    struct timespec storage = {0, 1000000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &storage, 0);
    return document * 3L;
}

KEPT static long get(int document) {
    struct slot *slot = &slots[document % SLOTS];
    pthread_mutex_lock(&cache);
    while (slot->state == LOADING) pthread_cond_wait(&slot->loaded, &cache);
    if (slot->state == EMPTY || slot->document != document) {
#ifdef OUTSIDE
        slot->state = LOADING;
        pthread_mutex_unlock(&cache);
        long content = load(document);
        pthread_mutex_lock(&cache);
        slot->content = content;
        pthread_cond_broadcast(&slot->loaded);
#else
        slot->content = load(document);
#endif
        slot->document = document;
        slot->state = THERE;
    }
    long content = slot->content;
    pthread_mutex_unlock(&cache);
    return content;
}

static void *reader(void *seed) {
    unsigned state = (unsigned)(long)seed * 7919;
    long wrong = 0;
    for (long i = 0; i < rounds; i++) {
        state = state * 1103515245u + 12345u;
        unsigned chosen = state >> 8;
        int document = chosen % 20 ? chosen % 500 : chosen % DOCUMENTS; /* one in twenty is of those asked for rarely */
        wrong += get(document) != document * 3L;
    }
    return (void *)wrong;
}

int main(int argc, char **words) {
    int threads = argc > 1 ? atoi(words[1]) : 8;
    rounds = (argc > 2 ? atol(words[2]) : 40000) / threads;
    pthread_t all[64];
    struct timespec begin, end;
    for (int i = 0; i < SLOTS; i++) pthread_cond_init(&slots[i].loaded, 0);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < threads; i++) pthread_create(&all[i], 0, reader, (void *)(i + 1));
    long wrong = 0;
    for (int i = 0; i < threads; i++) {
        void *found;
        pthread_join(all[i], &found);
        wrong += (long)found;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (end.tv_sec - begin.tv_sec) + (end.tv_nsec - begin.tv_nsec) * 1e-9;
    printf("%d threads: %ld requests in %.2f s, %.0f a second\n", threads, rounds * threads, seconds,
           rounds * threads / seconds);
    return wrong != 0;
}
