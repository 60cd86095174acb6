/* A program that uses a library by path (argument 1): loaded ordinarily, or mapped shared ("shared"). */
#include "protocol.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
TALLY(from_library);
static long (*from_library)(long);
static void one_round(void) { for (long i = 0; i < 100; i++) { COUNTED(from_library, check(from_library(i) == i * 3 + 1, "from_library")); } }
static void setup(int argc, char **argv) {
    check(argc > 1, "no library named");
    if (argc > 2) { /* the library's code, in a shared mapping of its file */
        int fd = open(argv[1], O_RDONLY);
        void *ordinary = dlopen(argv[1], RTLD_NOW), *symbol = ordinary ? dlsym(ordinary, "from_library") : 0;
        Dl_info where;
        check(symbol && dladdr(symbol, &where), "dlopen");
        unsigned long offset = (unsigned long)((char *)symbol - (char *)where.dli_fbase);
        dlclose(ordinary);
        char *image = mmap(0, 1 << 16, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
        check(image != MAP_FAILED, "mmap");
        from_library = (long (*)(long))(void *)(image + offset);
    } else {
        void *library = dlopen(argv[1], RTLD_NOW);
        check(library != 0, "dlopen");
        from_library = (long (*)(long))dlsym(library, "from_library");
    }
    USE_TALLY(from_library);
}
