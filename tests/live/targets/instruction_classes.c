/* One hand-written function for each class of instructions, on threads (argument 1), while a timer interrupts.
 *
 * A function that runs several times in a round is tallied once; how often each of its instructions then runs is for the
 * test to know. What a processor lacks is told by the absence of its tally. */
static void many_rounds(long n);
#define MANY_ROUNDS 1
#include "protocol.h"
#include "in_threads.h"
#include <asm/prctl.h>
#include <cpuid.h>
#include <immintrin.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

#define EVERYWHERE(X) \
    X(system_call) X(moves) X(moves_back) X(stores) X(scans) X(compares) X(loads) X(calls_memory) X(calls_register) \
    X(calls_stack) X(calls_stack_indexed) X(callee) X(jumps_register) X(jumps_no_track) X(counts_down) X(loops_equal) \
    X(loops_not_equal) X(counts_ecx) X(asks_rcx) X(own_int3) X(own_int3_long) X(undefined) X(halts) X(swaps_sixteen) X(reads_fs) X(reads_gs) \
    X(landing_pads) X(no_operations) X(frames) X(nested_frames) X(flags_pushed) X(flags_popped) X(pushes_stack_pointer) \
    X(pops_stack_pointer) X(pops_to_stack) X(own_address) X(pops_arguments) X(far_return) X(interrupt_return) X(translates) \
    X(identifies) X(time_stamp) X(time_stamp_ordered) X(saves_fx) X(x87_environment) X(x87_state) X(locked) X(fences) \
    X(string_compare) X(relative_operands) X(conditional) X(segment_values) X(steps_itself)
#ifndef __PIE__
#define ABSOLUTE(X) X(jumps_table) X(absolute_offsets)
#else
#define ABSOLUTE(X)
#endif
#define SOMEWHERE(X) \
    X(old_system_call) X(no_transaction) X(processor_number) X(saves_extended) X(clears_upper) X(gathers) X(masked) \
    X(compares_explicit)
#define CLASS(of) TALLY(of); long of(long, ...);
EVERYWHERE(CLASS) ABSOLUTE(CLASS) SOMEWHERE(CLASS)

