// A parent that is always waiting in vfork for a child which runs for a while in its memory, then execs.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
volatile unsigned long progress;
int main(int argc, char **argv) {
    long turns = atol(argv[1]);
    dprintf(1, "%p\n", (void *)&progress);
    for (;;) {
        pid_t child = vfork();
        if (child == 0) {
            for (long i = 0; i < turns; i++) progress++;
            execl("/bin/true", "true", (char *)0);
            _exit(99);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status) { dprintf(1, "FAILED: %d %x\n", child, status); return 1; }
        dprintf(1, "turn\n");
    }
}
