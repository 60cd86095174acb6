/* Pointers of every bad kind, passed to a probed function, with the program's own fault handlers at work around it. */
#include "protocol.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
TALLY(look);
TALLY(good);
TALLY(handled);
TALLY(spawned);
extern char **environ;
static const char *pointers[8];
static char self[4096];
static sigjmp_buf back;
static volatile sig_atomic_t faults, kinds;
PROBED long look(const char *text, long n) {
    CALLED(look);
    RETURNED(look);
    return (long)text + n;
}
static void handle(int signal, siginfo_t *info, void *context) {
    (void)context;
    faults++;
    kinds = signal;
    check(info->si_addr == (signal == SIGBUS ? (void *)pointers[5] : (void *)8), "the fault's address");
    siglongjmp(back, 1);
}
static void handle_otherwise(int signal) { faults += 100; kinds = signal; siglongjmp(back, 1); }
/* The program faults itself and gets what it set. */
static void fault_at(const volatile char *place, int signal, int by) {
    faults = 0;
    if (!sigsetjmp(back, 1)) {
        (void)*place;
        check(0, "no fault");
    }
    check(faults == by && kinds == signal, "the program's own handler");
    CALLED(handled);
}
static void install(int others) {
    struct sigaction action = {0};
    action.sa_flags = others ? 0 : SA_SIGINFO;
    if (others) action.sa_handler = handle_otherwise; else action.sa_sigaction = handle;
    check(!sigaction(SIGSEGV, &action, 0) && !sigaction(SIGBUS, &action, 0), "sigaction");
}
static void own_faults(int by) { fault_at((char *)8, SIGSEGV, by); fault_at(pointers[5], SIGBUS, by); }
static long looks;
static void look_around(void) {
    long n = ++looks;
    for (int kind = 0; kind < 8; kind++) {
        if (kind < 2) CALLED(good);
        check(look(pointers[kind], n) == (long)pointers[kind] + n, "look");
    }
    char here[64];
    snprintf(here, sizeof here, "on the stack %ld", n & 7);
    CALLED(good);
    check(look(here, n) == (long)here + n, "look at the stack");
}
static void *run(void *count) {
    for (long n = 0; n < (long)count; n++) look_around();
    return 0;
}
static void spawn(void) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 9, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 10, pointers[0], O_RDONLY, 0);
    char *arguments[] = {(char *)"true", 0};
    pid_t child;
    int status = posix_spawn(&child, "/bin/true", &actions, 0, arguments, environ);
    check(status == ENOENT, "the second file is not there");
    posix_spawn_file_actions_destroy(&actions);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 9, "/dev/null", O_RDONLY, 0);
    check(!posix_spawn(&child, "/bin/true", &actions, 0, arguments, environ), "posix_spawn");
    check(waitpid(child, &status, 0) == child && status == 0, "the spawned program");
    posix_spawn_file_actions_destroy(&actions);
    CALLED(spawned);
    pid_t forked = vfork();
    if (!forked) { look(pointers[1], 1); look((char *)8, 1); _exit(7); }
    check(waitpid(forked, &status, 0) == forked && WEXITSTATUS(status) == 7, "vfork");
    forked = fork();
    if (!forked) { look_around(); own_faults(100); _exit(7); }
    check(waitpid(forked, &status, 0) == forked && WEXITSTATUS(status) == 7, "fork");
}
static long many = 200;
static void one_round(void) {
    install(0);
    own_faults(1);
    run((void *)many);
    own_faults(1);
    sigset_t all, before;
    sigemptyset(&all); sigaddset(&all, SIGSEGV); sigaddset(&all, SIGBUS);
    sigprocmask(SIG_BLOCK, &all, &before);
    pthread_t thread;
    check(!pthread_create(&thread, 0, run, (void *)many), "pthread_create");
    run((void *)many);
    pthread_join(thread, 0);
    sigprocmask(SIG_SETMASK, &before, 0);
    own_faults(1);
    install(1);
    run((void *)many);
    own_faults(100);
    spawn();
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    run((void *)many);
}
static void setup(int argc, char **argv) {
    USE_TALLY(look); USE_TALLY(good); USE_TALLY(handled); USE_TALLY(spawned);
    if (argc > 1) many = atol(argv[1]);
    char *pages = mmap(0, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(pages != MAP_FAILED, "mmap");
    memset(pages, 'x', 4 * 4096);
    munmap(pages + 4096, 4096);
    mprotect(pages + 3 * 4096, 4096, PROT_NONE);
    char name[] = "/tmp/anyprobe-truncated-XXXXXX";
    int file = mkstemp(name);
    check(file >= 0 && !unlink(name) && !ftruncate(file, 8192), "a file");
    char *mapped = mmap(0, 8192, PROT_READ, MAP_SHARED, file, 0);
    check(mapped != MAP_FAILED && !ftruncate(file, 4096), "ftruncate");
    snprintf(self, sizeof self, "/nowhere");
    pointers[0] = self;
    pointers[1] = "constant";
    pointers[2] = 0;
    pointers[3] = pages + 4090;                 /* goes on into what is not mapped */
    pointers[4] = pages + 3 * 4096 - 7;         /* and into what cannot be read */
    pointers[5] = mapped + 4096;                /* behind the end of the file */
    pointers[6] = (char *)0x8000000000000000;   /* not canonical */
    pointers[7] = (char *)-4;                   /* wraps */
}
