/* Makes one system call again and again and prints how long one took, in nanoseconds: kernel_calls COUNT. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct timespec begin, end;
    long count = argc > 1 ? atol(argv[1]) : 1000;

    for (long n = 0; n < 100; n++)
        syscall(SYS_getppid, n & 7);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long n = 0; n < count; n++)
        syscall(SYS_getppid, n & 7);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.2f\n", ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / count);
    return 0;
}
