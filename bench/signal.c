/* What a trap costs without anything done about it: rounds of int3, whose handler returns at once. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void trapped(int number, siginfo_t *info, void *context) { (void)number; (void)info; (void)context; }

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 100000;
    struct sigaction action = {0};
    action.sa_sigaction = trapped;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &action, 0);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long n = 0; n < rounds; n++) __asm__ volatile("int3");
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.1f\n", ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / (double)rounds);
    return 0;
}
