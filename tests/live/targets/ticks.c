/* A call each millisecond, by the clock, as long as it is there. */
#include <time.h>

__attribute__((noipa)) int step(int n) { return n + 1; }
__attribute__((noipa)) int tick(int n) { return step(n) + 1; }

int main(void) {
    int n = 0;
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (;;) {
        n = tick(n) & 1023;
        next.tv_nsec += 1000000;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, 0);
    }
}
