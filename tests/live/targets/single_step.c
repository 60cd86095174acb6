/* An oracle: runs a program one instruction at a time and says how often each in a range was come to.
 * Arguments: the file, low and high (hexadecimal), the program and its arguments; "address count" lines in a file. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    unsigned long low = strtoul(argv[2], 0, 16), high = strtoul(argv[3], 0, 16), before = 0;
    unsigned *seen = calloc(high - low, sizeof *seen);
    pid_t child = fork();
    int status;
    if (!child) {
        personality(ADDR_NO_RANDOMIZE);
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execv(argv[4], argv + 4);
        _exit(127);
    }
    waitpid(child, &status, 0);
    for (; WIFSTOPPED(status); waitpid(child, &status, 0)) {
        struct user_regs_struct r;
        if (WSTOPSIG(status) != SIGTRAP || ptrace(PTRACE_GETREGS, child, 0, &r)) return 2;
        if (r.rip >= low && r.rip < high) {
            /* a rep stops after each round: that is no new arrival */
            unsigned long word = r.rip == before ? (unsigned long)ptrace(PTRACE_PEEKTEXT, child, r.rip, 0) : 0;
            if ((word & 0xfe) != 0xf2) seen[r.rip - low]++;
        }
        before = r.rip;
        if (ptrace(PTRACE_SINGLESTEP, child, 0, 0)) return 3;
    }
    FILE *out = fopen(argv[1], "w");
    for (unsigned long i = 0; i < high - low; i++)
        if (seen[i]) fprintf(out, "%lx %u\n", low + i, seen[i]);
    fclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
    (void)argc;
}
