/* What calls random functions and compares what they come to with what they came to at first.
 *
 * argv[1]: microseconds between signals. The including file has FUNCTIONS, CALLS and functions[].
 */
#include "protocol.h"
#include <signal.h>
#include <sys/time.h>
struct machine {
    unsigned long arguments[6], results[2], changed, status;
    double vectors[4], floats[2];
    unsigned char memory[256] __attribute__((aligned(64)));
};
void run(struct machine *, void (*)(void));
asm(".intel_syntax noprefix\n"
    "run: push rbx; push rbp; push r12; push r13; push r14; push r15; push rdi\n"
    "mov rax, rdi; mov r11, rsi\n"
    "mov ebx, 0x1111; mov ebp, 0x2222; mov r12d, 0x3333; mov r13d, 0x4444; mov r14d, 0x5555; mov r15d, 0x6666\n"
    "movsd xmm0, [rax+80]; movsd xmm1, [rax+88]; movsd xmm2, [rax+96]; movsd xmm3, [rax+104]\n"
    "mov rdi, [rax]; mov rsi, [rax+8]; mov rdx, [rax+16]; mov rcx, [rax+24]; mov r8, [rax+32]; mov r9, [rax+40]\n"
    "call r11\n"
    "mov rdi, [rsp]; mov [rdi+48], rax; mov [rdi+56], rdx; movsd [rdi+112], xmm0; movsd [rdi+120], xmm1\n"
    "xor rbx, 0x1111; xor rbp, 0x2222; xor r12, 0x3333; xor r13, 0x4444; xor r14, 0x5555; xor r15, 0x6666\n"
    "or rbx, rbp; or rbx, r12; or rbx, r13; or rbx, r14; or rbx, r15; mov [rdi+64], rbx\n"
    "fnstsw ax; and eax, 0x3800; mov [rdi+72], rax\n"
    "pop rdi; pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx; ret\n"
    ".att_syntax\n");
static void on_tick(int signal, siginfo_t *info, void *context) {
    (void)signal; (void)info; (void)context;
    asm volatile("fninit; fldpi; std; cld" ::: "memory");
}
static unsigned long expected[FUNCTIONS][CALLS];
static unsigned long next(unsigned long *state) { return *state = *state * 6364136223846793005ul + 1442695040888963407ul; }
static unsigned long outcome(int function, int call) {
    static struct machine m;
    unsigned long state = function * 1000003ul + call * 7919ul + 12345, hash = 14695981039346656037ul;
    memset(&m, 0, sizeof m);
    for (int i = 0; i < 6; i++) m.arguments[i] = i < 3 ? next(&state) >> 20 : next(&state) >> (state >> 60);
    for (int i = 0; i < 4; i++) m.vectors[i] = (double)(long)(next(&state) >> 24) / 4096.0;
    for (int i = 0; i < 256; i++) m.memory[i] = (unsigned char)(next(&state) >> 56);
    m.arguments[0] = (unsigned long)m.memory;
    run(&m, functions[function]);
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
static void setup(int argc, char **argv) {
    for (int f = 0; f < FUNCTIONS; f++)
        for (int c = 0; c < CALLS; c++) expected[f][c] = outcome(f, c);
    one_round();
    if (argc < 2) return;
    struct sigaction action = {0};
    struct itimerval often = {{0, atoi(argv[1])}, {0, atoi(argv[1])}};
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &often, 0);
}
