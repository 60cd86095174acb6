/* Functions with arguments that kprobe events fetch: numbers of all widths, structures, texts, pointers to nothing. */
#include "protocol.h"
TALLY(fetched);
struct inner { int number; const char *name; };
struct outer { char tag; unsigned short bits; struct inner *inner; unsigned char bytes[4]; };
unsigned long known_word = 0x1122334455667788;
PROBED long fetched(struct outer *outer, long negative, const char *text, int four, int five, int six, long seven) {
    CALLED(fetched);
    RETURNED(fetched);
    return negative + four + five + six + seven + (outer ? outer->tag : 0) + (text ? 1 : 0);
}
PROBED long another(long n) { return n + 1; }
static void one_round(void) {
    static struct inner inner = {-5, "inside"};
    static struct outer outer = {'t', 0xabcd, &inner, {1, 2, 3, 254}};
    check(fetched(&outer, -2, "some text", 4, 5, 6, 7) == 20 + 't' + 1, "fetched");
    check(fetched(0, -3, 0, 4, 5, 6, 7) == 19, "fetched with nothing");
    check(another(41) == 42, "another");
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(fetched); }
