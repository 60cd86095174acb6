/* Coroutines whose functions note the time that each has spent by the program's own clock.

   fibers PLACE WAY ROUNDS [forever]: stacks of 16 KiB side by side in PLACE; they are changed by WAY. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

enum { COUNT = 8, SIZE = 16384 };
enum { LEAF, YIELDS, BODY, RESUMES, RUN, FUNCTIONS };
static const char *const names[] = {"leaf", "yields", "body", "resumes", "run"};
static long long spent[FUNCTIONS];
static long calls[FUNCTIONS];
static const char *way;
static int current, rounds, forever;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static inline __attribute__((always_inline)) void spend(int who, int us) {
    long long begin = now(), at;
    do at = now(); while (at - begin < us * 1000ll);
    spent[who] += at - begin;
}
static int is(const char *name) { return !strcmp(way, name); }

/* -DUNTYPED: what changes stacks is a label only, as assembly often has it; -DEXPORTED: one that other files see */
#ifdef EXPORTED
#define TYPE(name) ".globl " name "\n"
#elif defined UNTYPED
#define TYPE(name) ""
#else
#define TYPE(name) ".type " name ",@function\n"
#endif
#if defined UNTYPED || defined EXPORTED
#define SIZE_OF(name) ""
#else
#define SIZE_OF(name) ".size " name ",.-" name
#endif

/* glibc's way */
static ucontext_t home, contexts[COUNT];

/* as libraries do: registers on the stack, the stack pointer is kept; comes back by ret */
void change(void **from, void *to);
__asm__(TYPE("change")
        "change: push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rsp, (%rdi); mov %rsi, %rsp\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret\n"
        SIZE_OF("change"));
/* the other's stack pointer is handed over, the return address taken from the stack and jumped to */
void *hand_over(void *to);
__asm__(TYPE("hand_over")
        "hand_over: lea -0x30(%rsp), %rsp\n"
        "mov %r12, (%rsp); mov %r13, 8(%rsp); mov %r14, 0x10(%rsp); mov %r15, 0x18(%rsp); mov %rbx, 0x20(%rsp); mov %rbp, 0x28(%rsp)\n"
        "mov %rsp, %rax; mov %rdi, %rsp; mov 0x30(%rsp), %r8\n"
        "mov (%rsp), %r12; mov 8(%rsp), %r13; mov 0x10(%rsp), %r14; mov 0x18(%rsp), %r15; mov 0x20(%rsp), %rbx; mov 0x28(%rsp), %rbp\n"
        "lea 0x38(%rsp), %rsp; mov %rax, %rdi; jmp *%r8\n"
        SIZE_OF("hand_over"));
/* where to go on is kept as well, within the function */
typedef struct { void *pc, *sp, *rbp, *rbx, *r12, *r13, *r14, *r15; } kept_t;
void go_on(kept_t *from, kept_t *to);
__asm__(TYPE("go_on")
        "go_on: lea 1f(%rip), %rax; mov %rax, (%rdi); mov %rsp, 8(%rdi); mov %rbp, 16(%rdi); mov %rbx, 24(%rdi)\n"
        "mov %r12, 32(%rdi); mov %r13, 40(%rdi); mov %r14, 48(%rdi); mov %r15, 56(%rdi)\n"
        "mov 56(%rsi), %r15; mov 48(%rsi), %r14; mov 40(%rsi), %r13; mov 32(%rsi), %r12; mov 24(%rsi), %rbx\n"
        "mov 16(%rsi), %rbp; mov 8(%rsi), %rsp; jmp *(%rsi)\n"
        "1: ret\n"
        SIZE_OF("go_on"));
static void *inside[COUNT], *outside;
static kept_t kept[COUNT], kept_home;

__attribute__((noinline)) void leaf(void) { calls[LEAF]++; spend(LEAF, 40); __asm__ volatile(""); }
__attribute__((noinline)) void yields(void) {
    calls[YIELDS]++;
    int me = current;
    volatile int back = 0;
    spend(YIELDS, 30);
    if (is("swap")) swapcontext(&contexts[me], &home);
    else if (is("ring")) {
        current = (me + 1) % COUNT;
        swapcontext(&contexts[me], &contexts[current]);
    } else if (is("set")) {
        getcontext(&contexts[me]);
        if (!back) { back = 1; setcontext(&home); }
    } else if (is("change")) change(&inside[me], outside);
    else if (is("hand over")) outside = hand_over(outside);
    else go_on(&kept[me], &kept_home);
    spend(YIELDS, 20);
}
__attribute__((noinline)) void body(void *from) {
    calls[BODY]++;
    if (is("hand over")) outside = from;
    for (int n = 0; n < rounds || forever; n++) {
        spend(BODY, 100);
        leaf();
        yields();
        leaf();
    }
}
__attribute__((noinline)) void resumes(int n) {
    calls[RESUMES]++;
    volatile int back = 0;
    spend(RESUMES, 50);
    current = n;
    if (is("set")) {
        getcontext(&home);
        if (!back) { back = 1; setcontext(&contexts[n]); }
    } else if (is("swap") || is("ring")) swapcontext(&home, &contexts[n]);
    else if (is("change")) change(&outside, inside[n]);
    else if (is("hand over")) inside[n] = hand_over(inside[n]);
    else go_on(&kept_home, &kept[n]);
    spend(RESUMES, 10);
}
static void prepare(int n, char *stack) {
    void **top = (void **)(((unsigned long)(stack + SIZE) & ~15ul) - 8);
    if (is("swap") || is("ring") || is("set")) {
        getcontext(&contexts[n]);
        contexts[n].uc_stack.ss_sp = stack;
        contexts[n].uc_stack.ss_size = SIZE;
        contexts[n].uc_link = &home;
        makecontext(&contexts[n], (void (*)(void))body, 0);
        return;
    }
    *top = NULL;
    kept[n] = (kept_t){(void *)body, top, NULL, NULL, NULL, NULL, NULL, NULL};
    *--top = (void *)body;
    inside[n] = memset(top - 6, 0, 48);
}
__attribute__((noinline)) void run(char *stacks) {
    calls[RUN]++;
    for (int n = 0; n < COUNT; n++) prepare(n, stacks + n * SIZE);
    if (is("ring")) resumes(0);
    else
        for (int n = 0; n < rounds; n++)
            for (int each = 0; each < COUNT; each++) {
                spend(RUN, 5);
                resumes(each);
                leaf();
            }
}
static __thread char local[COUNT * SIZE] __attribute__((aligned(64)));
static void *thread(void *stacks) {
    run(stacks ? stacks : local);
    return NULL;
}
int main(int argc, char **argv) {
    const char *place = argv[1];
    way = argv[2];
    rounds = atoi(argv[3]);
    forever = argc > 4;
    if (!strcmp(place, "heap")) run(malloc(COUNT * SIZE));
    else if (!strcmp(place, "mapped"))
        run(mmap(NULL, COUNT * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    else if (!strcmp(place, "main's")) run(alloca(COUNT * SIZE));
    else if (!strcmp(place, "local")) run(local);
    else {
        pthread_t it;
        if (pthread_create(&it, NULL, thread, strcmp(place, "thread") ? NULL : malloc(COUNT * SIZE))) return 1;
        pthread_join(it, NULL);
    }
    for (int n = 0; n < FUNCTIONS; n++) printf("%s %lld %ld\n", names[n], spent[n], calls[n]);
    return 0;
}
