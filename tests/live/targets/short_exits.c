/* Exits of one to three bytes between other blocks, which no jump has room for; each is reached from above and by
 * branches of both lengths, conditional and not. */
#include "protocol.h"
TALLY(from_above_and_far); TALLY(only_far); TALLY(two_blocks); TALLY(behind_call); TALLY(called);
int from_above_and_far(int), only_far(int), two_blocks(int), behind_call(int), called(int);
asm(".p2align 6\n"
    FUNCTION(from_above_and_far) "push %rbx\nmov %edi,%eax\ntest $3,%edi\n.byte 0x0f,0x84\n.long 3f-.-4\n" /* je 3f, 6 bytes */
    "test $1,%edi\n.byte 0x0f,0x85\n.long 2f-.-4\n"                                                          /* jne 2f, 6 bytes */
    "add $1000,%eax\n2: pop %rbx\nret\n3: xor $5,%eax\njmp 2b\n" END(from_above_and_far)                    /* jmp 2b, 2 bytes */
    ".p2align 6\n"
    FUNCTION(only_far) "mov $7,%eax\nand $3,%edi\n.byte 0x0f,0x84\n.long 4f-.-4\ncmp $2,%edi\nje 5f\n.byte 0xe9\n.long 4f-.-4\n"
    "4: ret\n5: mov $8,%eax\njmp 4b\n" END(only_far)
    ".p2align 6\n"
    FUNCTION(two_blocks) "push %rbx\ntest $1,%edi\njne 6f\ntest $2,%edi\n.byte 0x0f,0x85\n.long 7f-.-4\nmov $1,%eax\n6: pop %rbx\nret\n"
    "7: mov $2,%eax\npop %rbx\nret\n" END(two_blocks)
    ".p2align 6\n"
    FUNCTION(behind_call) "sub $8,%rsp\ncall called\nadd $8,%rsp\nret\n" END(behind_call)
    ".p2align 6\n"
    FUNCTION(called) "lea 9(%rdi),%eax\nret\n" END(called) ".p2align 6\n");
static int next;
static void one_round(void) {
    int x = ++next & 0xffff;
    COUNTED(from_above_and_far, check(from_above_and_far(x) == (x & 3 ? (x & 1 ? x : x + 1000) : x ^ 5), "from_above_and_far"));
    COUNTED(only_far, check(only_far(x) == ((x & 3) == 2 ? 8 : 7), "only_far"));
    int odd = x & 1;
    COUNTED(two_blocks, check(odd ? (two_blocks(x), 1) : two_blocks(x) == (x & 2 ? 2 : 1), "two_blocks"));
    CALLED(called);
    COUNTED(behind_call, check(behind_call(x) == x + 9, "behind_call"));
    RETURNED(called);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(from_above_and_far); USE_TALLY(only_far); USE_TALLY(two_blocks); USE_TALLY(behind_call); USE_TALLY(called);
}
