/* The first round sets a SIGTRAP handler, or loads the library that argument 1 names. */
#include "protocol.h"
#include <dlfcn.h>
#include <signal.h>
TALLY(loaded);
long loaded(long);
asm(".p2align 4\n" FUNCTION(loaded) "mov $7,%eax\nadd %rdi,%rax\nret\n" END(loaded) ".p2align 4\n");
static volatile long traps;
static const char *library;
static int settled;
static void on_trap(int signal) { (void)signal; traps++; }
static void one_round(void) {
    if (!settled++ && library) check(dlopen(library, RTLD_NOW) != 0, "dlopen");
    else if (settled == 1) signal(SIGTRAP, on_trap);
    long before = traps;
    if (!library) { raise(SIGTRAP); check(traps == before + 1, "a SIGTRAP of the program's own was lost"); }
    COUNTED(loaded, check(loaded(3) == 10, "loaded"));
}
static void setup(int argc, char **argv) { if (argc > 1) library = argv[1]; USE_TALLY(loaded); }
