/* Loads a library, calls plugin_work() in it ten times, unloads it, and has a child by fork call work(), without end; until
 * the end of its input. With an argument before the library's path the child loads it, not the program itself.
 *
 * Where a constructor has not run, or a child does not do all that it is to do, it is "harmed". */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int done;

__attribute__((noinline)) void work(void) { done++; }

static const char *use(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    int (*plugin_work)(int) = library ? (int (*)(int))dlsym(library, "plugin_work") : 0;
    int sum = 0;
    if (!plugin_work) return "harmed: dlopen";
    for (int n = 0; n < 10; n++) sum += plugin_work(n);
    return sum != 65 || dlclose(library) ? "harmed: library" : 0;
}

int main(int argc, char **argv) {
    struct pollfd input = {0, POLLIN, 0};
    long rounds = 0;
    puts("ready"), fflush(stdout);
    for (; poll(&input, 1, 0) == 0; rounds++) {
        const char *harmed = argc > 2 ? 0 : use(argv[1]);
        int status;
        pid_t child;
        if (harmed) return puts(harmed), 1;
        if (!(child = fork())) {
            for (int n = done = 0; n < 10; n++) work();
            if (argc > 2 && (harmed = use(argv[2]))) puts(harmed), fflush(stdout), _exit(1);
            _exit(done == 10 ? 77 : 1);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 77)
            return puts("harmed: fork"), 1;
    }
    printf("well %d\n", rounds > 0);
    return 0;
}