#define ALIGNED(name) ".p2align 4\n" FUNCTION(name)
asm(ALIGNED(system_call) "mov $39,%eax\nsyscall\nret\n" END(system_call)
    ALIGNED(old_system_call) "push %rbx\nmov $20,%eax\nint $0x80\npop %rbx\nret\n" END(old_system_call)
    /* destination, source, number */
    ALIGNED(moves) "mov %rdx,%rcx\nrep movsb\nmov %rcx,%rax\nret\n" END(moves)
    ALIGNED(moves_back) "mov %rdx,%rcx\nstd\nrep movsb\ncld\nmov %rcx,%rax\nret\n" END(moves_back)
    ALIGNED(stores) "mov %rdx,%rcx\nmov %rsi,%rax\nrep stosq\nmov %rcx,%rax\nret\n" END(stores)
    ALIGNED(scans) "mov %rdx,%rcx\nmov %esi,%eax\nrepne scasb\nmov %rcx,%rax\nret\n" END(scans)
    ALIGNED(compares) "mov %rdx,%rcx\nrepe cmpsb\nmov %rcx,%rax\nret\n" END(compares)
    ALIGNED(loads) "mov %rdx,%rcx\nmov %ecx,%eax\nrep lodsb\nmovzbl %al,%eax\nret\n" END(loads)
    /* calls */
    ALIGNED(callee) "lea 1(%rdi),%rax\nret\n" END(callee)
    ".pushsection .data\n.p2align 3\ncallee_pointer: .quad callee\n.popsection\n"
    ALIGNED(calls_memory) "sub $8,%rsp\ncall *callee_pointer(%rip)\nadd $8,%rsp\nret\n" END(calls_memory)
    ALIGNED(calls_register) "push %rbx\nlea callee(%rip),%rbx\ncall *%rbx\npop %rbx\nret\n" END(calls_register)
    ALIGNED(calls_stack) "lea callee(%rip),%rax\npush %rax\ncall *(%rsp)\npush %rax\ncall *8(%rsp)\npop %rcx\npop %rcx\nret\n" END(calls_stack)
    ALIGNED(calls_stack_indexed) "lea callee(%rip),%rax\npush %rax\nxor %ecx,%ecx\ncall *(%rsp,%rcx,8)\npop %rcx\nret\n" END(calls_stack_indexed)
    /* jumps */
    ALIGNED(jumps_register) "lea 1f(%rip),%rax\njmp *%rax\n1: mov $21,%eax\nret\n" END(jumps_register)
    ".pushsection .rodata\n.p2align 2\nrelative_table: .long 2f-relative_table, 3f-relative_table, 4f-relative_table\n.popsection\n"
    ALIGNED(jumps_no_track) "cmp $2,%rdi\nja 4f\nlea relative_table(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\nnotrack jmp *%rax\n"
    "2: mov $10,%eax\nret\n3: mov $11,%eax\nret\n4: mov $12,%eax\nret\n" END(jumps_no_track)
    ALIGNED(counts_down) "mov $5,%ecx\nxor %eax,%eax\n5: inc %eax\nloop 5b\nret\n" END(counts_down)
    ALIGNED(loops_equal) "mov $9,%ecx\nxor %eax,%eax\n6: inc %eax\ntest $4,%al\nloope 6b\nret\n" END(loops_equal)
    ALIGNED(loops_not_equal) "mov $9,%ecx\nxor %eax,%eax\n7: inc %eax\ncmp $4,%eax\nloopne 7b\nret\n" END(loops_not_equal)
    ALIGNED(counts_ecx) "mov $0x700000003,%rcx\nxor %eax,%eax\n8: inc %eax\naddr32 loop 8b\nret\n" END(counts_ecx)
    ALIGNED(asks_rcx) "mov %rdi,%rcx\nxor %eax,%eax\njrcxz 9f\ninc %eax\n9: jecxz 10f\nadd $2,%eax\n10: ret\n" END(asks_rcx)
    ALIGNED(conditional) "xor %eax,%eax\ncmp $1,%rdi\njb 11f\nje 12f\ninc %eax\n11: inc %eax\n12: cmp $2,%rdi\ncmove %edi,%eax\nret\n" END(conditional)
    /* exceptions that the program means */
    ALIGNED(own_int3) "mov $1,%eax\nint3\nadd $2,%eax\nret\n" END(own_int3)
    ALIGNED(own_int3_long) "mov $1,%eax\n.byte 0xcd,3\nadd $2,%eax\nret\n" END(own_int3_long)
    ALIGNED(undefined) "mov $1,%eax\nud2\nadd $2,%eax\nret\n" END(undefined)
    ALIGNED(halts) "mov $1,%eax\nhlt\nadd $2,%eax\nret\n" END(halts)
    ALIGNED(no_transaction) "mov $3,%eax\nxbegin 13f\n13: add $1,%eax\nret\n" END(no_transaction)
    /* memory */
    ALIGNED(swaps_sixteen) "push %rbx\nmov (%rdi),%rax\nmov 8(%rdi),%rdx\nlea 1(%rax),%rbx\nmov %rdx,%rcx\nlock cmpxchg16b (%rdi)\nsete %al\nmovzbl %al,%eax\npop %rbx\nret\n" END(swaps_sixteen)
    ALIGNED(reads_fs) "mov %fs:0,%rax\nxor %ecx,%ecx\nsub %fs:16(,%rcx,8),%rax\nret\n" END(reads_fs)
    ALIGNED(reads_gs) "mov %gs:8,%rax\nadd %gs:(%rdi),%rax\nret\n" END(reads_gs)
    ALIGNED(segment_values) "mov %cs,%eax\nmov %ss,%ecx\nlsl %ecx,%edx\nsub %ecx,%eax\nret\n" END(segment_values)
    ALIGNED(relative_operands) "movq $7,14f(%rip)\naddl $2,14f(%rip)\nlea 14f(%rip),%rcx\nmov 14f(%rip),%rax\nmovdqu 14f(%rip),%xmm0\ntestb $8,14f(%rip)\ncmovz (%rcx),%rdi\nret\n" END(relative_operands)
    ".pushsection .data\n.p2align 4\n14: .quad 0,0\n.popsection\n"
    ALIGNED(locked) "mov $3,%eax\nlock xadd %rax,(%rdi)\nxchg %rax,8(%rdi)\nlock incl 16(%rdi)\nlock btsl $3,20(%rdi)\nret\n" END(locked)
    ALIGNED(fences) "mfence\nlfence\nsfence\npause\nprefetcht0 (%rdi)\nclflush (%rdi)\nmov $4,%eax\nret\n" END(fences)
    /* the stack */
    ALIGNED(landing_pads) "endbr64\nmov $7,%eax\nendbr64\nret\n" END(landing_pads)
    ALIGNED(no_operations) "nop\nxchg %ax,%ax\nnopl (%rax)\nnopl 0(%rax)\nnopl 0(%rax,%rax,1)\nnopw 0(%rax,%rax,1)\nnopl 0x200(%rax)\nnopl 0x200(%rax,%rax,1)\n"
    "nopw 0x200(%rax,%rax,1)\nnopw %cs:0x200(%rax,%rax,1)\n.byte 0x66,0x66,0x2e,0x0f,0x1f,0x84,0,0,2,0,0\nmov $1,%eax\nret\n" END(no_operations)
    ALIGNED(frames) "enter $16,$0\nmov %rdi,-8(%rbp)\nmov -8(%rbp),%rax\nleave\nret\n" END(frames)
    ALIGNED(nested_frames) "push %rbp\nmov %rsp,%rbp\nenter $16,$2\nmov (%rbp),%rax\nsub -8(%rbp),%rax\nleave\npop %rbp\nret\n" END(nested_frames)
    ALIGNED(flags_pushed) "stc\npushf\npop %rax\nand $1,%eax\nret\n" END(flags_pushed)
    ALIGNED(flags_popped) "pushf\norq $0x841,(%rsp)\npopf\nseto %al\nsetz %cl\nadc %cl,%al\nmovzbl %al,%eax\nret\n" END(flags_popped)
    ALIGNED(steps_itself) "pushf\norq $0x100,(%rsp)\npopf\nmov $1,%eax\nadd %rdi,%rax\npushf\nandq $-0x101,(%rsp)\npopf\nadd $1,%rax\nret\n" END(steps_itself)
    ALIGNED(pushes_stack_pointer) "push %rsp\npop %rax\nsub %rsp,%rax\nret\n" END(pushes_stack_pointer)
    ALIGNED(pops_stack_pointer) "mov %rsp,%rax\npush %rsp\npop %rsp\nsub %rsp,%rax\nret\n" END(pops_stack_pointer)
    ALIGNED(pops_to_stack) "push %rdi\npush $5\npop (%rsp)\npush (%rsp)\npop -16(%rsp)\npop %rax\nret\n" END(pops_to_stack)
    ALIGNED(own_address) "call 15f\n15: pop %rax\nlea 15b(%rip),%rcx\nsub %rcx,%rax\nret\n" END(own_address)
    ALIGNED(pops_arguments) "mov 8(%rsp),%rax\nadd 16(%rsp),%rax\nret $16\n" END(pops_arguments)
    ".p2align 4\nuse_pops_arguments: push %rdi\npush %rsi\ncall pops_arguments\nret\n"
    ALIGNED(far_return) "pop %rcx\nmov %cs,%eax\npush %rax\npush %rcx\nmov $8,%eax\nlretq\n" END(far_return)
    ALIGNED(interrupt_return) "pop %rdx\nmov %rsp,%rcx\nmov %ss,%eax\npush %rax\npush %rcx\npushf\nmov %cs,%eax\npush %rax\npush %rdx\nmov $9,%eax\niretq\n" END(interrupt_return)
    /* the processor */
    ALIGNED(translates) "push %rbx\nmov %rdi,%rbx\nmov %esi,%eax\nxlat\nmovzbl %al,%eax\npop %rbx\nret\n" END(translates)
    ALIGNED(identifies) "push %rbx\nxor %eax,%eax\nxor %ecx,%ecx\ncpuid\nmov %ebx,%eax\npop %rbx\nret\n" END(identifies)
    ALIGNED(time_stamp) "rdtsc\nshl $32,%rdx\nor %rdx,%rax\nret\n" END(time_stamp)
    ALIGNED(time_stamp_ordered) "rdtscp\nshl $32,%rdx\nor %rdx,%rax\nret\n" END(time_stamp_ordered)
    ALIGNED(processor_number) ".byte 0xf3,0x0f,0xc7,0xf8\nand $0xfff,%eax\nret\n" END(processor_number)           /* rdpid rax */
    ALIGNED(saves_fx) "movq %rsi,%xmm5\nfxsave64 (%rdi)\npxor %xmm5,%xmm5\nfxrstor64 (%rdi)\nmovq %xmm5,%rax\nret\n" END(saves_fx)
    ALIGNED(saves_extended) "movq %rsi,%xmm5\nmov $7,%eax\nxor %edx,%edx\nxsave64 (%rdi)\npxor %xmm5,%xmm5\nmov $7,%eax\nxrstor64 (%rdi)\nmovq %xmm5,%rax\nret\n" END(saves_extended)
    ALIGNED(x87_environment) "fldpi\nfnstenv (%rdi)\nfstp %st\nfldenv (%rdi)\nffree %st\nfincstp\nfnclex\nfninit\nmovzwl (%rdi),%eax\nret\n" END(x87_environment)
    ALIGNED(x87_state) "fldpi\nfnsave (%rdi)\nfld1\nfrstor (%rdi)\nfldpi\nfsubp\nfistpl (%rdi)\nfninit\nmov (%rdi),%eax\nret\n" END(x87_state)
    ALIGNED(string_compare) "movdqu (%rdi),%xmm0\npcmpistri $0x18,(%rsi),%xmm0\nmov %ecx,%eax\nret\n" END(string_compare)
    ALIGNED(compares_explicit) "mov $16,%eax\nmov $16,%edx\nvmovdqu (%rdi),%xmm0\nvpcmpestri $0x18,(%rsi),%xmm0\nmov %ecx,%eax\nret\n" END(compares_explicit)
    ALIGNED(clears_upper) "vpcmpeqd %ymm3,%ymm3,%ymm3\nvzeroupper\nvextracti128 $1,%ymm3,%xmm4\nvmovq %xmm4,%rax\nvmovq %xmm3,%rcx\nadd %rcx,%rax\nret\n" END(clears_upper)
    ALIGNED(gathers) "vmovdqu (%rsi),%ymm1\nvpcmpeqd %ymm2,%ymm2,%ymm2\nvpxor %ymm0,%ymm0,%ymm0\nvpgatherqq %ymm2,(%rdi,%ymm1,8),%ymm0\nvextracti128 $1,%ymm0,%xmm1\n"
    "vpaddq %xmm1,%xmm0,%xmm0\nvpextrq $1,%xmm0,%rcx\nvmovq %xmm0,%rax\nadd %rcx,%rax\nvzeroupper\nret\n" END(gathers)
    ALIGNED(masked) "mov $0xa5,%eax\nkmovw %eax,%k3\nvmovdqu64 (%rdi),%zmm17{%k3}{z}\nvpaddq %zmm17,%zmm17,%zmm17{%k3}\nvmovdqu64 %zmm17,(%rsi){%k3}\nvpaddq (%rdi){1to8},%zmm17,%zmm18\n"
    "vmovq %xmm18,%rax\nvzeroupper\nret\n" END(masked)
#ifndef __PIE__
    ".pushsection .rodata\n.p2align 3\nabsolute_table: .quad 16f, 17f, 18f\n.popsection\n"
    ALIGNED(jumps_table) "cmp $2,%rdi\nja 18f\njmp *absolute_table(,%rdi,8)\n16: mov $30,%eax\nret\n17: mov $31,%eax\nret\n18: mov $32,%eax\nret\n" END(jumps_table)
    ".pushsection .data\n.p2align 3\noffset_word: .quad 77\n.popsection\n"
    ALIGNED(absolute_offsets) "movabs offset_word,%rax\nmov offset_word,%ecx\nsub %rcx,%rax\nret\n" END(absolute_offsets)
#endif
    ".p2align 4\n");
