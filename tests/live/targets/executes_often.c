/* Executes itself in children without end, each of which calls work() ten times; until the end of its input.
 *
 * A child that does not do all that it is to do is "harmed". */
#define _GNU_SOURCE
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static volatile int done;

__attribute__((noinline)) void work(void) { done++; }

static int ended_well(pid_t child) {
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 77;
}

int main(int argc, char **argv) {
    char *arguments[] = {argv[0], "child", 0};
    struct pollfd input = {0, POLLIN, 0};
    long rounds = 0;
    pid_t child;
    if (argc > 1) {
        for (int n = 0; n < 10; n++) work();
        return done == 10 ? 77 : 1;
    }
    puts("ready"), fflush(stdout);
    for (; poll(&input, 1, 0) == 0; rounds++) {
        if (!(child = fork())) execv("/nowhere", arguments), execv(argv[0], arguments), _exit(2);
        if (!ended_well(child)) return puts("harmed: fork"), 1;
        if (!(child = vfork())) execve(argv[0], arguments, environ), _exit(2);
        if (!ended_well(child)) return puts("harmed: vfork"), 1;
        if (posix_spawn(&child, argv[0], 0, 0, arguments, environ) || !ended_well(child))
            return puts("harmed: spawn"), 1;
    }
    printf("well %d\n", rounds > 0);
    return 0;
}
