/* Functions one of whose exits cannot be spliced: a far return, which is never taken, shows the program where it ran.
 * What they do meanwhile is what makes replaced return addresses dangerous. */
#include "protocol.h"
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>
#define CLOSED(name, more) \
    asm(FUNCTION(name) "nopl 0(%rax,%rax,1)\npush %rbx\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset rbx,0\nmov %rdi,%rbx\ncall " #name "_body\nmov %rbx,%r8\npop %rbx\n.cfi_adjust_cfa_offset -8\n.cfi_restore rbx\n" \
        "test %rsp,%rsp\njz 3f\nlea 1f(%rip),%rdx\nlea 2f(%rip),%rcx\ntest $1,%r8b\ncmovnz %rcx,%rdx\njmp *%rdx\n" \
        "1: ret\n2: mov $-1,%esi\n" more "\n3: lretq\n" END(name) ".p2align 6\n"); \
    TALLY(name); long name(long); long name##_body(long)
CLOSED(simple, "ret"); CLOSED(deep, "ret"); CLOSED(leaping, "ret"); CLOSED(tailing, "mov %r8,%rdi\njmp simple");
CLOSED(signalled, "ret"); CLOSED(forking, "ret"); CLOSED(switching, "ret"); CLOSED(parked, "ret"); CLOSED(threaded, "ret");
#define RETURNS(name, number) __atomic_fetch_add(&name##_tally.returns, number, __ATOMIC_RELAXED)
#define CALL(name, x) ({ CALLED(name); long result = name(x); RETURNS(name, 1); result; })

long simple_body(long x) { return x + 1; }
long deep_body(long x) { return x ? CALL(deep, x - 1) + 1 : 0; }
static jmp_buf back;
long leaping_body(long x) { if (x % 3) longjmp(back, 1); return CALL(simple, x); }
long tailing_body(long x) { return x + 7; }
static volatile sig_atomic_t handled;
static void handler(int number) { (void)number; handled = CALL(signalled, -2) == -1; }
long signalled_body(long x) { if (x > 0) { handled = 0; raise(SIGUSR1); check(handled, "the handler's call"); } return x + 1; }
static int child;
long forking_body(long x) {
    child = fork();
    if (child == 0) check(CALL(simple, x) == x + 1, "a call in the child");
    return x + 3;
}

/* A coroutine that is entered on one thread and goes on on another. */
static ucontext_t first_side, other_side, coroutine;
static char stack[1 << 16];
static ucontext_t *volatile side;
static long switched;
long switching_body(long x) {
    swapcontext(&coroutine, side);
    return CALL(deep, x) + 5;
}
static void *elsewhere(void *unused) {
    (void)unused;
    side = &other_side;
    swapcontext(&other_side, &coroutine);
    return 0;
}
static void in_coroutine(void) { switched = CALL(switching, 4); setcontext(side); }

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_t sleeper;
long parked_body(long x) { pthread_mutex_lock(&gate); pthread_mutex_unlock(&gate); return CALL(simple, x); }
static void *park(void *x) { check(CALL(parked, (long)x) == (long)x + 1, "parked"); return 0; }

/* The unwinder sees no further than a replaced return address. It must not stumble, nor forget who is to clean up. */
CLOSED(exiting, "ret");
static int cleaned;
static void clean(void *more) { __atomic_fetch_add(&cleaned, (int)(long)more, __ATOMIC_RELAXED); }
long exiting_body(long x) {
    void *frames[32];
    check(backtrace(frames, 32) > 0, "backtrace");
    if (x > 1) { long below; pthread_cleanup_push(clean, (void *)1); below = CALL(exiting, x - 1); pthread_cleanup_pop(0); return below + 1; }
    if (x) pthread_exit(0);
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    for (;;) pause();
}
static void *exits(void *x) {
    pthread_cleanup_push(clean, (void *)10);
    CALL(exiting, (long)x);
    pthread_cleanup_pop(0);
    return 0;
}
static void exit_round(void) {
    pthread_t exited, cancelled;
    cleaned = 0;
    pthread_create(&exited, 0, exits, (void *)3);
    pthread_create(&cancelled, 0, exits, (void *)0);
    pthread_cancel(cancelled);
    pthread_join(exited, 0);
    pthread_join(cancelled, 0);
    check(cleaned == 12 || cleaned == 22, "the cleaning after pthread_exit and pthread_cancel");
}
long threaded_body(long x) { return x ^ 5; }
static void *in_thread(void *start) {
    for (long x = (long)start; x < (long)start + 500; x++) check(CALL(threaded, x) == (x ^ 5), "threaded");
    return 0;
}