long use_pops_arguments(long, long);

enum { BIG = 70000 };
struct own { /* what one thread works on */
    _Alignas(64) unsigned char extended[16384];
    char from[BIG + 64], to[BIG + 64];
    _Alignas(16) long pair[4];
    long gs[2], last;
};

/* How long the instruction is that the thread now means to fault at: the handler goes on behind it. */
static __thread int skipped = -1, steps;
static void on_fault(int signal, siginfo_t *info, void *context) {
    if (signal == SIGTRAP && info->si_code == TRAP_TRACE) { steps++; return; } /* of patches, too */
    check(skipped >= 0, "a fault that nobody meant");
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += skipped;
    skipped = -1;
}
#define FAULTING(of, length, holds) skipped = length; USE(of, holds); check(skipped == -1, #of " did not fault")

#define OF(of) if (of##_tally.name)
#define USE(of, holds) OF(of) { COUNTED(of, check(holds, #of)); }

static void use_strings(struct own *me, long x) {
    memset(me->to, 0, sizeof me->to);
    USE(moves, moves((long)me->to, me->from, (long)BIG) == 0 && !memcmp(me->to, me->from, BIG));
    USE(moves_back, moves_back((long)me->to + BIG + 8, me->from + BIG, (long)BIG + 1) == 0 && !memcmp(me->to + 8, me->from, BIG));
    USE(compares, compares((long)me->to + 8, me->from, (long)BIG) == 0);
    USE(stores, stores((long)me->to, x, BIG / 8L) == 0 && ((long *)me->to)[BIG / 8 - 1] == x);
    me->to[BIG - 5] = (char)(x + 1 & 127) | (char)128;
    memset(me->to, 0, BIG - 5);
    USE(scans, scans((long)me->to, (x + 1 & 127) | 128, (long)BIG) == 4);
    USE(loads, loads(0, me->from, (long)BIG) == (unsigned char)me->from[BIG - 1]);
}

