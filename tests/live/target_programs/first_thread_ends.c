// The first thread ends when it is asked to; others run on and call a function, and end the program when asked again.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
volatile long calls;
static volatile int last;
__attribute__((noipa)) long work(long k) { return k + 1; }
static void *thread(void *unused) {
    for (long k = 0; !last; k++) {
        if (work(k) != k + 1) abort();
        if (k % 1000 == 0) usleep(1000);
    }
    write(1, "fine\n", 5);
    exit(0);
    return unused;
}
static void *listener(void *unused) {
    char byte;
    write(1, "alone\n", 6);
    read(0, &byte, 1);
    last = 1;
    return unused;
}
int main(void) {
    char byte;
    pthread_t a, b;
    pthread_create(&a, 0, thread, 0);
    write(1, "ready\n", 6);
    read(0, &byte, 1);
    pthread_create(&b, 0, listener, 0);
    pthread_exit(0);
}
