/* Executes itself in every way: executes HOW CALL GENERATIONS, with HOW fork, vfork, spawn, thread, child or here.
 *
 * The child of "child" executes in a thread of its own. CALL is one of the exec functions, bad (which fails) or bad-then-CALL. Each generation calls work() ten times, and
 * tells by its exit status how many generations there were, itself included. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *how, *call, *arguments[5];

__attribute__((noinline)) void work(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void on_the_way(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void failed(void) { __asm__ volatile("" ::: "memory"); }

static void execute(const char *name) {
    char *path = arguments[0], *file = strrchr(path, '/') + 1;
    char *const *a = arguments;
    if (!strcmp(name, "execl")) execl(path, a[0], a[1], a[2], a[3], (char *)0);
    if (!strcmp(name, "execlp")) execlp(file, a[0], a[1], a[2], a[3], (char *)0);
    if (!strcmp(name, "execle")) execle(path, a[0], a[1], a[2], a[3], (char *)0, environ);
    if (!strcmp(name, "execv")) execv(path, a);
    if (!strcmp(name, "execvp")) execvp(file, a);
    if (!strcmp(name, "execve")) execve(path, a, environ);
    if (!strcmp(name, "execvpe")) execvpe(file, a, environ);
    if (!strcmp(name, "fexecve")) fexecve(open(path, O_RDONLY), a, environ);
    if (!strcmp(name, "execveat")) execveat(AT_FDCWD, path, a, environ, 0);
    if (!strcmp(name, "bad")) {
        execv("/nowhere/at/all", a);
        if (errno == ENOENT) failed();
        execv("/etc/passwd", a);
        if (errno == EACCES) failed();
        execve(path, (char *const *)8, environ);
        if (errno == EFAULT) failed();
    }
    if (!strncmp(name, "bad-then-", 9)) execute("bad"), execute(name + 9);
}

static void *in_thread(void *unused) {
    (void)unused;
    on_the_way();
    execute(call);
    return 0;
}

int main(int argc, char **argv) {
    char left[12];
    int status = 0;
    pid_t child = 0;
    pthread_t thread;
    if (getenv("EXECUTES_WAITS")) {
        unsetenv("EXECUTES_WAITS");
        puts("ready"); fflush(stdout);
        while (getchar() != EOF) {}
    }
    for (int n = 0; n < 10; n++) work();
    if (argc < 4) return 99;
    if (atoi(argv[3]) == 0) return 1;
    how = argv[1], call = argv[2];
    snprintf(left, sizeof left, "%d", atoi(argv[3]) - 1);
    char *next[] = {argv[0], how, call, left, 0};
    memcpy(arguments, next, sizeof next);
    if (!strcmp(how, "here")) on_the_way(), execute(call);
    if (!strcmp(how, "thread")) pthread_create(&thread, 0, in_thread, 0), pthread_join(thread, 0);
    if (!strcmp(how, "child") && !(child = fork()))
        pthread_create(&thread, 0, in_thread, 0), pthread_join(thread, 0), _exit(0);
    if (!strcmp(how, "fork") && !(child = fork())) on_the_way(), execute(call), _exit(0);
    if (!strcmp(how, "vfork") && !(child = vfork())) on_the_way(), execute(call), _exit(0);
    if (!strcmp(how, "spawn") && posix_spawn(&child, argv[0], 0, 0, arguments, environ)) return 98;
    if (!strcmp(how, "spawnp") && posix_spawnp(&child, strrchr(argv[0], '/') + 1, 0, 0, arguments, environ)) return 98;
    if (child > 0) waitpid(child, &status, 0);
    return 1 + WEXITSTATUS(status);
}
