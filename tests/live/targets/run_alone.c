/* A program that needs nobody: seven calls, one line of output, exit status 42. */
#include <stdio.h>
__attribute__((noinline, noclone, noipa)) long plain(long x) { volatile long y = x; return y * 13; }
int main(void) {
    long sum = 0;
    for (long i = 0; i < 7; i++) sum += plain(i);
    printf("sum %ld\n", sum);
    return sum == 13 * 21 ? 42 : 1;
}
