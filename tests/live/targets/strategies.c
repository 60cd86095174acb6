/* One function for each way to reach a patch: docs/strategies.md shows their bytes. */
#include "protocol.h"
TALLY(by_retarget); TALLY(by_one); TALLY(by_several); TALLY(by_pun); TALLY(by_padding); TALLY(by_short); TALLY(by_nesting); TALLY(by_eviction); TALLY(by_next_byte); TALLY(by_row); TALLY(by_behind); TALLY(by_arrival); TALLY(by_ways);
int by_retarget(int), by_one(int), by_several(int), by_pun(int), by_padding(int, int), by_short(int), by_nesting(int), by_eviction(int), by_next_byte(int), by_row(int), by_behind(int), by_arrival(int), by_ways(int), called(int);
#define NEARBY "xor %edx,%edx\nmovabs $0x1122334455667788,%rax\n" FAR
#define FAR ".rept 20\nlea 0x12345(%rdi),%ecx\nnopl (%rax)\n.endr\n"
/* bytes that nothing leads to, which are never written; as the end of a displacement they lead nowhere */
#define HELD(times) ".rept " #times "\nint $0x84\n.endr\nud2\n"
#define ALIGNED(name) ".p2align 6\n" FUNCTION(name)
asm(ALIGNED(called) "lea 1(%rdi),%eax\nret\n" END(called)
    ALIGNED(by_retarget) "sub $8,%rsp\ncall called\nadd $8,%rsp\nret\n" END(by_retarget)
    ALIGNED(by_one) "mov $1,%eax\nadd %edi,%eax\nret\n" END(by_one)
    ALIGNED(by_several) "push %rbx\nmov %edi,%ebx\nxor %eax,%eax\nadd %ebx,%eax\npop %rbx\nret\n" END(by_several)
    /* the loop comes back right behind the first two bytes */
    ALIGNED(by_pun) "xor %eax,%eax\n1: add %edi,%eax\ndec %edi\njne 1b\nret\n" END(by_pun)
    /* as they stand the four bytes behind e9 lead nowhere: with a prefix, they begin one later */
    ALIGNED(by_padding) "lea 1(%rdi),%eax\n2: sub %esi,%eax\ninc %esi\njs 2b\nret\n" END(by_padding)
    /* two bytes between two labels, and what follows leads a borrowing jump nowhere; the padding is near */
    ALIGNED(by_short) "xor %edx,%edx\n3: xor %eax,%eax\n4: mov %eax,%eax\nmov %eax,%eax\nadd $1,%eax\ncmp %edi,%eax\njl 4b\nadd $1,%edx\ncmp %edi,%edx\njl 3b\nret\n" END(by_short)
    /* the same, and no padding within reach of a short jump */
    ALIGNED(by_nesting) NEARBY "5: xor %eax,%eax\n6: mov %eax,%eax\nmov %eax,%eax\nadd $1,%eax\ncmp %edi,%eax\njl 6b\nadd $1,%edx\ncmp %edi,%edx\njl 5b\n" FAR "ret\n" END(by_nesting)
    ALIGNED(by_eviction) NEARBY "5: xor %eax,%eax\n6: mov %eax,%eax\nmov %eax,%eax\nadd $1,%eax\ncmp %edi,%eax\njl 6b\nadd $1,%edx\ncmp %edi,%edx\njl 5b\n" FAR "ret\n" END(by_eviction)
    ALIGNED(by_next_byte) "mov $7,%eax\nand $3,%edi\n.byte 0x0f,0x84\n.long 7f-.-4\ncmp $2,%edi\nje 8f\n.byte 0xe9\n.long 7f-.-4\n7: ret\n8: mov $8,%eax\njmp 7b\n" END(by_next_byte)
    /* one byte, no room nearby, and what follows as it is leads a borrowing jump nowhere */
    ALIGNED(by_row) "mov $7,%eax\ntest %edi,%edi\nje 1f\njmp 2f\n" HELD(64) "1: ret\n2: xor %eax,%eax\n3: mov -0x10(%rsp),%rdx\nmov $8,%eax\ntest %edi,%edi\nje 3b\nret\n" HELD(64) END(by_row)
    ALIGNED(by_behind) "mov $7,%eax\ntest %edi,%edi\nje 1f\njmp 2f\n" HELD(64) "1: ret\n2: mov $8,%eax\nret\n" HELD(64) END(by_behind)
    /* the same bytes, and now what is behind has no room either: there are the ways that lead there */
    ALIGNED(by_arrival) "mov %edi,%eax\ntest %edi,%edi\njne 1f\nret\n" HELD(64) "1: cltd\njmp 2f\n" HELD(61) "2: sub %edx,%eax\nret\n" END(by_arrival)
    ALIGNED(by_ways) "mov $7,%eax\ntest %edi,%edi\njne 1f\nmov $8,%eax\njmp 1f\n" HELD(64) "1: ret\n" HELD(64) END(by_ways)
    ".p2align 6\n");
static int next;
static void one_round(void) {
    int x = ++next & 7;
    COUNTED(by_retarget, check(by_retarget(x) == x + 1, "by_retarget"));
    COUNTED(by_one, check(by_one(x) == x + 1, "by_one"));
    COUNTED(by_several, check(by_several(x) == x, "by_several"));
    COUNTED(by_pun, check(by_pun(4) == 10, "by_pun"));
    COUNTED(by_padding, check(by_padding(x, -2) == x + 4, "by_padding"));
    COUNTED(by_short, check(by_short(3) == 3, "by_short"));
    COUNTED(by_nesting, check(by_nesting(3) == 3, "by_nesting"));
    COUNTED(by_eviction, check(by_eviction(3) == 3, "by_eviction"));
    COUNTED(by_next_byte, check(by_next_byte(x) == ((x & 3) == 2 ? 8 : 7), "by_next_byte"));
    COUNTED(by_row, check(by_row(0) == 7 && by_row(x | 1) == 8, "by_row"));
    COUNTED(by_behind, check(by_behind(0) == 7 && by_behind(x | 1) == 8, "by_behind"));
    COUNTED(by_arrival, check(by_arrival(x | 1) == (x | 1), "by_arrival"));
    COUNTED(by_ways, check(by_ways(x & 1) == 8 - (x & 1), "by_ways"));
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(by_retarget); USE_TALLY(by_one); USE_TALLY(by_several); USE_TALLY(by_pun); USE_TALLY(by_padding); USE_TALLY(by_short);
    USE_TALLY(by_nesting); USE_TALLY(by_eviction); USE_TALLY(by_next_byte); USE_TALLY(by_row); USE_TALLY(by_behind); USE_TALLY(by_arrival); USE_TALLY(by_ways);
}
