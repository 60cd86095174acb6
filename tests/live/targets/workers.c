/* Workers that are forked at once, and call tail() when they are told to: by a pointer, in two threads each.
 *
 * "pids PID…" is printed first. Each number N on a line of standard input has each thread of each worker, and the parent
 * if that line ends in "+", call N times; then "done" is printed. "own ADDRESS SIZE PROT" has each worker map memory of
 * its own there, which is private if PROT is 0, and has to be zeros at the end; else it is a file called anyprobe. The
 * end of input ends all of them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, optimize("O2")))
enum { MOST = 64 };

KEPT int end_of_tail(int n) {
    __asm__ volatile("" ::: "memory");
    if (n < 0) usleep(1000);
    return n + 1;
}

KEPT int tail(int n) {
    __asm__ volatile("" ::: "memory");
    return end_of_tail(n);
}

static int (*volatile by_pointer)(int) = tail;

__attribute__((noinline)) int calls_tail(int n) { return by_pointer(n) + 1; }
__attribute__((noinline)) int calls_it_elsewhere(int n) { return by_pointer(n) + 2; }

static void *call(void *times) {
    for (long i = 0; i < (long)times; i++)
        if (calls_tail(i) != i + 2 || (i % 2 && calls_it_elsewhere(i) != i + 3)) abort();
    calls_tail(-1);
    return 0;
}

static void both(long times) {
    pthread_t other;
    if (pthread_create(&other, 0, call, (void *)times)) abort();
    call((void *)times);
    pthread_join(other, 0);
}

struct told {
    long times;
    unsigned long address, size;
    int prot;
};
static struct told kept;

static void own(struct told told) {
    int prot = told.prot ? told.prot : PROT_READ | PROT_WRITE, flags = MAP_FIXED_NOREPLACE, fd = -1;
    if (told.prot) {
        fd = memfd_create("anyprobe", 0);
        if (fd < 0 || ftruncate(fd, told.size + 4096)) abort();
        flags |= prot & PROT_WRITE ? MAP_SHARED : prot & PROT_EXEC ? MAP_SHARED : MAP_PRIVATE;
    } else {
        flags |= MAP_PRIVATE | MAP_ANONYMOUS;
        kept = told;
    }
    void *at = mmap((void *)told.address, told.size, prot, flags, fd, told.prot & PROT_WRITE ? 4096 : 0);
    if (at != (void *)told.address) abort();
}

static int is_changed(void) {
    for (unsigned long i = 0; i < kept.size; i++)
        if (((volatile char *)kept.address)[i]) return 1;
    return 0;
}

int main(int argc, char **argv) {
    int workers = argc > 1 ? atoi(argv[1]) : 3, tell[MOST][2], answer[2], status, bad = 0;
    char line[64];
    struct told told;
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    if (!fgets(line, sizeof line, stdin) || pipe(answer)) return 1;
    printf("pids");
    fflush(stdout);
    for (int i = 0; i < workers; i++) {
        if (pipe(tell[i])) return 2;
        int pid = fork();
        if (!pid) {
            for (int k = 0; k <= i; k++) close(tell[k][1]);
            while (read(tell[i][0], &told, sizeof told) == sizeof told) {
                if (told.size)
                    own(told);
                else
                    both(told.times);
                if (write(answer[1], "", 1) != 1) abort();
            }
            _exit(is_changed());
        }
        printf(" %d", pid);
    }
    puts("");
    while (fgets(line, sizeof line, stdin)) {
        memset(&told, 0, sizeof told);
        if (sscanf(line, "own %lu %lu %d", &told.address, &told.size, &told.prot) != 3) told.times = atol(line);
        if (strchr(line, '+')) call((void *)told.times);
        for (int i = 0; i < workers; i++)
            if (write(tell[i][1], &told, sizeof told) != sizeof told) return 3;
        for (int i = 0; i < workers; i++)
            if (read(answer[0], line, 1) != 1) return 4;
        puts("done");
    }
    for (int i = 0; i < workers; i++) close(tell[i][1]);
    while (wait(&status) > 0) bad += status != 0;
    return bad;
}
