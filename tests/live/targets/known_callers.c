/* Calls from one place that is known, as soon as anything runs; the last function is left by a jump. */
#include <unistd.h>

__attribute__((noipa)) int leaf(int n) { return n + 1; }
__attribute__((noipa)) int inner(int n) { usleep(300); return n; }
__attribute__((noipa)) int parse(int n) { inner(n); return leaf(n); }
__attribute__((noipa)) int dispatch(int n) { return parse(n) * 3; }

int main(void) {
    for (int n = 0;;) n = dispatch(n) & 1023;
}
