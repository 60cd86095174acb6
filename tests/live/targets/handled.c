/* Functions whose arguments and results handlers look at, called by several threads, and in a signal handler. */
#include "protocol.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
TALLY(sized);
TALLY(ten);
TALLY(floats);
TALLY(named);
TALLY(deep);
TALLY(answers);
PROBED long sized(unsigned long size) {
    CALLED(sized);
    RETURNED(sized);
    return (long)size * 2;
}
PROBED long ten(char a, short b, int c, long d, unsigned char e, int f, long g, int h, short i, char j) {
    CALLED(ten);
    RETURNED(ten);
    return a + b + c + d + e + f + g + h + i + j;
}
PROBED double floats(int a, double b, float c, long d) {
    CALLED(floats);
    RETURNED(floats);
    return a + b + c + d;
}
PROBED long named(const char *name, long n) {
    CALLED(named);
    RETURNED(named);
    return name ? n : -n;
}
PROBED long deep(long n) {
    CALLED(deep);
    volatile long kept = n;
    long below = n ? deep(n - 1) : 0;
    RETURNED(deep);
    return below + kept;
}
PROBED int answers(void) {
    CALLED(answers);
    RETURNED(answers);
    return -1;
}
static int by_timer, changed, jumping;
static void profile(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    pthread_sigmask(how, &set, 0);
}
static long rounds;
static void *work(void *unused) {
    (void)unused;
    if (by_timer) profile(SIG_UNBLOCK);
    for (unsigned long n = 0; n < 1000; n++) check(sized(n) == (long)n * 2, "sized");
    return 0;
}
static void alarmed(int signal) { (void)signal; check(sized(5) == 10, "sized in a signal handler"); }
static sigjmp_buf back;
static void jump(int signal) { (void)signal; siglongjmp(back, 1); }
static void every(long microseconds) {
    struct itimerval interval = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_PROF, &interval, 0);
}
/* A signal handler leaves by a jump, out of a handler at times; then everything is called from further below. */
PROBED long from_below(int depth) {
    volatile char room[4096];
    room[0] = (char)depth;
    if (depth) return from_below(depth - 1) + room[0] - room[0];
    for (unsigned long n = 0; n < 200000; n++) check(sized(n) == (long)n * 2, "sized");
    return 0;
}
static void jump_round(void) {
    struct sigaction action = {0};
    action.sa_handler = jump;
    sigaction(SIGPROF, &action, 0);
    volatile int jumps = 0;
    if (sigsetjmp(back, 1)) jumps++;
    if (jumps < 5) {
        every(500);
        for (;;) answers();
    }
    every(0);
    signal(SIGPROF, SIG_IGN);
    from_below(4);
}
static void one_round(void) {
    if (jumping) { jump_round(); return; }
    pthread_t threads[4];
    if (by_timer && !rounds) { /* signals come in the middle of the threads' calls, and never between rounds */
        profile(SIG_BLOCK);
        every(100);
    }
    for (int n = 0; n < 4; n++) check(!pthread_create(&threads[n], 0, work, 0), "pthread_create");
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
    check(ten(-1, -2, -3, -4, 200, 6, -7, 8, -9, 10) == 198, "ten");
    check(floats(-1, 2.5, 0.25f, 4) == 5.75, "floats");
    check(named("hello", 3) == 3 && named(0, 4) == -4 && named((char *)8, 5) == 5, "named");
    check(deep(20) == 210, "deep");
    check(answers() == (changed ? 41 : -1), "answers");
    rounds++;
}
static void setup(int argc, char **argv) {
    USE_TALLY(sized); USE_TALLY(ten); USE_TALLY(floats); USE_TALLY(named); USE_TALLY(deep); USE_TALLY(answers);
    by_timer = argc > 1 && !strcmp(argv[1], "timer");
    jumping = argc > 1 && !strcmp(argv[1], "jumping");
    changed = argc > 1 && !strcmp(argv[1], "changed");
    if (by_timer) {
        struct sigaction action = {0};
        action.sa_handler = alarmed;
        action.sa_flags = SA_RESTART;
        sigaction(SIGPROF, &action, 0);
    }
}
