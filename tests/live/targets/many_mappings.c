/* Makes so many mappings that only a number (argument 1) is left; in each round it makes nearly half of those, too. */
#include <sys/mman.h>
#include "protocol.h"

static long left;
static char text[256], copy[256];

static long count(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    long lines = 0;
    for (int c; (c = getc(maps)) != EOF;) lines += c == '\n';
    fclose(maps);
    return lines;
}

static void one_round(void) {
    memset(text, 'x', sizeof text - 1);
    check(strlen(strcpy(copy, text)) == sizeof text - 1, "strlen");
    void *mine[1024];
    for (long i = 0; i < left / 2 - 16; i++) {
        mine[i] = mmap(0, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(mine[i] != MAP_FAILED, "mmap");
    }
    for (long i = 0; i < left / 2 - 16; i++) munmap(mine[i], 4096);
}

static void setup(int argc, char **argv) {
    FILE *setting = fopen("/proc/sys/vm/max_map_count", "r");
    long most = 0;
    check(argc == 2 && fscanf(setting, "%ld", &most) == 1, "vm.max_map_count");
    fclose(setting);
    left = atol(argv[1]);
    char *all = mmap(0, most * 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(all != MAP_FAILED, "mmap");
    for (long pages = (most - left - count()) / 2; pages > 0; pages--, all += 8192) mprotect(all, 4096, PROT_READ);
}
