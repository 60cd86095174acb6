/* Functions of many blocks: loops, tables, chains of conditions, calls in the middle. Every round is like every other;
 * each thread and, if asked for, a forked child does the same work and compares its result with that of the first. */
#include <pthread.h>
#include <sys/wait.h>
#include "protocol.h"

static int threads = 1, forks = 0;
static unsigned long expected;
TALLY(sort);

PROBED unsigned mix(unsigned value) {
    for (int bit = 0; bit < 5; bit++)
        value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
    return value;
}

PROBED long decide(unsigned value, long *cells) {
    switch (value % 9) {
    case 0: return cells[0]++;
    case 1: cells[1] += value; break;
    case 2: return value > 1000 ? cells[2] : -cells[2];
    case 3: cells[3] ^= mix(value); break;
    case 4: for (unsigned i = 0; i < value % 4; i++) cells[i] += i; return 4;
    case 5: return value & 16 ? mix(value) : mix(~value);
    case 6: if (value > 7 && value % 3 == 0 && cells[5] < 1000000) cells[5]++; break;
    default: cells[7] += value % 9 == 7;
    }
    return cells[value % 8];
}

PROBED void sort(long *cells, int size) {
    CALLED(sort);
    for (int i = 1; i < size; i++)
        for (int j = i; j && cells[j - 1] > cells[j]; j--) {
            long held = cells[j];
            cells[j] = cells[j - 1];
            cells[j - 1] = held;
        }
    RETURNED(sort);
}

PROBED int length(const char *text) {
    const char *at = text;
    while (*at && *at != '/')
        at++;
    return (int)(at - text);
}

PROBED unsigned long work(void) {
    long cells[8] = {5, 3, 9, 1, 7, 2, 8, 4};
    unsigned value = 12345;
    unsigned long sum = 0;
    for (int turn = 0; turn < 500; turn++) {
        value = mix(value * 2654435761u + (unsigned)turn);
        sum += (unsigned long)decide(value, cells) + (unsigned long)length("a/b" + turn % 3);
        if (turn % 50 == 0)
            sort(cells, 8);
    }
    return sum;
}

static void *worker(void *unused) {
    (void)unused;
    if (work() != expected)
        check(0, "another result in a thread");
    return NULL;
}

static void one_round(void) {
    pthread_t others[16];
    for (int i = 1; i < threads; i++)
        pthread_create(&others[i], NULL, worker, NULL);
    worker(NULL);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    if (forks) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(work() == expected ? 0 : 1);
        if (waitpid(child, &status, 0) != child || status != 0)
            check(0, "another result in a child");
    }
}

static void setup(int argc, char **argv) {
    USE_TALLY(sort);
    threads = argc > 1 ? atoi(argv[1]) : 1;
    forks = argc > 2;
    expected = work();
}
