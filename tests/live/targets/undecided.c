/* Indirect jumps that stay inside their function or leave it, as the number of the round decides: by a register, by a
 * table that is not known to be one, by a word of the red zone, into a part elsewhere, and back to the entry. */
#include "protocol.h"
TALLY(by_register); TALLY(by_table); TALLY(by_red_zone); TALLY(by_part); TALLY(to_entry); TALLY(second);
int by_register(int), by_table(int), by_red_zone(int), by_part(int), to_entry(int), second(int);
#define CHOOSE "lea second(%rip),%rdx\nlea 1f(%rip),%rax\ntest $1,%edi\ncmovnz %rdx,%rax\n"
asm(".section .text.unlikely,\"ax\",@progbits\n.type by_part.cold,@function\nby_part.cold:\n.cfi_startproc\n"
    "js by_part_back\n.Lin_part: lea 4(%rdi),%eax\nret\n.cfi_endproc\n.size by_part.cold,.-by_part.cold\n.text\n"
    ".p2align 6\n"
    FUNCTION(second) "lea 1(%rdi),%eax\nret\n" END(second)
    ".p2align 6\n"
    FUNCTION(by_register) CHOOSE "jmp *%rax\n1: lea 2(%edi),%eax\nret\n" END(by_register)
    ".p2align 6\n"
    FUNCTION(by_table) "mov %edi,%ecx\nand $1,%ecx\nlea either(%rip),%rdx\njmp *(%rdx,%rcx,8)\n.Lin_table: lea 3(%rdi),%eax\nret\n" END(by_table)
    ".p2align 6\n"
    FUNCTION(by_red_zone) CHOOSE "mov %rax,-16(%rsp)\njmp *-16(%rsp)\n1: mov -16(%rsp),%rcx\nlea 5(%rdi),%eax\ncmp %rcx,%rax\nret\n" END(by_red_zone)
    ".p2align 6\n"
    FUNCTION(by_part) "test %edi,%edi\njs by_part.cold\nby_part_back: lea second(%rip),%rdx\nlea .Lin_part(%rip),%rax\ntest $1,%edi\n"
    "cmovnz %rdx,%rax\njmp *%rax\n" END(by_part)
    ".p2align 6\n"
    FUNCTION(to_entry) "lea 6(%rdi),%eax\nlea to_entry(%rip),%rcx\nlea 1f(%rip),%rdx\ntest $1,%edi\ncmovnz %rcx,%rdx\nlea 1(%rdi),%edi\n"
    "jmp *%rdx\n1: nopl 0(%rax,%rax,1)\nret\n" END(to_entry)
    ".p2align 6\n.data\neither: .quad .Lin_table, second\n.text\n");
static int next;
#define EITHER(name, more) CALLED(name); check(name(x) == x + (odd ? 1 : more), #name); \
    if (odd) { CALLED(second); TAILED(name); } RETURNED(odd ? &second_tally : &name##_tally)
#undef RETURNED
#define RETURNED(tally) __atomic_fetch_add(&(tally)->returns, 1, __ATOMIC_RELAXED)
#undef TAILED
#define TAILED(name) (RETURNED(&name##_tally), __atomic_fetch_add(&name##_tally.tails, 1, __ATOMIC_RELAXED))
static void one_round(void) {
    int x = ++next & 0xffff, odd = x & 1;
    EITHER(by_register, 2); EITHER(by_table, 3); EITHER(by_red_zone, 5); EITHER(by_part, 4);
    CALLED(to_entry); check(to_entry(x) == x + odd + 6, "to_entry"); RETURNED(&to_entry_tally);
    if (odd) { CALLED(to_entry); TAILED(to_entry); }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(by_register); USE_TALLY(by_table); USE_TALLY(by_red_zone); USE_TALLY(by_part); USE_TALLY(to_entry); USE_TALLY(second);
}
