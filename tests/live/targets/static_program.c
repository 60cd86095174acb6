/* A program for every way of linking: dynamic, static, PIE or not, stripped, glibc or musl. */
#include "protocol.h"
TALLY(plain); TALLY(through_pointer);
PROBED long plain(long x) { volatile long y = x; return y * 13; }
PROBED long through_pointer(long x) { volatile long y = x; return y + 17; }
static long (*volatile pointer)(long) = through_pointer;
static long next;
static void one_round(void) {
    long x = ++next;
    char *copy = malloc((size_t)(16 + x % 64));
    COUNTED(plain, check(plain(x) == 13 * x, "plain"));
    COUNTED(through_pointer, check(pointer(x) == x + 17, "through_pointer"));
    snprintf(copy, 16, "%ld", x);
    check(atol(copy) == x, "atol");
    free(copy);
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(plain); USE_TALLY(through_pointer); }