static void use_control_flow(long x) {
    USE(calls_memory, calls_memory(x) == x + 1);
    USE(calls_register, calls_register(x) == x + 1);
    USE(calls_stack, calls_stack(x) == x + 1);
    USE(calls_stack_indexed, calls_stack_indexed(x) == x + 1);
    OF(callee) { CALLED(callee); RETURNED(callee); } /* five times by those above */
    USE(jumps_register, jumps_register(0) == 21);
    USE(jumps_no_track, jumps_no_track(0) == 10 && jumps_no_track(1) == 11 && jumps_no_track(2) == 12 && jumps_no_track(9) == 12);
#ifndef __PIE__
    USE(jumps_table, jumps_table(0) == 30 && jumps_table(1) == 31 && jumps_table(2) == 32);
    USE(absolute_offsets, absolute_offsets(0) == 0);
#endif
    USE(counts_down, counts_down(0) == 5);
    USE(loops_equal, loops_equal(0) == 4);
    USE(loops_not_equal, loops_not_equal(0) == 4);
    USE(counts_ecx, counts_ecx(0) == 3);
    USE(asks_rcx, asks_rcx(0) == 0 && asks_rcx(1) == 3 && asks_rcx(1L << 32) == 1);
    USE(conditional, conditional(0) == 1 && conditional(1) == 0 && conditional(2) == 2 && conditional(3) == 2);
    FAULTING(own_int3, 0, own_int3(0) == 3);
    FAULTING(own_int3_long, 0, own_int3_long(0) == 3);
    FAULTING(undefined, 2, undefined(0) == 3);
    FAULTING(halts, 1, halts(0) == 3);
    if (no_transaction_tally.name) { FAULTING(no_transaction, 6, no_transaction(0) == 4); }
}

