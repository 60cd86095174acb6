/* Every register, flag and vector, x87 and mask state, and the red zone, before and after probed instructions.
 *
 * Each function exists twice with the same bytes: NAME, which is probed, and NAME_ref, which never is. Both are called with
 * the same machine state, random but for the flags, which go through all combinations round by round; what they leave
 * behind must be equal to the last bit, undefined flags and untouched registers too. The calls are made through a pointer
 * by hand-written code that relies on no convention: here, or, with its path as argument, in a library (this file, -DCALLER).
 */
#define _GNU_SOURCE
#include <stdint.h>
enum { GPRS = 16, STATE = 8192, RED = 128 };
struct state {
    uint64_t gpr[GPRS]; /* rax rcx rdx rbx rsp rbp rsi rdi r8 to r15; rsp is only ever read */
    uint64_t flags;
    uint8_t red[RED];
    uint8_t xsave[STATE] __attribute__((aligned(64)));
};
_Static_assert(__builtin_offsetof(struct state, red) == 136 && __builtin_offsetof(struct state, xsave) == 320, "layout");

/* Load everything from `in`, call `subject`, store everything to `out`. Not reentrant. */
void with_state(struct state *in, struct state *out, void (*subject)(void), uint64_t components);
asm(".bss\n.balign 8\nsaved_rsp: .quad 0\nout_pointer: .quad 0\nkept_rax: .quad 0\nsubject: .quad 0\ncomponents: .quad 0\n.text\n"
    ".globl with_state\n.type with_state,@function\nwith_state:\n"
    "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\nsub $8,%rsp\n"
    "mov %rsp,saved_rsp(%rip)\nmov %rsi,out_pointer(%rip)\nmov %rdx,subject(%rip)\nmov %rcx,components(%rip)\n"
    "mov components(%rip),%eax\nxor %edx,%edx\nxrstor 320(%rdi)\n"
    /* the red zone of the callee: the 128 bytes below the return address */
    "xor %ecx,%ecx\n1: movzbl 136(%rdi,%rcx),%eax\nmov %al,-136(%rsp,%rcx)\ninc %ecx\ncmp $128,%ecx\njne 1b\n"
    "mov 128(%rdi),%rax\nmov %rax,-8(%rsp)\nlea -8(%rsp),%rsp\npopf\n"
    "mov 0(%rdi),%rax\nmov 8(%rdi),%rcx\nmov 16(%rdi),%rdx\nmov 24(%rdi),%rbx\nmov 40(%rdi),%rbp\nmov 48(%rdi),%rsi\n"
    "mov 64(%rdi),%r8\nmov 72(%rdi),%r9\nmov 80(%rdi),%r10\nmov 88(%rdi),%r11\nmov 96(%rdi),%r12\nmov 104(%rdi),%r13\n"
    "mov 112(%rdi),%r14\nmov 120(%rdi),%r15\nmov 56(%rdi),%rdi\n"
    "call *subject(%rip)\n"
    "mov %rax,kept_rax(%rip)\nmov out_pointer(%rip),%rax\n"
    "mov %rcx,8(%rax)\nmov %rdx,16(%rax)\nmov %rbx,24(%rax)\nmov %rsp,32(%rax)\nmov %rbp,40(%rax)\nmov %rsi,48(%rax)\nmov %rdi,56(%rax)\n"
    "mov %r8,64(%rax)\nmov %r9,72(%rax)\nmov %r10,80(%rax)\nmov %r11,88(%rax)\nmov %r12,96(%rax)\nmov %r13,104(%rax)\nmov %r14,112(%rax)\nmov %r15,120(%rax)\n"
    "mov kept_rax(%rip),%rcx\nmov %rcx,0(%rax)\npushf\npop %rcx\nmov %rcx,128(%rax)\ncld\n"
    "mov %rax,%rdi\nxor %ecx,%ecx\n2: movzbl -136(%rsp,%rcx),%eax\nmov %al,136(%rdi,%rcx)\ninc %ecx\ncmp $128,%ecx\njne 2b\n"
    "mov components(%rip),%eax\nxor %edx,%edx\nxsave 320(%rdi)\n"
    "mov saved_rsp(%rip),%rsp\nadd $8,%rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n.size with_state, . - with_state\n");
