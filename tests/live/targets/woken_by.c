/* Threads that wake others, and what the sleeper's waits took by its own clock.

   woken_by FILE: one thread wakes another one TIMES times by a condition; then a child process writes TIMES bytes into a
   pipe that is read here; at last the pages of FILE are touched that are on the disk alone. Prints, as JSON, the ids of the
   waking thread and of the child, nanoseconds in both waits, and how many page faults read from the disk. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
enum { TIMES = 100, PAGE = 4096 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int goes, over;
static long long waited, read_ns;
static volatile char kept;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static void *sleeper(void *unused) {
    for (int n = 0; n < TIMES; n++) {
        long long before = now();
        pthread_mutex_lock(&lock);
        while (!goes) pthread_cond_wait(&condition, &lock);
        goes = 0;
        pthread_mutex_unlock(&lock);
        waited += now() - before;
        over++;
    }
    return unused;
}
static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_majflt;
}
int main(int count, char **words) {
    pthread_t thread;
    int ends[2], status;
    char byte;
    if (count < 2 || pipe(ends) || pthread_create(&thread, NULL, sleeper, NULL)) return 1;
    for (int n = 0; n < TIMES; n++) {
        usleep(3000);
        pthread_mutex_lock(&lock);
        goes = 1;
        pthread_cond_signal(&condition);
        pthread_mutex_unlock(&lock);
        while (*(volatile int *)&over == n) usleep(100);
    }
    pthread_join(thread, NULL);
    pid_t child = fork();
    if (!child) {
        for (int n = 0; n < TIMES; n++) {
            usleep(3000);
            if (write(ends[1], "x", 1) != 1) _exit(1);
        }
        _exit(0);
    }
    for (int n = 0; n < TIMES; n++) {
        long long before = now();
        if (read(ends[0], &byte, 1) != 1) return 1;
        read_ns += now() - before;
    }
    waitpid(child, &status, 0);
    struct stat is;
    int file = open(words[1], O_RDONLY);
    if (file < 0 || fstat(file, &is)) return 1;
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    char *pages = mmap(NULL, is.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (pages == MAP_FAILED) return 1;
    madvise(pages, is.st_size, MADV_RANDOM);
    long before = faults();
    for (long at = 0; at < is.st_size; at += PAGE) kept = pages[at];
    printf("{\"thread\": %d, \"child\": %d, \"waited\": %lld, \"read\": %lld, \"faults\": %ld}\n", getpid(), child, waited,
           read_ns, faults() - before);
    return status;
}
