// Creates and joins threads all the time; every thread counts in one word while it lives.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
volatile unsigned long progress;
static void *work(void *unused) {
    for (int i = 0; i < 20000; i++) progress++;
    return 0;
}
int main(void) {
    dprintf(1, "%p\n", (void *)&progress);
    for (;;) {
        pthread_t threads[8];
        for (int i = 0; i < 8; i++)
            if (pthread_create(&threads[i], 0, work, 0)) return 1;
        for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    }
}
