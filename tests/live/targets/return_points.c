/* Functions that end in jumps, called from everywhere: directly, by pointers, through others, in loops that join. */
#include "protocol.h"
#include <setjmp.h>
#include <sys/mman.h>
TALLY(ends); TALLY(by_pointer); TALLY(deep); TALLY(joined); TALLY(leaps); TALLY(ping); TALLY(pong); TALLY(from_made);
#define NOINLINE __attribute__((noinline, noclone))
static volatile int spin;
static NOINLINE int goal(int x) { for (int i = 0; i < 50; i++) spin++; return x + 1; }
static NOINLINE int ends(int x) { spin++; return x % 2 ? goal(x) : goal(x + 1); }
static NOINLINE int by_pointer(int x) { spin++; return goal(x + 2); }
static NOINLINE int through(int x) { spin++; return ends(x + 1); } /* jumps to a function that jumps */
static int (*volatile pointer)(int) = by_pointer, (*volatile other)(int) = goal;
static NOINLINE int deep(int x) { if (!x) return goal(7); int r = deep(x - 1); spin++; return x % 2 ? goal(r) : r; }
static NOINLINE int joined(int x) { spin++; return goal(x); }
static NOINLINE int maybe(int x) { int r = x; if (x % 3) r = joined(x); spin += r; return r; } /* goes on there without a call, too */
static jmp_buf out;
static NOINLINE int leap(int x) { if (x % 4 == 0) longjmp(out, 1); return x; }
static NOINLINE int leaps(int x) { spin++; return leap(x); }
static NOINLINE int via(int (*volatile f)(int), int x) { int r = f(x); spin++; return r; }
static NOINLINE int ping(int), pong(int);
static NOINLINE int pong(int x) { spin++; return x ? ping(x - 1) : goal(0); }
static NOINLINE int ping(int x) { spin++; return x ? pong(x - 1) : goal(1); }
static NOINLINE int from_made(int x) { spin++; return goal(x + 9); }
static int (*made)(int); /* code that the program makes, if it has an argument, and that calls from_made */
static int next;
static void one_round(void) {
    int x = ++next & 0xfff;
    CALLED(ends); check(ends(x) == (x % 2 ? x + 1 : x + 2), "ends"); TAILED(ends);
    CALLED(ends); check(through(x) == (x % 2 ? x + 3 : x + 2), "through"); TAILED(ends);
    CALLED(by_pointer); check(pointer(x) == x + 3, "by_pointer"); TAILED(by_pointer);
    check(other(x) == x + 1, "other");
    for (int i = 0; i <= x % 5; i++) { CALLED(deep); if (i == 0 || i % 2) TAILED(deep); else RETURNED(deep); }
    check(deep(x % 5) > 0, "deep");
    if (x % 3) { CALLED(joined); TAILED(joined); }
    check(maybe(x) == (x % 3 ? x + 1 : x), "joined");
    CALLED(leaps);
    if (setjmp(out) == 0) { check(leaps(x) == x, "leaps"); TAILED(leaps); }
    if (made) { CALLED(from_made); check(made(x) == x + 10, "made"); TAILED(from_made); }
    CALLED(leaps);
    if (setjmp(out) == 0) { check(via(leaps, x) == x, "leaps"); TAILED(leaps); }
    check(via(goal, x) == x + 1, "via"); /* comes back to where a call that was left would have */
    for (int i = 0; i <= x % 7; i++) { CALLED(ping); CALLED(pong); TAILED(ping); TAILED(pong); }
    check(ping(1 + x % 7 * 2) == 1, "ping");
}
static void setup(int argc, char **argv) {
    (void)argv;
    USE_TALLY(ends); USE_TALLY(by_pointer); USE_TALLY(deep); USE_TALLY(joined); USE_TALLY(leaps); USE_TALLY(ping); USE_TALLY(pong); USE_TALLY(from_made);
    if (argc < 2) return;
    unsigned char code[] = {0x48, 0x83, 0xec, 8, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0xc3};
    int (*called)(int) = from_made; /* sub rsp, 8; mov rax, called; call rax; add rsp, 8; ret */
    memcpy(code + 6, &called, sizeof called);
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(page != MAP_FAILED, "mmap");
    memcpy(page, code, sizeof code);
    memcpy(&made, &page, sizeof made);
}
