/* What calls random functions and compares what they come to with what they came to at first.
 *
 * argv[1]: microseconds between signals, for each thread. argv[2]: how many threads call, all the time.
 * The including file has FUNCTIONS, CALLS and functions[].
 */
#include "protocol.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
struct machine {
    unsigned long arguments[6], results[2], changed, status;
    double vectors[4], floats[2];
    unsigned char memory[256] __attribute__((aligned(64)));
};
#ifndef RUN
#define RUN run
#endif
#ifndef AT_SIGNAL
#define AT_SIGNAL(context) (void)(context)
#endif
void run(struct machine *, void (*)(void));
asm(".intel_syntax noprefix\n"
    "behind_functions:\n"
    "run: .cfi_startproc\n"
    ".irp name, rbx, rbp, r12, r13, r14, r15; push \\name; .cfi_adjust_cfa_offset 8; .cfi_rel_offset \\name, 0; .endr\n"
    "push rdi; .cfi_adjust_cfa_offset 8\n"
    "mov rax, rdi; mov r11, rsi\n"
    "mov ebx, 0x1111; mov ebp, 0x2222; mov r12d, 0x3333; mov r13d, 0x4444; mov r14d, 0x5555; mov r15d, 0x6666\n"
    "movsd xmm0, [rax+80]; movsd xmm1, [rax+88]; movsd xmm2, [rax+96]; movsd xmm3, [rax+104]\n"
    "mov rdi, [rax]; mov rsi, [rax+8]; mov rdx, [rax+16]; mov rcx, [rax+24]; mov r8, [rax+32]; mov r9, [rax+40]\n"
    "call r11\n"
    "run_called: mov rdi, [rsp]; mov [rdi+48], rax; mov [rdi+56], rdx; movsd [rdi+112], xmm0; movsd [rdi+120], xmm1\n"
    "xor rbx, 0x1111; xor rbp, 0x2222; xor r12, 0x3333; xor r13, 0x4444; xor r14, 0x5555; xor r15, 0x6666\n"
    "or rbx, rbp; or rbx, r12; or rbx, r13; or rbx, r14; or rbx, r15; mov [rdi+64], rbx\n"
    "fnstsw ax; and eax, 0x3800; mov [rdi+72], rax\n"
    "pop rdi; .cfi_adjust_cfa_offset -8\n"
    ".irp name, r15, r14, r13, r12, rbp, rbx; pop \\name; .cfi_adjust_cfa_offset -8; .cfi_restore \\name; .endr\n"
    "ret; .cfi_endproc\n"
    ".att_syntax\n");
static void on_tick(int signal, siginfo_t *info, void *context) {
    (void)signal; (void)info;
    AT_SIGNAL(context);
    asm volatile("fninit; fldpi; std; cld" ::: "memory");
}
static _Thread_local unsigned long expected[FUNCTIONS][CALLS];
static int ready;
static unsigned long next(unsigned long *state) { return *state = *state * 6364136223846793005ul + 1442695040888963407ul; }
#ifndef ARGUMENT
#define ARGUMENT(number, state) (number < 3 ? next(state) >> 20 : next(state) >> (*state >> 60))
#endif
static unsigned long outcome(int function, int call) {
    static _Thread_local struct machine m;
    unsigned long state = function * 1000003ul + call * 7919ul + 12345, hash = 14695981039346656037ul;
    memset(&m, 0, sizeof m);
    for (int i = 0; i < 6; i++) m.arguments[i] = ARGUMENT(i, &state);
    for (int i = 0; i < 4; i++) m.vectors[i] = (double)(long)(next(&state) >> 24) / 4096.0;
    for (int i = 0; i < 256; i++) m.memory[i] = (unsigned char)(next(&state) >> 56);
    m.arguments[0] = (unsigned long)m.memory;
    RUN(&m, functions[function]);
    check(!m.changed, "a preserved register changed");
    check(!m.status, "the x87 stack is not empty");
    for (unsigned i = 0; i < sizeof m; i++) hash = (hash ^ ((unsigned char *)&m)[i]) * 1099511628211ul;
    return hash;
}
static void one_round(void) {
    for (int f = 0; f < FUNCTIONS; f++)
        for (int c = 0; c < CALLS; c++)
            if (outcome(f, c) != expected[f][c]) { say("BAD call %d of function %d came to something else\n", c, f); _exit(1); }
}
static void be_interrupted(long microseconds) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
    struct itimerspec often = {{0, 1000 * microseconds}, {0, 1000 * microseconds}};
    timer_t timer;
    event._sigev_un._tid = gettid();
    check(!timer_create(CLOCK_MONOTONIC, &event, &timer) && !timer_settime(timer, 0, &often, 0), "timer");
}
static void expect(void) { /* Addresses are among the results, and threads have their own. */
    for (int f = 0; f < FUNCTIONS; f++)
        for (int c = 0; c < CALLS; c++) expected[f][c] = outcome(f, c);
    one_round();
    __atomic_fetch_add(&ready, 1, __ATOMIC_RELEASE);
}
static void *call_for_ever(void *microseconds) {
    expect();
    be_interrupted((long)microseconds);
    for (;;) one_round();
    return 0;
}
static void setup(int argc, char **argv) {
    long microseconds = argc > 1 ? atol(argv[1]) : 0;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    pthread_t thread;
    expect();
    if (!microseconds) return;
    struct sigaction action = {0};
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaction(SIGALRM, &action, 0);
    be_interrupted(microseconds);
    for (int i = 1; i < threads; i++) check(!pthread_create(&thread, 0, call_for_ever, (void *)microseconds), "thread");
    while (__atomic_load_n(&ready, __ATOMIC_ACQUIRE) < threads) sched_yield();
}
