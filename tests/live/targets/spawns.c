/* vfork, posix_spawn, system() and popen, for a run in which everything in libc is probed. */
#include "protocol.h"
#include <spawn.h>
#include <sys/wait.h>
extern char **environ;
TALLY(spawned);
PROBED int spawned(int x) { volatile int y = x; return y + 1; }
static int vfork_exit(int code) { /* the parent's frame is shared: nothing but exec or _exit happens in the child */
    pid_t p = vfork();
    if (!p) { char *a[] = {(char *)"sh", (char *)"-c", (char *)(code ? "exit 3" : "exit 0"), 0}; execve("/bin/sh", a, environ); _exit(99); }
    int status = -1;
    check(p > 0 && waitpid(p, &status, 0) == p, "vfork");
    return WEXITSTATUS(status);
}
static void one_round(void) {
    int status = -1;
    pid_t p;
    char *argv[] = {(char *)"true", 0}, line[32] = "";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, 1, 5);
    check(!posix_spawn(&p, "/bin/true", &actions, 0, argv, environ), "posix_spawn");
    posix_spawn_file_actions_destroy(&actions);
    check(waitpid(p, &status, 0) == p && !status, "posix_spawn's child");
    check(vfork_exit(1) == 3 && vfork_exit(0) == 0, "vfork's child");
    check(WEXITSTATUS(system("exit 5")) == 5, "system");
    FILE *f = popen("echo through a pipe", "r");
    check(f && fgets(line, sizeof line, f) && !strcmp(line, "through a pipe\n"), "popen");
    check(pclose(f) == 0, "pclose");
    COUNTED(spawned, check(spawned(1) == 2, "spawned"));
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(spawned); }
