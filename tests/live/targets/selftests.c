/* For what BPF's own tests of uprobes do: probes that change inside a call, and every register around a call. */
#include "protocol.h"
#include <pthread.h>
TALLY(consumed);
TALLY(triggered);
TALLY(changed);
TALLY(wrong);
#define STATUS 0x8d5UL /* carry, parity, adjust, zero, sign, overflow */
unsigned long saved[17], before_sp;
static volatile int stops;
/* Waits inside for a line: consumers come and go meanwhile. */
PROBED long consumed(long n) {
    char line[64];
    CALLED(consumed);
    say("inside\n");
    next_command(line, sizeof line);
    RETURNED(consumed);
    return n + 1;
}
PROBED long triggered(long n) {
    CALLED(triggered);
    return n ^ 0x55;
}
/* Every register has a value of its own when leaf is called, and is written down behind the call. */
long around(unsigned long flags);
__asm__(".text\n" FUNCTION(leaf) "movabs $0x1111111111111111, %rax\n" "ret\n" END(leaf)
        FUNCTION(around)
        "push %rbx\n" "push %rbp\n" "push %r12\n" "push %r13\n" "push %r14\n" "push %r15\n"
        "mov %rsp, before_sp(%rip)\n"
        "push %rdi\n" "popfq\n"
        "movabs $0x0101010101010101, %rax\n" "movabs $0x0202020202020202, %rbx\n" "movabs $0x0303030303030303, %rcx\n"
        "movabs $0x0404040404040404, %rdx\n" "movabs $0x0505050505050505, %rsi\n" "movabs $0x0606060606060606, %rdi\n"
        "movabs $0x0707070707070707, %rbp\n" "movabs $0x0808080808080808, %r8\n" "movabs $0x0909090909090909, %r9\n"
        "movabs $0x0a0a0a0a0a0a0a0a, %r10\n" "movabs $0x0b0b0b0b0b0b0b0b, %r11\n" "movabs $0x0c0c0c0c0c0c0c0c, %r12\n"
        "movabs $0x0d0d0d0d0d0d0d0d, %r13\n" "movabs $0x0e0e0e0e0e0e0e0e, %r14\n" "movabs $0x0f0f0f0f0f0f0f0f, %r15\n"
        "call leaf\n"
        "mov %rax, saved(%rip)\n" "mov %rbx, saved+8(%rip)\n" "mov %rcx, saved+16(%rip)\n" "mov %rdx, saved+24(%rip)\n"
        "mov %rsi, saved+32(%rip)\n" "mov %rdi, saved+40(%rip)\n" "mov %rbp, saved+48(%rip)\n" "mov %r8, saved+56(%rip)\n"
        "mov %r9, saved+64(%rip)\n" "mov %r10, saved+72(%rip)\n" "mov %r11, saved+80(%rip)\n" "mov %r12, saved+88(%rip)\n"
        "mov %r13, saved+96(%rip)\n" "mov %r14, saved+104(%rip)\n" "mov %r15, saved+112(%rip)\n" "mov %rsp, saved+120(%rip)\n"
        "pushfq\n" "pop saved+128(%rip)\n" "cld\n"
        "pop %r15\n" "pop %r14\n" "pop %r13\n" "pop %r12\n" "pop %rbp\n" "pop %rbx\n" "ret\n" END(around));
static void registers(unsigned long flags) {
    around(flags);
    for (int n = 0; n < 17; n++) {
        unsigned long wanted = n == 0 ? 0x1111111111111111UL : (n + 1) * 0x0101010101010101UL;
        if (n == 15) wanted = before_sp;
        if (n == 16) wanted = flags & STATUS, saved[n] &= STATUS;
        if (saved[n] == wanted) continue;
        changed_tally.calls |= 1L << n;
        wrong_tally.calls += saved[n] != 0x5151;
    }
}
static void *trigger(void *unused) {
    (void)unused;
    for (long n = 0; !stops; n++) check(triggered(n) == (n ^ 0x55), "triggered");
    return 0;
}
static int waits_inside, races;
static void one_round(void) {
    registers(0x202);
    registers(0x202 | STATUS);
    if (waits_inside) check(consumed(1) == 2, "consumed");
    if (!races) return;
    pthread_t threads[4];
    stops = 0;
    for (int n = 0; n < 4; n++) check(!pthread_create(&threads[n], 0, trigger, 0), "pthread_create");
    usleep(20000);
    stops = 1;
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
}
static void setup(int argc, char **argv) {
    waits_inside = argc > 1 && !strcmp(argv[1], "inside");
    races = argc > 1 && !strcmp(argv[1], "races");
    USE_TALLY(consumed); USE_TALLY(triggered); USE_TALLY(changed); USE_TALLY(wrong);
}
