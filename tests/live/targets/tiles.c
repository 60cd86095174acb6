/* AMX's tiles are in use all the time, across calls of probed functions and whatever stops the thread between them: their
 * 8 KiB are part of its state. Where the processor or the kernel has none, the same calls are made without. */
#include "protocol.h"
#include <immintrin.h>
#include <sys/syscall.h>
#define REQUEST_PERMISSION 0x1023
#define TILE_DATA 18
#define TILED __attribute__((target("amx-tile,amx-int8")))
TALLY(multiplied); TALLY(beside);
static struct { unsigned char palette, start_row, reserved[14]; unsigned short columns[16]; unsigned char rows[16]; } shape;
static signed char left[1024], right[1024];
static int product[256], have_tiles;
static long next;
PROBED TILED int multiplied(int x) {
    if (have_tiles) { _tile_zero(0); _tile_dpbssd(0, 1, 2); }
    return x * 3;
}
PROBED int beside(int x) { volatile int y = x; return y + 7; }
TILED static void load(void) {
    shape.palette = 1;
    for (int i = 0; i < 3; i++) { shape.columns[i] = 64; shape.rows[i] = 16; }
    for (int i = 0; i < 1024; i++) { left[i] = (signed char)(i * 7); right[i] = (signed char)(i * 13); }
    _tile_loadconfig(&shape);
    _tile_loadd(1, left, 64);
    _tile_loadd(2, right, 64);
}
TILED static void store(int *to) { _tile_stored(0, to, 64); }
static void one_round(void) {
    int found[256], x = (int)++next;
    COUNTED(multiplied, check(multiplied(x) == x * 3, "multiplied"));
    for (int i = 0; i < 20; i++) { COUNTED(beside, check(beside(i) == i + 7, "beside")); }
    if (have_tiles) { store(found); check(!memcmp(found, product, sizeof found), "the tiles have changed"); }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    have_tiles = !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
    if (have_tiles) { load(); multiplied(1); store(product); }
    USE_TALLY(multiplied); USE_TALLY(beside);
}
