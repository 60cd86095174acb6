/* Hand-written functions that run on into the next one, jump into another one's middle, or to one of several copies. */
#include "protocol.h"
TALLY(checked); TALLY(copying); TALLY(too_long); TALLY(owner); TALLY(borrower); TALLY(dispatch); TALLY(elsewhere);
long checked(long, long), copying(long, long), too_long(long, long), owner(long), borrower(long), dispatch(long), elsewhere(long);

asm(".p2align 4\n"
    FUNCTION(too_long) "mov $-1,%rax\nret\n" END(too_long)
    ".p2align 4\n"
    FUNCTION(checked) "cmp %rsi,%rdi\n ja too_long\n" END(checked)
    ".p2align 4\n"
    FUNCTION(copying) "lea (%rdi,%rsi),%rax\nadd $1,%rax\nret\n" END(copying)
    ".p2align 4\n"
    FUNCTION(owner) "lea 1(%rdi),%rdi\n.Lshared: lea 5(%rdi),%rax\nimul $3,%rax\nret\n" END(owner)
    ".p2align 4\n"
    FUNCTION(borrower) "lea 2(%rdi),%rdi\njmp .Lshared\n" END(borrower)
    ".p2align 4\n"
    FUNCTION(dispatch) "and $3,%edi\nlea .Lcopies(%rip),%rdx\nshl $4,%edi\nadd %rdx,%rdi\njmp *%rdi\n.p2align 4\n"
    ".Lcopies: mov $10,%eax\nret\n.p2align 4\nmov $20,%eax\nret\n.p2align 4\nxor %eax,%eax\nret\n.p2align 4\n"
    "mov $40,%eax\nret\n" END(dispatch)
    ".p2align 4\n"
    FUNCTION(elsewhere) "cmp $2,%edi\nja .Lother\nmov %edi,%edi\nlea .Ltable(%rip),%rdx\n"
    "movslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n"
    ".Lone: mov $1,%eax\nret\n.Ltwo: mov $2,%eax\nret\n.Lother: xor %eax,%eax\nret\n" END(elsewhere)
    ".p2align 4\n.section .rodata\n.p2align 2\n"
    ".Ltable: .long .Lone-.Ltable, too_long-.Ltable, .Ltwo-.Ltable\n.text\n");

static void one_round(void) {
    static const long copies[] = {10, 20, 0, 40}, elsewheres[] = {1, -1, 2, 0};
    for (long i = 0; i < 100; i++) {
        long most = i % 10;
        checked_tally.calls++;
        if (i > most) {
            too_long_tally.calls++;
            if (checked(i, most) != -1) check(0, "checked");
        } else {
            copying_tally.calls++;
            if (checked(i, most) != i + most + 1) check(0, "checked");
        }
        copying_tally.calls++, owner_tally.calls++, borrower_tally.calls++, dispatch_tally.calls++;
        if (copying(i, 2) != i + 3) check(0, "copying");
        if (owner(i) != (i + 6) * 3) check(0, "owner");
        if (borrower(i) != (i + 7) * 3) check(0, "borrower");
        if (dispatch(i) != copies[i & 3]) check(0, "dispatch");
        elsewhere_tally.calls++, too_long_tally.calls += (i & 3) == 1;
        if (elsewhere(i & 3) != elsewheres[i & 3]) check(0, "elsewhere");
    }
}
static void setup(int argc, char **argv) {
    (void)argc, (void)argv;
    USE_TALLY(checked); USE_TALLY(copying); USE_TALLY(too_long); USE_TALLY(owner); USE_TALLY(borrower);
    USE_TALLY(dispatch); USE_TALLY(elsewhere);
}
