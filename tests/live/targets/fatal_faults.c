/* Instructions that fault, one function each, and nobody who handles it: argument 1 says which function "go" calls. */
#include "protocol.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
TALLY(divides); TALLY(loads); TALLY(unaligned); TALLY(far_away); TALLY(calls_nothing); TALLY(undefined); TALLY(halts);
TALLY(own_int3); TALLY(pops_nothing); TALLY(beyond_file); TALLY(runs_nothing); TALLY(overflows);
#define ALIGNED(name) ".p2align 4\n" FUNCTION(name)
asm(ALIGNED(divides) "mov $1,%eax\ncltd\nidivl (%rdi)\nret\n" END(divides)
    ALIGNED(overflows) "mov $0x80000000,%eax\ncltd\nmov $-1,%ecx\nidiv %ecx\nret\n" END(overflows)
    ALIGNED(loads) "xor %eax,%eax\nmov (%rax),%rax\nret\n" END(loads)
    ALIGNED(unaligned) "mov %rdi,%rax\nor $1,%rax\nmovaps (%rax),%xmm0\nret\n" END(unaligned)
    ALIGNED(far_away) "movabs $0x8000000000000000,%rax\nmov (%rax),%al\nret\n" END(far_away)
    ALIGNED(calls_nothing) "push %rbx\nxor %ebx,%ebx\ncall *%rbx\npop %rbx\nret\n" END(calls_nothing)
    ALIGNED(runs_nothing) "xor %eax,%eax\njmp *%rax\n" END(runs_nothing)
    ALIGNED(undefined) "mov $1,%eax\nud2\nret\n" END(undefined)
    ALIGNED(halts) "mov $1,%eax\nhlt\nret\n" END(halts)
    ALIGNED(own_int3) "mov $1,%eax\nint3\nret\n" END(own_int3)
    ALIGNED(pops_nothing) "mov %rsp,%rax\nxor %esp,%esp\npop %rcx\nmov %rax,%rsp\nret\n" END(pops_nothing)
    ALIGNED(beyond_file) "mov %rsi,%rax\nmov (%rax),%al\nret\n" END(beyond_file)
    ".p2align 4\n");
#define ALL(X) X(divides) X(loads) X(unaligned) X(far_away) X(calls_nothing) X(undefined) X(halts) X(own_int3) X(pops_nothing) \
    X(beyond_file) X(runs_nothing) X(overflows)
#define DECLARE(of) void of(int *, char *);
ALL(DECLARE)
static void (*chosen)(int *, char *);
static int zero;
static char *beyond;
static void one_round(void) { chosen(&zero, beyond); }
static void setup(int argc, char **argv) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    FILE *file = tmpfile();
    beyond = mmap(0, 4096, PROT_READ, MAP_SHARED, fileno(file), 0);
#define CHOOSE(of) if (argc > 1 && !strcmp(argv[1], #of)) chosen = of;
    ALL(CHOOSE)
    USE_TALLY(divides);
}
