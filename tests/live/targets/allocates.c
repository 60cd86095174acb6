/* Allocates by all of the C library's ways in several threads, frees most of it again, and says what is left: by its own
 * record, and by mallinfo2. Argument: threads. A round begins with nothing allocated, and what it leaves is told.
 * calls of "requested", "usable", "blocks" and "arena" are bytes and blocks, not calls. */
#include "protocol.h"
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
TALLY(requested); TALLY(usable); TALLY(blocks); TALLY(arena);
enum { KEPT = 400, STEPS = 1500, MOST = 16 };
struct own { pthread_t thread; void *kept[KEPT]; size_t sizes[KEPT]; unsigned seed; };
static struct own all[MOST];
static int threads = 1;
static pthread_barrier_t begin, end;
static size_t in_use(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}
static void *allocate(unsigned way, size_t size, void *old) {
    void *made = NULL;
    switch (way % 6) {
    case 0: made = malloc(size); break;
    case 1: made = calloc(size / 8 + 1, 8); break;
    case 2: made = realloc(old, size); break;
    case 3: made = memalign(64, size); break;
    case 4: check(posix_memalign(&made, 256, size) == 0, "posix_memalign"); break;
    default: made = aligned_alloc(32, (size + 31) & ~(size_t)31); break;
    }
    check(made != NULL, "no memory");
    return made;
}
static size_t asked(unsigned way, size_t size) {
    return way % 6 == 1 ? (size / 8 + 1) * 8 : way % 6 == 5 ? (size + 31) & ~(size_t)31 : size;
}
static void *work(void *argument) {
    struct own *own = argument;
    for (;;) {
        pthread_barrier_wait(&begin);
        for (int i = 0; i < STEPS; i++) {
            own->seed = own->seed * 1103515245u + 12345u;
            unsigned at = (own->seed >> 8) % KEPT, way = own->seed >> 20;
            size_t size = 1 + (own->seed >> 4) % (way % 97 == 0 ? 300000 : 900);
            if (way % 6 != 2) { free(own->kept[at]); own->kept[at] = NULL; }
            own->kept[at] = allocate(way, size, own->kept[at]);
            own->sizes[at] = asked(way, size);
        }
        pthread_barrier_wait(&end);
    }
    return NULL;
}
static size_t before;
/* Each round begins with nothing; what the last one leaves is told. */
static void one_round(void) {
    for (int i = 0; i < threads; i++)
        for (int at = 0; at < KEPT; at++) { free(all[i].kept[at]); all[i].kept[at] = NULL; }
    before = in_use();
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&end);
    arena_tally.calls = (long)(in_use() - before);
    requested_tally.calls = usable_tally.calls = blocks_tally.calls = 0;
    for (int i = 0; i < threads; i++)
        for (int at = 0; at < KEPT; at++)
            if (all[i].kept[at]) {
                requested_tally.calls += (long)all[i].sizes[at];
                usable_tally.calls += (long)malloc_usable_size(all[i].kept[at]);
                blocks_tally.calls++;
            }
}
static void setup(int argc, char **argv) {
    threads = argc > 1 ? atoi(argv[1]) : 1;
    USE_TALLY(requested); USE_TALLY(usable); USE_TALLY(blocks); USE_TALLY(arena);
    pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&end, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++) {
        all[i].seed = 77u + (unsigned)i * 7919u;
        pthread_create(&all[i].thread, NULL, work, &all[i]);
    }
}