#ifndef CALLER
#include "protocol.h"
#include <dlfcn.h>
#ifdef CLONES
#include <sched.h>
void *volatile clones = (void *)clone; /* a program that may make tasks itself has atomic counters and no timing */
#endif

#define TWICE(name, body) \
    ".p2align 4\n" FUNCTION(name) body END(name) ".p2align 4\n" FUNCTION(name##_ref) body END(name##_ref)

asm(TWICE(nop_five, ".byte 0x0f,0x1f,0x44,0,0\nret\n")
    TWICE(nop_two, ".byte 0x66,0x90\nret\n")
    TWICE(three_bytes, "xor %eax,%eax\nret\n")
    TWICE(prologue, "push %rbp\nmov %rsp,%rbp\npush %rbx\nsub $40,%rsp\nmov %rdi,-24(%rbp)\nadd $40,%rsp\npop %rbx\npop %rbp\nmov $0,%r11\nret\n")
    TWICE(red_reader, "mov -8(%rsp),%rax\nxor -64(%rsp),%rax\nxor -128(%rsp),%rax\nret\n")
    TWICE(red_writer, "mov %rdi,-8(%rsp)\nnopl 0(%rax,%rax,1)\nmov -8(%rsp),%rax\nret\n")
    TWICE(carry_user, "adc %rbx,%rax\nseto %cl\nsbb %rdx,%rdx\nret\n")
    TWICE(flag_reader, "pushf\npop %rax\nlahf\nret\n")
    TWICE(branch_on_flags, "jp 1f\njg 2f\nlea 1(%rax),%rax\nret\n1: lea 2(%rax),%rax\nret\n2: lea 3(%rax),%rax\nret\n")
    TWICE(rip_relative, "mov constant(%rip),%rax\nlea constant(%rip),%rcx\nadd %rax,%rdx\nret\n")
    TWICE(x87_exchange, "fxch %st(3)\nfnop\nret\n")
    TWICE(sse_add, "addps %xmm3,%xmm9\nmovaps %xmm9,%xmm15\nret\n")
    TWICE(backward_loop, "mov $5,%ecx\n1: lea 7(%rax),%rax\ndec %ecx\njnz 1b\nret\n")
    TWICE(loop_to_start, "9: lea 3(%rax),%rax\nadd $-1,%ebx\nand $7,%ebx\njnz 9b\nret\n")
    TWICE(call_inside, "call helper\nlea (%rax,%rax),%rax\nret\n")
    TWICE(rcx_branch, "jrcxz 1f\nlea -1(%rcx),%rcx\n1: nop\nret\n")
    TWICE(string_store, "mov $16,%ecx\nrep stosb\nret\n")
    TWICE(locked, "lock addq $3,(%rdi)\nmov (%rdi),%rax\nret\n")
    TWICE(tail_jump, "lea 9(%rax),%rax\njmp helper\n")
    TWICE(lea_leaf, "lea 1(%rdi),%eax\nret\n")
    TWICE(two_written, "mov $1,%eax\nmov $2,%ecx\nret\n")
    TWICE(all_but_rax_written, "lea 1(%rax),%r10\nmov $3,%r11d\nret\n")
    TWICE(one_written, "mov $4,%r9d\nnop\nret\n")
    TWICE(written_on_one_way, "test %ecx,%ecx\nje 1f\nmov $5,%r11d\nmov $6,%eax\n1: mov $7,%edx\nret\n")
    TWICE(carry_kept, "inc %eax\nnop\nret\n")
    TWICE(undefined_flags, "imul $3,%edi,%eax\nret\n")
    TWICE(zero_scanned, "xchg %rcx,%rax\nbsf %rax,%rcx\nret\n")
    TWICE(direction_user, "lodsb\nscasb\nret\n")
    TWICE(callee_reads, "call reader\nlea (%rax,%rcx),%rdx\nret\n")
    TWICE(pointed_callee_reads, "call *pointer(%rip)\nlea (%rax,%rcx),%rdx\nret\n")
    TWICE(jump_to_reader, "mov $8,%eax\njmp reader\n")
    TWICE(jump_through_pointer, "jmp *pointer(%rip)\n")
    TWICE(jump_on_carry, "jc reader\nret\n")
    FUNCTION(reader) "lea (%r11,%r10),%rax\nseto %cl\nsetc %dl\nret\n" END(reader)
    TWICE(stays_or_leaves, "lea 1f(%rip),%rdx\nlea helper(%rip),%rax\ntest $1,%bl\ncmovnz %rdx,%rax\nmov %rax,-24(%rsp)\n"
          "test %r8,%r9\njmp *-24(%rsp)\n1: mov $0,%eax\nlahf\nseto %cl\nlea 3(%rbx),%rbx\nret\n")
    FUNCTION(helper) "lea 5(%rax),%rax\nret\n" END(helper)
    ".data\nconstant: .quad 0x1122334455667788\npointer: .quad reader\n.text\n");
asm(TWICE(avx_add, "vpaddd %ymm1,%ymm2,%ymm11\nvpxor %ymm0,%ymm11,%ymm3\nret\n"));
asm(TWICE(avx512_masked, "vpaddd %zmm1,%zmm17,%zmm30{%k3}\nkaddw %k1,%k2,%k4\nret\n"));

static struct state in, out, reference;
static void (*caller)(struct state *, struct state *, void (*)(void), uint64_t) = with_state;
static uint64_t wanted_components;
static uint8_t scratch[4096] __attribute__((aligned(64)));

static uint64_t seed = 88172645463325252ull;
static uint64_t number(void) { seed ^= seed << 13; seed ^= seed >> 7; return seed ^= seed << 17; }
static void fill(void *to, size_t n) { for (size_t i = 0; i < n; i++) ((uint8_t *)to)[i] = (uint8_t)(number() >> 24); }

static unsigned combination;
static void random_state(void) {
    fill(&in, sizeof in);
    in.gpr[1] &= 1;                                               /* rcx: 0 half of the time, for jrcxz */
    in.gpr[6] = (uint64_t)scratch + 1024; in.gpr[7] = (uint64_t)scratch + 2048;
    in.flags = 0x2 | (number() & 0x200000);                        /* ID, and a combination of the others; never TF */
    static const uint64_t bits[] = {0x1, 0x4, 0x10, 0x40, 0x80, 0x400, 0x800}; /* CF PF AF ZF SF DF OF */
    for (unsigned i = 0; i < 7; i++) in.flags |= combination >> i & 1 ? bits[i] : 0;
    uint8_t *x = in.xsave;
    *(uint16_t *)(x + 0) = 0x37f ^ (uint16_t)(number() & 0xc00);  /* all masked, random rounding */
    *(uint16_t *)(x + 2) = (uint16_t)(number() & 0x3800);         /* random top of stack, nothing pending */
    x[4] = (uint8_t)number();                                      /* which x87 registers are full */
    x[5] = 0; memset(x + 6, 0, 18);                                /* last opcode and pointers */
    *(uint32_t *)(x + 24) = 0x1f80 | (uint32_t)(number() & 0xe03f);
    for (int i = 0; i < 8; i++) memset(x + 32 + 16 * i + 10, 0, 6);
    memset(x + 464, 0, 48);
    memset(x + 512, 0, 64);
    *(uint64_t *)(x + 512) = wanted_components;
}

static void run(void (*f)(void), struct state *result) {
    memset(result, 0, sizeof *result);
    for (size_t i = 0; i < sizeof scratch; i++) scratch[i] = (uint8_t)(i * 37);
    caller(&in, result, f, wanted_components);
}

/* Addresses inside the probed copy, such as a return address that a call left behind, as addresses of the other. */
static void translate(uint64_t *values, int n, uint64_t from, uint64_t to) {
    for (int i = 0; i < n; i++)
        if (values[i] - from < 64) values[i] += to - from;
}
static const char *const gpr_names[GPRS] = {"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"};
static void compare(const char *function) {
    for (int i = 0; i < GPRS; i++)
        if (out.gpr[i] != reference.gpr[i]) { say("BAD %s: %s is %#lx, not %#lx\n", function, gpr_names[i], out.gpr[i], reference.gpr[i]); _exit(1); }
    if (out.flags != reference.flags) { say("BAD %s: flags are %#lx, not %#lx\n", function, out.flags, reference.flags); _exit(1); }
    for (int i = 0; i < RED; i++)
        if (out.red[i] != reference.red[i]) { say("BAD %s: red zone differs at rsp-%d\n", function, RED - i); _exit(1); }
    for (int i = 0; i < STATE; i++)
        /* the last x87 instruction, in bytes 6 to 23, is the copy, by design; Intel's processors always tell */
        if ((i < 6 || i >= 24) && out.xsave[i] != reference.xsave[i]) { say("BAD %s: xsave area differs at byte %d: %#x, not %#x\n", function, i, out.xsave[i], reference.xsave[i]); _exit(1); }
}

#define FUNCTIONS(X) X(nop_five) X(nop_two) X(three_bytes) X(prologue) X(red_reader) X(red_writer) X(carry_user) X(flag_reader) \
    X(branch_on_flags) X(rip_relative) X(x87_exchange) X(sse_add) X(backward_loop) X(loop_to_start) X(call_inside) \
    X(rcx_branch) X(string_store) X(locked) X(tail_jump) X(stays_or_leaves) X(lea_leaf) X(two_written) X(all_but_rax_written) \
    X(one_written) X(written_on_one_way) X(carry_kept) X(undefined_flags) X(zero_scanned) X(direction_user) X(callee_reads) \
    X(pointed_callee_reads) X(jump_to_reader) X(jump_through_pointer) X(jump_on_carry) X(avx_add) X(avx512_masked)
#define DECLARE(name) TALLY(name); void name(void), name##_ref(void);
FUNCTIONS(DECLARE)
static int usable(const char *name) {
    if (!strncmp(name, "avx512", 6)) return __builtin_cpu_supports("avx512f") != 0;
    if (!strncmp(name, "avx", 3)) return __builtin_cpu_supports("avx2") != 0;
    return 1;
}
/* Whether the function left by a jump, with what is in `in`. */
static int left_by_jump(const char *name) {
    if (!strcmp(name, "stays_or_leaves")) return !(in.gpr[3] & 1);
    if (!strcmp(name, "jump_on_carry")) return (int)(in.flags & 1);
    return !strcmp(name, "tail_jump") || !strcmp(name, "jump_to_reader") || !strcmp(name, "jump_through_pointer");
}
#define ROUND(name) if (usable(#name)) { random_state(); run(name##_ref, &reference); CALLED(name); run(name, &out); RETURNED(name); \
    translate(out.gpr, GPRS, (uint64_t)name, (uint64_t)name##_ref); translate((uint64_t *)out.red, RED / 8, (uint64_t)name, (uint64_t)name##_ref); \
    compare(#name); name##_tally.tails += left_by_jump(#name); }
static void one_round(void) { FUNCTIONS(ROUND) combination++; }
#define USE(name) if (usable(#name)) USE_TALLY(name);
static void setup(int argc, char **argv) {
    if (argc > 1) {
        void *library = dlopen(argv[1], RTLD_NOW);
        check(library != 0, "dlopen");
        caller = (void (*)(struct state *, struct state *, void (*)(void), uint64_t))dlsym(library, "with_state");
        check(caller != 0 && caller != with_state, "dlsym");
    }
    unsigned a, d;
    asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    wanted_components = a & 0xe7; /* x87, SSE, AVX, masks, both ZMM parts; not the protection keys */
    FUNCTIONS(USE)
}
#endif
