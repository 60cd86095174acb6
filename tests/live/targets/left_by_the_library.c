/* Calls that the C library leaves itself: names that are not there (a longjmp inside), programs that are spawned, exit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

__attribute__((noipa)) int no_name(void) { return dlsym(RTLD_DEFAULT, "no such name") == 0; }
__attribute__((noipa)) int no_library(void) { return dlopen("/no/such/library.so", RTLD_NOW) == 0; }

__attribute__((noipa)) int spawned(void) {
    char *arguments[] = {"sh", "-c", "sleep 0.2", 0};
    pid_t child;
    int status = 1;
    if (posix_spawnp(&child, "sh", 0, 0, arguments, environ) == 0) waitpid(child, &status, 0);
    return status == 0;
}

__attribute__((noipa)) int not_spawned(void) {
    char *arguments[] = {"none", 0};
    pid_t child;
    return posix_spawnp(&child, "/no/such/program", 0, 0, arguments, environ) != 0;
}

__attribute__((noipa)) int forked(void) {
    int status = 1;
    pid_t child = vfork();
    if (child == 0) {
        execl("/no/such/program", "none", (char *)0);
        _exit(0);
    }
    waitpid(child, &status, 0);
    return status == 0;
}

__attribute__((noipa)) int part(int (*function)(void), int times) {
    int done = 0;
    for (int i = 0; i < times; i++) done += function();
    return done;
}

int main(int count, char **words) {
    int (*functions[])(void) = {no_name, no_library, spawned, not_spawned, forked};
    const char *names[] = {"no_name", "no_library", "spawned", "not_spawned", "forked"};
    int times = atoi(words[2]), done = 0;
    for (int i = 0; i < 5; i++)
        if (strcmp(words[1], names[i]) == 0) done = part(functions[i], times);
    if (count > 3) exit(done != times);
    return done != times;
}
