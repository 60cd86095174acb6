/* Locks of the program's own, of two kinds that a number in them tells, by threads that want them at once.

   Waits for a line, then prints as JSON for each number: how often its locks were taken, and after how many waits, and the
   nanoseconds of these waits and of holding. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define CALL __attribute__((noinline, noclone, noipa))
enum { THREADS = 4, TIMES = 150, KINDS = 3 };
typedef struct { unsigned char unused[6]; unsigned short number; atomic_int word; long long since; } own_lock;
const char *const own_names[] = {"nothing", "journal", "pages"};
static own_lock locks[] = {{.number = 1}, {.number = 2}, {.number = 2}};
static __thread int sleeps;
static atomic_llong taken[KINDS], waits[KINDS], waited[KINDS], held[KINDS];

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
CALL void own_sleep(atomic_int *word, int value) {
    long result;
    __asm__ volatile("xor %%r10d, %%r10d\n\tsyscall"
                     : "=a"(result) : "a"(SYS_futex), "D"(word), "S"(FUTEX_WAIT_PRIVATE), "d"(value) : "rcx", "r10", "r11", "memory");
}
CALL void own_take(own_lock *lock) {
    int free = 0;
    if (atomic_compare_exchange_strong(&lock->word, &free, 1)) return;
    for (; atomic_exchange(&lock->word, 2); sleeps++) own_sleep(&lock->word, 2);
}
CALL _Bool own_try(own_lock *lock) {
    int free = 0;
    return atomic_compare_exchange_strong(&lock->word, &free, 1);
}
CALL void own_release(own_lock *lock) {
    if (atomic_exchange(&lock->word, 0) == 2) syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1);
}
CALL void work(int microseconds) { usleep(microseconds); }
static void *runs(void *unused) {
    for (int n = 0; n < TIMES; n++) {
        own_lock *lock = &locks[n % KINDS];
        int number = lock->number, slept = sleeps;
        long long before = now();
        if (n % 5 == 4) {
            if (!own_try(lock)) continue;
        } else own_take(lock);
        long long since = now();
        taken[number]++;
        if (sleeps > slept) waits[number]++, waited[number] += since - before;
        work(number == 1 ? 900 : 200);
        held[number] += now() - since;
        own_release(lock);
    }
    return unused;
}
int main(void) {
    pthread_t threads[THREADS];
    char line[8];
    if (!fgets(line, 8, stdin)) return 1;
    for (int n = 0; n < THREADS; n++) pthread_create(&threads[n], NULL, runs, NULL);
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    printf("{");
    for (int n = 1; n < KINDS; n++)
        printf("%s\"%s\": {\"taken\": %lld, \"waits\": %lld, \"waited\": %lld, \"held\": %lld}", n > 1 ? ", " : "", own_names[n],
               taken[n], waits[n], waited[n], held[n]);
    puts("}");
    return 0;
}