static void use_stack(long x) {
    USE(landing_pads, landing_pads(0) == 7);
    USE(no_operations, no_operations(0) == 1);
    USE(frames, frames(x) == x);
    USE(nested_frames, nested_frames(0) != 1);
    USE(flags_pushed, flags_pushed(0) == 1);
    USE(flags_popped, flags_popped(0) == 3);
    steps = 0;
    USE(steps_itself, steps_itself(x) == x + 2);
    check(steps >= 5, "single steps");
    USE(pushes_stack_pointer, pushes_stack_pointer(0) == 0);
    USE(pops_stack_pointer, pops_stack_pointer(0) == 0);
    USE(pops_to_stack, pops_to_stack(x) == 5);
    USE(own_address, own_address(0) == 0);
    USE(pops_arguments, use_pops_arguments(x, 2 * x) == 3 * x);
    USE(far_return, far_return(0) == 8);
    USE(interrupt_return, interrupt_return(0) == 9);
}

static void use_memory(struct own *me, long x) {
    me->pair[0] = x; me->pair[1] = ~x;
    USE(swaps_sixteen, swaps_sixteen((long)me->pair) == 1 && me->pair[0] == x + 1 && me->pair[1] == ~x);
    USE(reads_fs, reads_fs(0) == 0);
    me->gs[0] = x; me->gs[1] = 5;
    USE(reads_gs, reads_gs(0) == x + 5);
    USE(segment_values, segment_values(0) == 8);
    USE(relative_operands, relative_operands(0) >= 7);
    me->pair[0] = x; me->pair[1] = 9; me->pair[2] = 4;
    USE(locked, locked((long)me->pair) == 9 && me->pair[0] == x + 3 && me->pair[1] == x && me->pair[2] == 5 + (8L << 32));
    USE(fences, fences((long)me->pair) == 4);
}

