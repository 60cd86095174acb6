/* A program that leaves no room for us; argument 1 says of what. With "moved" its code is in memory without a file. */
#include "protocol.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
TALLY(work);
PROBED long work(long x) { volatile long y = x; return y * 3 + 1; }
static void one_round(void) {
    for (long i = 0; i < 10; i++) { COUNTED(work, check(work(i) == i * 3 + 1, "work")); }
}
static void limit(int what, unsigned long most) {
    struct rlimit limits = {most, most};
    check(setrlimit(what, &limits) == 0, "setrlimit");
}
static void move_code(void) {
    extern char __executable_start[], etext[];
    for (unsigned long at = (unsigned long)__executable_start & -4096UL; at < (unsigned long)etext; at += 4096) {
        char *copy = (char *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(copy != MAP_FAILED, "mmap");
        memcpy(copy, (void *)at, 4096);
        check(!mprotect(copy, 4096, PROT_READ | PROT_EXEC), "mprotect");
        check(mremap(copy, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)at) != MAP_FAILED, "mremap");
    }
}
static void setup(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    USE_TALLY(work);
    if (!strcmp(what, "memory")) {
        long pages = 0;
        FILE *statm = fopen("/proc/self/statm", "r");
        check(statm && fscanf(statm, "%ld", &pages) == 1, "statm");
        fclose(statm);
        limit(RLIMIT_AS, (pages + 2) * 4096);
    } else if (!strcmp(what, "data")) {
        limit(RLIMIT_DATA, 0);
    } else if (!strcmp(what, "files")) {
        limit(RLIMIT_NOFILE, 8);
        while (open("/dev/null", O_RDONLY) >= 0) {}
    } else if (!strcmp(what, "locked")) {
        check(!mlockall(MCL_CURRENT | MCL_FUTURE), "mlockall");
        limit(RLIMIT_MEMLOCK, 1 << 16);
        check(!setuid(65534), "setuid");
        prctl(PR_SET_DUMPABLE, 1);
    } else if (!strcmp(what, "unlimited-locked")) {
        check(!mlockall(MCL_CURRENT | MCL_FUTURE), "mlockall");
    } else if (!strcmp(what, "moved")) {
        move_code();
    }
}
