/* A program with a SIGTRAP handler and int3 instructions of its own. */
#include "protocol.h"
#include <signal.h>
TALLY(trapping);
static volatile long traps;
static void on_trap(int signal) { (void)signal; traps++; }
PROBED int trapping(int x) { asm volatile("int3"); return x + 9; }
static int next;
static void one_round(void) {
    long before = traps;
    int x = ++next;
    COUNTED(trapping, check(trapping(x) == x + 9, "trapping"));
    check(traps == before + 1, "the program's own SIGTRAP handler did not run once");
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; signal(SIGTRAP, on_trap); USE_TALLY(trapping); }
