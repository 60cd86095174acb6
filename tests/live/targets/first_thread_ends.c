/* The first thread ends, at once or when it is told to; others run on, and end the program when that is told to them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) long work(long x) {
    __asm__ volatile("" : "+r"(x));
    return x + 1;
}

static void *rest(void *first) {
    char byte;
    long sum = 0;
    if (first) pthread_join((pthread_t)first, 0);
    puts("alone");
    fflush(stdout);
    while (read(0, &byte, 1) == 1) {
        if (byte == 'l' && !dlopen("libm.so.6", RTLD_NOW)) abort();
        for (int i = 0; i < 10; i++) sum = work(sum);
        printf("%ld\n", sum);
        fflush(stdout);
    }
    exit(sum == 0 || sum % 10 != 0);
}

int main(int argc, char **argv) {
    pthread_t other;
    char byte;
    if (argc > 1) {
        puts("ready");
        fflush(stdout);
        if (read(0, &byte, 1) != 1) return 1;
    }
    pthread_create(&other, 0, rest, (void *)pthread_self());
    pthread_exit(0);
}
