/* Calls into libc: functions resolved by IFUNC (memcpy, strlen), a versioned one, and one with several names. */
#include "protocol.h"
TALLY(memcpy); TALLY(strlen); TALLY(getenv);
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static size_t (*volatile length)(const char *) = strlen;
static char *(*volatile variable)(const char *) = getenv;
static void one_round(void) {
    char from[64] = "some bytes to copy", to[64];
    for (int i = 0; i < 1000; i++) {
        COUNTED(memcpy, copy(to, from, 20));
        COUNTED(strlen, check(length(to) == 18, "strlen"));
        COUNTED(getenv, variable("PATH"));
    }
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(memcpy); USE_TALLY(strlen); USE_TALLY(getenv); }
