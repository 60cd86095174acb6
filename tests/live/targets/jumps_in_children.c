/* Calls a function of a library (-DLIBRARY), which ends in a jump: in a process, once a line is read; and after another
   one in two fork children. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef LIBRARY
__attribute__((noipa)) long jumped_to(long x) { return x + 1; }
__attribute__((noipa)) long jumps(long x) { return jumped_to(x + 1); }
#else
long jumps(long);
__attribute__((noipa)) static void calls(int n) {
    for (volatile int i = 0; i < n; i++) jumps(i);
}
int main(void) {
    for (int c; (c = getchar()) == 'p';) calls(100);
    for (int child = 0; child < 2; child++) {
        if (!fork()) {
            calls(1000);
            _exit(0);
        }
        wait(0);
    }
    puts("done");
    return 0;
}
#endif
