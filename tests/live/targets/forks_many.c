/* forks_many N: child i of N calls work() i + 1 times; every second one has a child of its own, which calls it once.
 *
 * Each prints "PID CALLS" when its calls are done. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) void work(void) { __asm__ volatile("" ::: "memory"); }

static void *call(void *times) {
    for (long n = 0; n < (long)times; n++) work();
    return 0;
}

static void tell(int calls) {
    char text[64];
    ssize_t size = snprintf(text, sizeof text, "%d %d\n", getpid(), calls);
    if (write(1, text, size) != size) _exit(9);
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 4;
    work();
    for (long n = 0; n < count; n++) {
        if (fork()) continue;
        pthread_t other;
        work();
        pthread_create(&other, 0, call, (void *)n);
        pthread_join(other, 0);
        tell(n + 1);
        if (n % 2 && !fork()) work(), tell(1), _exit(0);
        while (wait(0) > 0) {}
        _exit(0);
    }
    while (wait(0) > 0) {}
    tell(1);
    return 0;
}
