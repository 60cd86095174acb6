/* Reading the time stamp counter is a SIGSEGV here: counting has to work, timing has to be refused. */
#include "protocol.h"
#include <sys/prctl.h>
TALLY(work);
PROBED int work(int x) { volatile int y = x * 3; return y + 1; }
static void one_round(void) { for (int i = 0; i < 100; i++) { COUNTED(work, check(work(i) == 3 * i + 1, "work")); } }
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(work);
    prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
}
