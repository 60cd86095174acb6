/* full_tables COROUTINES DEPTH [linked]: coroutines that wait in calls, in numbers, until they end themselves (linked: by
 * way of setcontext); and recursion that longjmp leaves. Its record: "calls NAME N"; "calls NAME_self N" in ticks: what
 * passes while a call is the last one that has begun and not ended on the stack that the thread is on; "calls NAME_all N":
 * while there is any call of the function. */
#include "protocol.h"
#include <setjmp.h>
#include <ucontext.h>
#include <x86intrin.h>
#define FUNCTIONS(DO) DO(round_of) DO(starts) DO(resumes) DO(body) DO(leaf) DO(deep) DO(after)
#define TALLIES(name) TALLY(name); TALLY(name##_self); TALLY(name##_all);
#define USE_TALLIES(name) USE_TALLY(name); USE_TALLY(name##_self); USE_TALLY(name##_all);
#define NUMBER(name) name##_number,
FUNCTIONS(TALLIES)
enum { FUNCTIONS(NUMBER) COUNT };
enum { MOST = 2000, STACK = 16384 };
struct call {
    struct tally *own;
    struct call *caller;
};
static struct call *last; /* of the stack that the thread is on */
static unsigned long long since[COUNT], then;
static int inside[COUNT];
static unsigned long long passes(void) {
    unsigned long long now = __rdtsc();
    if (last) last->own->calls += (long)(now - then);
    return then = now;
}
static void begins(struct call *call, struct tally *own, int number) {
    unsigned long long now = passes();
    *call = (struct call){own, last};
    last = call;
    if (!inside[number]++) since[number] = now;
}
static void ends(struct call *call, struct tally *all, int number) {
    unsigned long long now = passes();
    if (!--inside[number]) all->calls += (long)(now - since[number]);
    last = call->caller;
}
static void comes(struct call *waiting) { passes(); last = waiting; } /* to another stack, and the call that waits there */
#define BEGIN(name) struct call call; CALLED(name); begins(&call, &name##_self_tally, name##_number)
#define END_OF(name) ends(&call, &name##_all_tally, name##_number); RETURNED(name)
static ucontext_t starter, contexts[MOST];
static char *stacks;
static int coroutines, depth, current, linked;
static jmp_buf back;
static volatile int spin;
/* Long beside what a probe takes to find a stack among hundreds: a part of that is between the two records' looks. */
static void burn(int n) { for (int i = 0; i < 4 * n; i++) spin++; }
static void waits(void) { int own = current; struct call *call = last; swapcontext(&contexts[own], &starter); comes(call); }
static void goes_on(int which) { struct call *call = last; current = which; swapcontext(&starter, &contexts[which]); comes(call); }
PROBED void leaf(int n) { BEGIN(leaf); burn(n); END_OF(leaf); }
PROBED void body(void) { comes(0); BEGIN(body); burn(1500); leaf(4500); waits(); leaf(3000); waits(); burn(2500); END_OF(body); }
static void runs(void) { body(); for (;;) waits(); }
PROBED void starts(int which) { BEGIN(starts); burn(2000); goes_on(which); burn(1000); END_OF(starts); }
PROBED void resumes(int which) { BEGIN(resumes); burn(500); goes_on(which); burn(2500); leaf(1500); END_OF(resumes); }
PROBED int deep(int n) {
    CALLED(deep);
    if (!n) longjmp(back, 1);
    int r = deep(n - 1) + 1;
    __asm__ volatile("" : "+r"(r));
    RETURNED(deep);
    return r;
}
static __attribute__((noinline)) void falls(void) {
    volatile char room[512]; /* so that nothing that is called later has the stack pointer of a call that was left */
    room[0] = 1;
    if (!setjmp(back)) deep(depth);
}
PROBED void after(int n) { BEGIN(after); leaf(n); burn(n); END_OF(after); }
PROBED void round_of(void) {
    BEGIN(round_of);
    for (int c = 0; c < coroutines; c++) {
        getcontext(&contexts[c]);
        contexts[c].uc_stack.ss_sp = stacks + (long)c * STACK;
        contexts[c].uc_stack.ss_size = STACK;
        contexts[c].uc_link = linked ? &starter : 0; /* glibc goes there by setcontext, once its function has returned */
        makecontext(&contexts[c], linked ? body : runs, 0);
        starts(c);
    }
    for (int c = coroutines; c--;) resumes(c);
    for (int c = 0; c < coroutines; c++) resumes(c);
    END_OF(round_of);
}
static void one_round(void) {
    if (coroutines) round_of();
    if (depth) falls();
    for (int i = 0; i < 20; i++) after(2500);
}
static void setup(int argc, char **argv) {
    check(argc >= 3, "arguments");
    linked = argc > 3;
    coroutines = atoi(argv[1]);
    depth = atoi(argv[2]);
    check(coroutines <= MOST && (stacks = malloc((size_t)STACK * MOST)) != 0, "room");
    FUNCTIONS(USE_TALLIES)
}
