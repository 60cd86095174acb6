/*
 * Makes one system call again and again: kernel_calls CALL BATCHES COUNT FILE, CALL being getppid, read, or large read.
 *
 * Into FILE it writes as JSON how long a call took in the quickest batch and in the middle one, in nanoseconds, how
 * many calls there were, and how long the machine had been busy and on when they began and when they were done, in
 * seconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { VALUES = 64, LARGE = 4096 };

static long now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

/* /proc/uptime: since the boot, and how long of that the one processor was idle. */
static double busy(void)
{
    double up = 0, idle = 0;
    FILE *file = fopen("/proc/uptime", "r");

    if (!file || fscanf(file, "%lf %lf", &up, &idle) != 2)
        exit(1);
    fclose(file);
    return up - idle;
}

static int by_size(const void *left, const void *right)
{
    long difference = *(const long *)left - *(const long *)right;

    return (difference > 0) - (difference < 0);
}

int main(int argc, char **argv)
{
    static char room[VALUES + LARGE];
    double began = busy();
    long first = now(), last;

    if (argc != 5)
        return 2;
    int large = !strcmp(argv[1], "large read"), reads = large || !strcmp(argv[1], "read");
    int null = open("/dev/null", O_RDONLY), more = large ? LARGE : 0;
    long batches = atol(argv[2]), count = atol(argv[3]), *took = calloc(batches, sizeof *took);
    for (long batch = 0; batch < batches; batch++) {
        long start = now();
        if (reads)
            for (long n = 0; n < count; n++)
                syscall(SYS_read, null, room, more + n % VALUES);
        else
            for (long n = 0; n < count; n++)
                syscall(SYS_getppid, n % VALUES);
        took[batch] = now() - start;
    }
    last = now();
    double done = busy();
    qsort(took, batches, sizeof *took, by_size);
    FILE *file = fopen(argv[4], "w");
    if (!file)
        return 1;
    fprintf(file, "{\"least\": %.2f, \"middle\": %.2f, \"calls\": %ld, ", (double)took[0] / count,
            (double)took[batches / 2] / count, batches * count);
    fprintf(file, "\"busy\": [%.2f, %.2f], \"on\": [%.9f, %.9f]}\n", began, done, first / 1e9, last / 1e9);
    return fclose(file) != 0;
}