static void use_processor(struct own *me, long x) {
    unsigned a, b = 0, c, d;
    USE(translates, translates((long)me->from, x & 255) == (unsigned char)me->from[x & 255]);
    __get_cpuid(0, &a, &b, &c, &d);
    USE(identifies, (unsigned)identifies(0) == b);
    OF(time_stamp) { long now; COUNTED(time_stamp, now = time_stamp(0)); check(now > me->last, "time_stamp"); me->last = now; }
    OF(time_stamp_ordered) { long now; COUNTED(time_stamp_ordered, now = time_stamp_ordered(0)); check(now > me->last, "time_stamp_ordered"); me->last = now; }
    USE(processor_number, processor_number(0) < sysconf(_SC_NPROCESSORS_CONF));
    USE(saves_fx, saves_fx((long)me->extended, x) == x);
    memset(me->extended, 0, sizeof me->extended);
    USE(saves_extended, saves_extended((long)me->extended, x) == x);
    USE(x87_environment, x87_environment((long)me->extended) == 0x37f);
    USE(x87_state, x87_state((long)me->extended) == 0);
    USE(system_call, system_call(0) == getpid());
    USE(old_system_call, old_system_call(0) == getpid());
    char left[16] = "the same until g", right[16] = "the same until h";
    USE(string_compare, string_compare((long)left, right) == 15);
    USE(compares_explicit, compares_explicit((long)left, right) == 15);
    USE(clears_upper, clears_upper(0) == -1);
    long words[8] = {x, x + 1, x + 2, x + 3, x + 4, x + 5, x + 6, x + 7}, indices[4] = {7, 0, 2, 1}, out[8] = {0};
    USE(gathers, gathers((long)words, indices) == 4 * x + 10);
    USE(masked, masked((long)words, out) == 3 * x && out[0] == 2 * x && out[1] == 0 && out[7] == 2 * (x + 7) && out[6] == 0);
}

static void *caller(void *argument) {
    struct own *me = aligned_alloc(64, sizeof *me);
    memset(me, 0, sizeof *me);
    for (long i = 0; i < (long)sizeof me->from; i++) me->from[i] = (char)(i * 7 + (long)argument) ;
    check(!syscall(SYS_arch_prctl, ARCH_SET_GS, me->gs), "arch_prctl");
    for (long i = 0; i < rounds_of_each; i++) {
        long x = i + 1000 * (long)argument;
        use_strings(me, x); use_control_flow(x); use_stack(x); use_memory(me, x); use_processor(me, x);
    }
    free(me);
    return 0;
}

static void many_rounds(long n) {
    in_threads(caller, n);
}
static void one_round(void) { many_rounds(20); }

/* Whether a function gets by without a signal: the kernel may be built without the system calls of old, say. */
static int runs(long (*function)(long, ...)) {
    pid_t child = fork();
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        function(0);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    return status == 0;
}

static void on_timer(int signal) { (void)signal; }
static void setup(int argc, char **argv) {
    set_threads(argc, argv);
#define USED(of) USE_TALLY(of);
#define UNUSED(of) of##_tally.name = 0;
    EVERYWHERE(USED) ABSOLUTE(USED) SOMEWHERE(UNUSED)
    unsigned a, b = 0, c = 0, d = 0;
    __get_cpuid_count(7, 0, &a, &b, &c, &d);
#define HAVE(of, condition) if (condition) { of##_tally.name = #of; USE_TALLY(of); }
    HAVE(old_system_call, runs(old_system_call))
    HAVE(no_transaction, !runs(no_transaction)) /* a processor that has none may abort all instead */
    HAVE(processor_number, c & bit_RDPID)
    HAVE(saves_extended, __builtin_cpu_supports("avx"))
    HAVE(clears_upper, __builtin_cpu_supports("avx2"))
    HAVE(gathers, __builtin_cpu_supports("avx2"))
    HAVE(masked, __builtin_cpu_supports("avx512f"))
    HAVE(compares_explicit, __builtin_cpu_supports("avx"))
    struct sigaction action = {0};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &action, 0); sigaction(SIGILL, &action, 0); sigaction(SIGSEGV, &action, 0);
    struct sigaction timer = {0};
    timer.sa_handler = on_timer;
    timer.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &timer, 0);
    struct itimerval every = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &every, 0);
}
