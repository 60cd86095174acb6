/* USDT markers with every form of argument. What each passes follows from the number of the round. */
#include "protocol.h"
#include "markers.h"
#include <stdint.h>
TALLY(widths);
TALLY(several);
TALLY(guarded);
TALLY(red_zone);

static uint64_t round_number;
#define MIXED (round_number * 0x9E3779B97F4A7C15u)

PROBED void widths(uint64_t value) {
    register uint64_t here __asm__("r8") = value;
    CALLED(widths);
    MARKER("forms", "widths", "0", "8@%%r8 -8@%%r8 4@%%r8d -4@%%r8d 2@%%r8w -2@%%r8w 1@%%r8b -1@%%r8b", "r"(here));
    register uint64_t old __asm__("rdx") = value;
    MARKER("forms", "old__widths", "0", "8@%%rdx -4@%%edx 2@%%dx -1@%%dl 1@%%dh -1@%%dh", "r"(old));
    RETURNED(widths);
}

/* Each register holds the sum of the argument and its own number. */
void every_register(uint64_t);
__asm__(FUNCTION(every_register)
    "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
    "lea 1(%rdi), %rcx; lea 2(%rdi), %rdx; lea 3(%rdi), %rbx; lea 5(%rdi), %rbp; lea 6(%rdi), %rsi\n"
    "lea 8(%rdi), %r8; lea 9(%rdi), %r9; lea 10(%rdi), %r10; lea 11(%rdi), %r11; lea 12(%rdi), %r12\n"
    "lea 13(%rdi), %r13; lea 14(%rdi), %r14; lea 15(%rdi), %r15; mov %rdi, %rax; add $7, %rdi\n"
    MARKER_NOTE("forms", "low", "0", "8@%rax 8@%rcx 8@%rdx 8@%rbx 8@%rbp 8@%rsi 8@%rdi 8@%r8 8@%r9 8@%r10 8@%r11 8@%r12")
    MARKER_NOTE("forms", "high", "0", "4@%ebp 2@%si 1@%dil 1@%bpl -4@%r13d 4@%r14d 2@%r15w 8@%r15")
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret\n" END(every_register));

struct pair { int32_t first, second, third; };
struct triple { uint64_t a, b, c; };
static const struct pair pairs[2] = {{-1, -2, -3}, {10, 20, 30}};
static int32_t counter, table[8];
static double fractions[2];
static unsigned char bytes[8];

PROBED void memory(int64_t value, uint64_t index) {
    volatile struct { int64_t before; int32_t here; uint16_t half; unsigned char byte; } at = {
        -value, (int32_t)value, (uint16_t)value, (unsigned char)value};
    MARKER("forms", "memory", "0", "-8@(%0) 8@0(%0) -4@8(%0) 2@0xc(%0) 1@14(%0) -1@14(%0) -8@-16(%1)",
           "r"(&at), "r"((char *)&at + 16));
    for (int n = 0; n < 8; n++) table[n] = (int32_t)value * n;
    MARKER("forms", "indexed", "0", "-4@(%0,%1,4) -4@4(%0,%1,4) -4@-4(%0, %1, 4) -4@8(%0,%2) -4@0(,%3,4)",
           "r"(table), "r"(index), "r"(4 * index), "r"((uintptr_t)table / 4 + index));
    __asm__ volatile("" ::"m"(table), "m"(counter), "m"(at));
}

PROBED void symbols(int32_t value) {
    counter = value;
    for (int n = 0; n < 8; n++) table[n] = value * n;
    __asm__ volatile("" ::: "memory");
    MARKER("forms", "symbols", "0", "-4@counter(%%rip) -4@8+table(%%rip) -4@table+12(%%rip) 8@$table+4 4@no_such(%%rip)");
}

PROBED void constants(void) { MARKER("forms", "constants", "0", "-4@$-1 4@$7 8@$0x7fffffffffffffff -1@$-128 2@$65535 -8@$0"); }

PROBED void floats(double value) {
    fractions[0] = value * 2;
    float small[1] = {(float)value * 4};
    register double wide __asm__("xmm3") = value;
    register float narrow __asm__("xmm9") = (float)value / 2;
    MARKER("forms", "floats", "0", "8f@%%xmm3 4f@%%xmm9 -8f@(%2) 4f@(%3) 8@%%xmm3",
           "x"(wide), "x"(narrow), "r"(fractions), "r"(small));
    __asm__ volatile("" ::"m"(small), "m"(fractions));
}

PROBED void sizes(uint64_t value) {
    memcpy(bytes, &value, 8);
    struct triple large = {value, value + 1, value + 2};
    MARKER("forms", "sizes", "0", "3@(%0) -3@(%0) 5@(%0) -6@(%0) 7@(%0) 12@(%1) 24@(%2) 3@%k3",
           "r"(bytes), "r"(&pairs[1]), "r"(&large), "r"(value));
    __asm__ volatile("" ::"m"(bytes), "m"(large));
}

PROBED void twelve(int value) {
    int many[12];
    for (int n = 0; n < 12; n++) many[n] = value + n;
    MARKER("forms", "twelve", "0",
           "-4@(%0) -4@4(%0) -4@8(%0) -4@12(%0) -4@16(%0) -4@20(%0) -4@24(%0) -4@28(%0) -4@32(%0) -4@36(%0) -4@40(%0) "
           "-4@44(%0)", "r"(many));
    __asm__ volatile("" ::"m"(many));
}

/* One marker at three places, with its argument somewhere else each time. */
PROBED void several(int64_t value) {
    CALLED(several);
    MARKER("places", "many__times", "0", "-8@%0", "r"(value));
    volatile int64_t kept = value + 1;
    MARKER("places", "many__times", "0", "-8@%0", "m"(kept));
    MARKER("places", "many__times", "0", "-4@$-3");
    RETURNED(several);
}

PROBED void named(const char *text, int value) {
    MARKER("\\\"odd provider\\\"", "\\\"a:name\\\"", "0", "8@%0 -4@%1", "r"(text), "r"(value));
    MARKER("forms", "unknown", "0", "-4@%0 8@%%st(3) -4@%0", "r"(value));
}

SEMAPHORE(guard);
SEMAPHORE(shared_guard);
PROBED void guarded(int value) {
    if (__builtin_expect(*(volatile unsigned short *)&guard, 0)) {
        CALLED(guarded);
        MARKER("guards", "alone", "guard", "-4@%0", "r"(value));
        RETURNED(guarded);
    }
    if (*(volatile unsigned short *)&shared_guard) {
        MARKER("guards", "first", "shared_guard", "-4@%0", "r"(value));
        MARKER("guards", "second", "shared_guard", "-4@%0", "r"(value));
    }
}
static const unsigned short unchangeable = 0;
PROBED void closed(void) {
    __asm__ volatile("" ::"m"(unchangeable));
    MARKER("guards", "closed", "unchangeable", "");
}

/* A leaf: what it keeps is below the stack pointer. */
uint64_t red_zone(uint64_t);
__asm__(FUNCTION(red_zone)
    "mov %rdi, -8(%rsp); mov %rdi, -16(%rsp); mov %rdi, -128(%rsp)\n"
    MARKER_NOTE("forms", "red__zone", "0", "8@-8(%rsp) 8@-128(%rsp)")
    "mov -8(%rsp), %rax; cmp %rax, -16(%rsp); jne 1f; cmp %rax, -128(%rsp); jne 1f; ret\n"
    "1: xor %eax, %eax; ret\n" END(red_zone));

static void one_round(void) {
    round_number++;
    widths(MIXED);
    every_register(MIXED);
    memory((int64_t)MIXED, round_number % 3 + 1);
    symbols((int32_t)round_number);
    constants();
    floats((double)round_number / 4);
    sizes(MIXED);
    twelve((int)round_number);
    several((int64_t)round_number);
    named("a text", (int)round_number);
    guarded((int)round_number);
    closed();
    COUNTED(red_zone, check(red_zone(MIXED | 1) == (MIXED | 1), "the red zone"));
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(widths); USE_TALLY(several); USE_TALLY(guarded); USE_TALLY(red_zone);
}
