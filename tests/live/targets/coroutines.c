/* Coroutines on stacks of their own that leave and re-enter probed functions, and handlers on an alternate stack: one that
 * uses it, as most do, and one that never writes to it. */
#include "protocol.h"
#include <signal.h>
#include <ucontext.h>
TALLY(generator); TALLY(yielding); TALLY(on_stack); TALLY(beside_stack);
static ucontext_t main_context, context[4];
static char stacks[4][32768], alternate[32768];
static volatile int current, stop_all;
static long produced[4];
PROBED void yielding(long value) { CALLED(yielding); produced[current] = value; swapcontext(&context[current], &main_context); RETURNED(yielding); }
PROBED void generator(void) { CALLED(generator); for (long i = 0; i < 5; i++) yielding(i * 10 + current); RETURNED(generator); }
PROBED void on_stack(int signal) { volatile char room[300]; CALLED(on_stack); room[0] = (char)signal; RETURNED(on_stack); }
PROBED void beside_stack(int signal) { (void)signal; CALLED(beside_stack); RETURNED(beside_stack); }
static void one_round(void) {
    for (int c = 0; c < 4; c++) {
        getcontext(&context[c]);
        context[c].uc_stack.ss_sp = stacks[c]; context[c].uc_stack.ss_size = sizeof stacks[c]; context[c].uc_link = &main_context;
        makecontext(&context[c], generator, 0);
    }
    for (long step = 0; step < 6; step++)
        for (int c = 0; c < 4; c++) {
            current = c;
            swapcontext(&main_context, &context[c]);
            if (step < 5) check(produced[c] == step * 10 + c, "a coroutine's value");
        }
    raise(SIGUSR1);
    raise(SIGUSR2);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    stack_t s = {alternate, 0, sizeof alternate};
    struct sigaction a = {0};
    a.sa_handler = on_stack; a.sa_flags = SA_ONSTACK;
    sigaltstack(&s, 0);
    sigaction(SIGUSR1, &a, 0);
    a.sa_handler = beside_stack;
    sigaction(SIGUSR2, &a, 0);
    USE_TALLY(generator); USE_TALLY(yielding); USE_TALLY(on_stack); USE_TALLY(beside_stack);
}
