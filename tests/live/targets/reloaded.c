/* A library that comes and goes; LIBRARY is its path. */
#include "protocol.h"
#include <dlfcn.h>
static void *library;
static long (*inside)(long);
static void load(void) {
    library = dlopen(getenv("LIBRARY"), RTLD_NOW);
    check(library != 0, "dlopen");
    inside = (long (*)(long))dlsym(library, "inside_library");
    check(inside != 0, "dlsym");
}
static void one_round(void) {
    static int rounds;
    if (rounds == 2) { check(!dlclose(library), "dlclose"); library = 0; }
    if (rounds == 4) load();
    for (long n = 0; library && n < 10; n++) check(inside(n) == n * 5 + 1, "inside_library");
    rounds++;
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; load(); }
