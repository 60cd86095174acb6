/* full_tables COROUTINES DEPTH [linked]: coroutines that wait in calls while those that have started them end, in
 * numbers, and end themselves (linked: by way of setcontext); and recursion that longjmp leaves. Its record: "calls NAME
 * N"; "calls NAME_self N" in ticks: what passes while a call is the last one that has begun and not ended; "calls
 * NAME_all N": while there is any call of the function. */
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
    unsigned long long began, within, known; /* how much of its time its caller knows of */
    struct call *caller, *before, *next;
};
static struct call *last;
static int inside[COUNT];
static unsigned long long since[COUNT];
static void begins(struct call *call, int number) {
    *call = (struct call){__rdtsc(), 0, 0, last, last, 0};
    if (last) last->next = call;
    last = call;
    if (!inside[number]++) since[number] = call->began;
}
static void ends(struct call *call, struct tally *own, struct tally *all, int number) {
    unsigned long long now = __rdtsc(), took = now - call->began;
    for (struct call *other = last; other != call; other = other->before)
        if (other->caller == call) {
            call->within += now - other->began - other->known;
            other->known = now - other->began;
            other->caller = call->caller;
        }
    own->calls += (long)(took - call->within);
    if (!--inside[number]) all->calls += (long)(now - since[number]);
    if (call->caller) call->caller->within += took - call->known;
    if (call->next) call->next->before = call->before;
    if (call->before) call->before->next = call->next;
    if (last == call) last = call->before;
}
#define BEGIN(name) struct call call; CALLED(name); begins(&call, name##_number)
#define END_OF(name) ends(&call, &name##_self_tally, &name##_all_tally, name##_number); RETURNED(name)
static ucontext_t starter, contexts[MOST];
static char *stacks;
static int coroutines, depth, current, linked;
static jmp_buf back;
static volatile int spin;
static void burn(int n) { for (int i = 0; i < n; i++) spin++; }
static void waits(void) { int own = current; swapcontext(&contexts[own], &starter); }
static void goes_on(int which) { current = which; swapcontext(&starter, &contexts[which]); }
PROBED void leaf(int n) { BEGIN(leaf); burn(n); END_OF(leaf); }
PROBED void body(void) { BEGIN(body); burn(1500); leaf(4500); waits(); leaf(3000); waits(); burn(2500); END_OF(body); }
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
