/* Calls strlen, which libc chooses an implementation of at load time (IFUNC), and nothing else that calls strlen. */
#include "protocol.h"
TALLY(strlen);
static size_t (*volatile length)(const char *) = strlen;
static void one_round(void) {
    for (int i = 0; i < 1000; i++) {
        COUNTED(strlen, check(length("some text") == 9, "strlen"));
    }
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(strlen); }
