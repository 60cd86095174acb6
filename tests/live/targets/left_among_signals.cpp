/* left_among_signals [onstack [above]] [throws] [longjmp]: calls are left behind while a timer's signals come in at any
 * moment, whose handler makes calls, too: on a stack of its own, which may follow that of a thread, or such as are left
 * behind in turn. */
#define MANY_ROUNDS
static void many_rounds(long rounds);
#include "protocol.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
TALLY(deeper); TALLY(handled); TALLY(plain); TALLY(round_of);
static bool in_handlers, by_longjmp, above;
static jmp_buf back;
static char alternate[65536];
extern "C" {
PROBED int plain(int x) { CALLED(plain); __asm__ volatile(""); RETURNED(plain); return x + 1; }
PROBED int deeper(int x, bool jumps) {
    CALLED(deeper);
    if (!x && jumps) longjmp(back, 1);
    if (!x) throw 1;
    int r = deeper(x - 1, jumps) + 1;
    __asm__ volatile("" : "+r"(r));
    RETURNED(deeper);
    return r;
}
PROBED int handled(int n) {
    CALLED(handled);
    int r = 0;
    for (int i = 0; i < 3; i++) r += plain(n);
    if (in_handlers) try { deeper(2, false); } catch (int value) { r += value; }
    __asm__ volatile("" : "+r"(r));
    RETURNED(handled);
    return r;
}
PROBED int round_of(int number) {
    CALLED(round_of);
    volatile int left = 0;
    if (by_longjmp) {
        if (!setjmp(back)) deeper(number % 17, true);
    } else {
        try { deeper(number % 17, false); } catch (int value) { left = value; }
    }
    plain(1);
    RETURNED(round_of);
    return left;
}
}
static void on_signal(int) { handled(1); }
static void every(long microseconds) {
    struct itimerval times = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &times, 0);
}
static void *all_rounds(void *rounds) {
    every(50);
    for (long number = 0; number < (long)rounds; number++) round_of((int)number);
    every(0);
    return 0;
}
enum { ROOM = 1 << 20 };
static char *stack_of_thread;
static void *in_thread(void *rounds) {
    stack_t stack = {stack_of_thread + ROOM, 0, sizeof alternate};
    check(!sigaltstack(&stack, 0), "a stack above");
    return all_rounds(rounds);
}
static void many_rounds(long rounds) {
    if (!above) { all_rounds((void *)rounds); return; }
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    check(!pthread_attr_init(&attributes) && !pthread_attr_setstack(&attributes, stack_of_thread, ROOM) &&
          !pthread_create(&thread, &attributes, in_thread, (void *)rounds), "a thread");
    pthread_sigmask(SIG_BLOCK, &alarm, 0);
    pthread_join(thread, 0);
    pthread_sigmask(SIG_UNBLOCK, &alarm, 0);
}
static void one_round(void) { many_rounds(1); }
static void setup(int argc, char **argv) {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "onstack")) action.sa_flags |= SA_ONSTACK;
        in_handlers |= !strcmp(argv[i], "throws");
        by_longjmp |= !strcmp(argv[i], "longjmp");
        above |= !strcmp(argv[i], "above");
    }
    stack_t stack = {alternate, 0, sizeof alternate};
    check(!sigaltstack(&stack, 0) && !sigaction(SIGALRM, &action, 0), "a handler");
    stack_of_thread = (char *)mmap(0, ROOM + sizeof alternate, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(stack_of_thread != MAP_FAILED, "stacks");
    USE_TALLY(deeper); USE_TALLY(handled); USE_TALLY(plain); USE_TALLY(round_of);
}
