/* A fork child leaves calls behind, by longjmp or by a dlsym that fails inside of the C library; argv[1]: which.
   Prints in nanoseconds how long the child was in loop, which calls all others, and for how long of that on processors. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 50 };
static jmp_buf place;
static sigjmp_buf signal_place;
static int by_library;

static long by(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static long now(void) { return by(CLOCK_MONOTONIC); }
static void spend(long ns) {
    for (long end = now() + ns; now() < end;)
        ;
}
__attribute__((noipa)) void inner(const char *way) {
    spend(100000);
    if (!strcmp(way, "longjmp")) longjmp(place, 1);
    if (!strcmp(way, "siglongjmp")) siglongjmp(signal_place, 1);
    by_library += dlsym(RTLD_DEFAULT, "no such name") == 0;
}
__attribute__((noipa)) void outer(const char *way) {
    spend(100000);
    inner(way);
    spend(0);
}
__attribute__((noipa)) void loop(const char *way) {
    for (volatile int round = 0; round < ROUNDS; round++) {
        if (!strcmp(way, "siglongjmp")) {
            if (!sigsetjmp(signal_place, 1)) outer(way);
        } else if (!setjmp(place))
            outer(way);
        spend(100000);
    }
}
__attribute__((noipa)) long called(long x) { return x; }

int main(int argc, char **argv) {
    called(argc);
    if (!fork()) {
        long begun = now(), ran = by(CLOCK_THREAD_CPUTIME_ID);
        loop(argv[1]);
        ran = by(CLOCK_THREAD_CPUTIME_ID) - ran;
        printf("%ld %ld\n", now() - begun, ran);
        fflush(stdout);
        _exit(0);
    }
    wait(0);
    return 0;
}
