/* Stores of all forms into a buffer, each of which the program writes down: where, how many bytes, what was there, what
 * is there then. "go N" makes N rounds; a line of the log for each store follows. */
#include "protocol.h"
#include <signal.h>
#include <stdint.h>
#include <sys/time.h>

#define MOST 4096
static unsigned char buffer[256] __attribute__((aligned(64)));
static volatile long counter;
static struct entry { int offset, size; uint64_t old, new_; int known; } entries[MOST];
static int count;
TALLY(round_of_stores);

static void noted(void *place, int size, int known) {
    struct entry *e = &entries[count++];
    e->offset = (int)((unsigned char *)place - buffer), e->size = size, e->known = known, e->old = e->new_ = 0;
    if (size <= 8) memcpy(&e->old, place, (size_t)size);
}
static void done(void *place, int size) { if (size <= 8) memcpy(&entries[count - 1].new_, place, (size_t)size); }

#define STORE(place, size, known, instruction, ...) do { \
    noted(place, size, known); \
    __asm__ volatile(instruction : : "b"(place), __VA_ARGS__ : "memory", "cc", "rax", "rcx", "rdi", "xmm1"); \
    done(place, size); } while (0)

PROBED void round_of_stores(long n) {
    CALLED(round_of_stores);
    unsigned char *p = buffer + 16 + (n % 32);
    long value = n * 0x1234567 + 99;
    STORE(p, 1, 1, "movb %b1, (%0)", "d"(value));
    STORE(p + 1, 2, 1, "movw %w1, (%0)", "d"(value));
    STORE(p + 3, 4, 1, "movl %k1, (%0)", "d"(value));
    STORE(p + 7, 8, 1, "movq %1, (%0)", "d"(value));
    STORE(p + 7, 8, 1, "movq $-5, (%0)", "d"(value));
    STORE(p + 2, 4, 1, "addl %k1, (%0)", "d"(value));
    STORE(p + 2, 8, 1, "subq %1, (%0)", "d"(value));
    STORE(p, 1, 1, "orb $0x81, (%0)", "d"(value));
    STORE(p, 1, 1, "incb (%0)", "d"(value));
    STORE(p, 4, 1, "negl (%0)", "d"(value));
    STORE(p, 2, 1, "notw (%0)", "d"(value));
    STORE(p + 8, 8, 1, "movq %1, %%rax; xchgq %%rax, (%0)", "d"(value));
    STORE(p + 8, 4, 1, "movl %k1, %%eax; lock xaddl %%eax, (%0)", "d"(value));
    STORE(p + 8, 8, 1, "movq (%0), %%rax; lock cmpxchgq %1, (%0)", "d"(value));
    STORE(p + 8, 8, 1, "xorl %%eax, %%eax; lock cmpxchgq %1, (%0)", "d"(value));
    STORE(p + 32, 16, 0, "movdqu %%xmm1, (%0)", "d"(value));
    STORE(p + 40, 1, 1, "movq %0, %%rdi; movb $7, %%al; stosb", "d"(value));
    STORE(p + 41, 24, 0, "movq %0, %%rdi; movl $24, %%ecx; rep stosb", "d"(value));
    { /* no store at all */
        void *inside = p + 60;
        long none = 0;
        __asm__ volatile("rep stosb" : "+D"(inside), "+c"(none) : "a"(0) : "memory");
    }
    noted(p + 3, 1, 1);
    __asm__ volatile("movb %b2, 3(%0,%1,1)" : : "r"(p - n), "r"(n), "q"(value) : "memory");
    done(p + 3, 1);
    counter = n;
    RETURNED(round_of_stores);
}

static volatile int ticks, signals;
static void tick(int number) { ticks += number > 0; }

void setup(int argc, char **argv) {
    USE_TALLY(round_of_stores);
    if (argc > 1 && argv[1][0] == 's') {
        struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
        struct itimerval every = {{0, 700}, {0, 700}};
        sigaction(SIGPROF, &action, 0);
        signals = 1;
        setitimer(ITIMER_PROF, &every, 0);
    }
}

/* Stores and nothing else, one of 16,381 to the buffer, while signals come. */
static void many_rounds(void) {
    static volatile unsigned char beside[4095];
    for (int pass = 0; pass < 3000; pass++) {
        buffer[0] = (unsigned char)pass;
        for (int i = 0; i < 4 * 4095; i++) beside[i >> 2] = (unsigned char)i;
        __asm__ volatile("" ::: "memory");
    }
    say("ticks %d\n", ticks);
}

void one_round(void) {
    static long n;
    if (signals) { many_rounds(); return; }
    count = 0;
    round_of_stores(n++);
    for (int i = 0; i < count; i++)
        say("store %d %d %lu %lu %d\n", entries[i].offset, entries[i].size, entries[i].old, entries[i].new_, entries[i].known);
}
