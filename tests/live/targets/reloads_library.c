/* Round 1 loads the library of argument 1 and calls it, round 2 unloads it, round 3 loads argument 2, round 4 unloads
 * it, and so on. "calls place ADDRESS" says where the library's function was the last time. */
#include "protocol.h"
#include <dlfcn.h>
TALLY(from_library); TALLY(other); TALLY(place);
static const char *paths[2];
static void *library;
static long rounds;
PROBED long other(long x) { volatile long y = x; return y - 5; }
static void one_round(void) {
    for (long i = 0; i < 10; i++) { COUNTED(other, check(other(i) == i - 5, "other")); }
    if (rounds % 2 == 0) {
        library = dlopen(paths[rounds / 2 % 2], RTLD_NOW);
        check(library != 0, "dlopen");
        long (*from_library)(long) = (long (*)(long))dlsym(library, "from_library");
        place_tally.calls = (long)from_library;
        for (long i = 0; i < 100; i++) { COUNTED(from_library, check(from_library(i) == i * 3 + 1, "from_library")); }
    } else if (library) {
        long (*from_library)(long) = (long (*)(long))dlsym(library, "from_library");
        for (long i = 0; i < 100; i++) { COUNTED(from_library, check(from_library(i) == i * 3 + 1, "from_library")); }
        check(!dlclose(library), "dlclose");
        library = 0;
    }
    rounds++;
}
static void setup(int argc, char **argv) {
    check(argc > 2, "two libraries are needed");
    paths[0] = argv[1], paths[1] = argv[2];
    USE_TALLY(from_library); USE_TALLY(other); USE_TALLY(place);
}
