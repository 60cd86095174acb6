// A thread that holds AMX's tiles ("held"), or has used and released them ("released"), and vector registers, and checks
// them for ever. Answers "ok" to a byte on stdin; says "no" where there are no tiles.
#include <cpuid.h>
#include <immintrin.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned char config[64] __attribute__((aligned(64))), tile[1024], seen[1024], vector[32], after[32];
static void fail(const char *what) { write(1, what, strlen(what)); _exit(1); }

int main(int argc, char **argv) {
    unsigned a, b, c, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1 << 24) || syscall(SYS_arch_prctl, 0x1023, 18)) {
        write(1, "no\n", 3);
        return 0;
    }
    config[0] = 1;                          /* palette */
    config[16] = 64; config[48] = 16;       /* tile 0: 16 rows of 64 bytes */
    for (int i = 0; i < 1024; i++) tile[i] = (unsigned char)(i * 7 + 1);
    for (int i = 0; i < 32; i++) vector[i] = (unsigned char)(i + 1);
    _tile_loadconfig(config);
    _tile_loadd(0, tile, 64);
    if (argv[argc - 1][0] == 'r') _tile_release();
    write(1, "ready\n", 6);
    for (;;) {
        asm volatile("vmovdqu (%0), %%ymm7\n mov $100000, %%ecx\n1: dec %%ecx\n jnz 1b\n vmovdqu %%ymm7, (%1)\n"
                     ::"r"(vector), "r"(after) : "ecx", "ymm7", "memory");
        if (memcmp(vector, after, 32)) fail("FAILED: vector registers\n");
        if (argv[argc - 1][0] != 'r') {
            _tile_stored(0, seen, 64);
            if (memcmp(tile, seen, 1024)) fail("FAILED: tiles\n");
        }
        struct pollfd in = {0, POLLIN, 0};
        char byte;
        if (poll(&in, 1, 0) > 0) {
            if (read(0, &byte, 1) < 1) return 0;
            write(1, "ok\n", 3);
        }
    }
}