/* A thread and a fork child that stay inside from one round to the next. */
static int pipe_to_child[2];
CLOSED(staying, "ret");
long staying_body(long x) {
    char byte;
    if (pipe(pipe_to_child)) check(0, "pipe");
    child = fork();
    if (child == 0) check(read(pipe_to_child[0], &byte, 1) == 1, "the pipe");
    else pthread_mutex_lock(&gate), pthread_mutex_unlock(&gate);
    return CALL(simple, x) + 1;
}
static void *stay(void *x) {
    pid_t parent = getpid();
    check(CALL(staying, (long)x) == (long)x + 2, "staying");
    if (getpid() != parent) _exit(CALL(simple, 1) == 2 ? 0 : 1);
    return 0;
}
static long next;
static void staying_round(long x) {
    if (x % 2) {
        pthread_mutex_lock(&gate);
        child = 0;
        pthread_create(&sleeper, 0, stay, (void *)x);
        while (!*(volatile int *)&child) usleep(100);
        usleep(2000);
        return;
    }
    int status;
    check(write(pipe_to_child[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && status == 0, "the child");
    pthread_mutex_unlock(&gate);
    pthread_join(sleeper, 0);
    close(pipe_to_child[0]); close(pipe_to_child[1]);
}
static int stays;
static void fork_round(long x) {
    pid_t parent = getpid();
    long result = CALL(forking, x);
    check(result == x + 3, "forking");
    if (getpid() != parent) {
        check(CALL(simple, 2) == 3 && CALL(deep, 3) == 3, "calls of the child");
        _exit(0);
    }
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the child");
    CALLED(simple); RETURNS(simple, 1); CALLED(simple); RETURNS(simple, 1); RETURNS(forking, 1);
    __atomic_fetch_add(&deep_tally.calls, 4, __ATOMIC_RELAXED); RETURNS(deep, 4);
}
static void one_round(void) {
    long x = ++next;
    pthread_t threads[3];
    if (stays) { staying_round(x); return; }
    pthread_mutex_lock(&gate);
    pthread_create(&sleeper, 0, park, (void *)x);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, in_thread, (void *)(x + i));
    check(CALL(simple, x) == x + 1, "simple");
    check(CALL(simple, x + 1) + CALL(simple, 0) == x + 3, "simple from elsewhere");
    check(CALL(deep, 50) == 50, "deep");
    if (!setjmp(back)) check(CALL(leaping, x) == x + 1 && x % 3 == 0, "leaping");
    CALLED(tailing); if (x & 1) CALLED(simple);
    check(tailing(x) == (x & 1 ? x + 1 : x + 7), "tailing"); RETURNS(tailing, 1); if (x & 1) RETURNS(simple, 1);
    check(CALL(signalled, x) == x + 1, "signalled");
    if (x % 8 == 0) fork_round(x);
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack; coroutine.uc_stack.ss_size = sizeof stack; coroutine.uc_link = 0;
    makecontext(&coroutine, in_coroutine, 0);
    side = &first_side; switched = 0;
    swapcontext(&first_side, &coroutine);
    pthread_t other;
    pthread_create(&other, 0, elsewhere, 0);
    pthread_join(other, 0);
    check(switched == 9, "switching");
    pthread_mutex_unlock(&gate);
    exit_round();
    pthread_join(sleeper, 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
}
static void setup(int argc, char **argv) {
    stays = argc > 1 && !strcmp(argv[1], "stays");
    signal(SIGUSR1, handler);
    USE_TALLY(simple); USE_TALLY(deep); USE_TALLY(leaping); USE_TALLY(tailing); USE_TALLY(signalled); USE_TALLY(forking);
    USE_TALLY(switching); USE_TALLY(parked); USE_TALLY(threaded); USE_TALLY(staying); USE_TALLY(exiting);
}
