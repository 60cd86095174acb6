// Threads, forks, execs, libraries that come and go, exceptions, signals and ends of threads, all at once.
//
// everything_at_once SECONDS LIBRARY: each function counts its calls in memory that all processes share; at the end
// "NAME CALLS" is printed for each, and "well" if nothing that happened was another than it had to be.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct Counts {
    std::atomic<long> working, throwing, handling, ending, in_children, begun, plugged, harmed;
};
static Counts *counts;
static char *program, *library;
static int shared;
static double until;

#define WORK extern "C" __attribute__((noinline)) void

WORK work(void) { counts->working++; }
WORK throw_it(void) { counts->throwing++; throw std::runtime_error("thrown"); }
WORK handle(int) { counts->handling++; }
WORK end_thread(void) { counts->ending++; pthread_exit(nullptr); }
WORK work_in_child(void) { counts->in_children++; }
WORK begin_again(void) { counts->begun++; }

static double now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void expect(bool is_so) {
    if (!is_so) counts->harmed++;
}

static void await(pid_t child) {
    int status = 0;
    pid_t found;
    while ((found = waitpid(child, &status, 0)) == -1 && errno == EINTR) {}
    expect(found == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void *ends(void *) { end_thread(); return nullptr; }

static void *throws_and_ends(void *) {
    while (now() < until) {
        for (int n = 0; n < 100; n++) {
            work();
            try {
                throw_it();
                expect(false);
            } catch (const std::runtime_error &error) {
                expect(!strcmp(error.what(), "thrown"));
            }
        }
        pthread_t thread;
        expect(!pthread_create(&thread, nullptr, ends, nullptr) && !pthread_join(thread, nullptr));
        raise(SIGUSR1);
    }
    return nullptr;
}

static void *executes(void *) {
    char number[12];
    snprintf(number, sizeof number, "%d", shared);
    char *again[] = {program, (char *)"again", number, nullptr};
    for (long turn = 0; now() < until; turn++) {
        pid_t child = 0;
        switch (turn % 4) {
        case 0:
            if (!(child = fork())) { work_in_child(); execv("/nowhere", again); execv(program, again); _exit(1); }
            break;
        case 1:
            if (!(child = vfork())) { execv(program, again); _exit(1); }
            break;
        case 2: expect(!posix_spawn(&child, program, nullptr, nullptr, again, environ)); break;
        default:
            if (!(child = fork())) { for (int n = 0; n < 10; n++) work_in_child(); _exit(7); }
        }
        await(child);
    }
    return nullptr;
}

static void *loads(void *) {
    while (now() < until) {
        void *handle = dlopen(library, RTLD_NOW);
        auto plug = handle ? (long (*)(long))dlsym(handle, "plug") : nullptr;
        expect(plug != nullptr);
        for (int n = 0; plug && n < 10; n++) { expect(plug(n) == n + 1); counts->plugged++; }
        expect(handle && !dlclose(handle));
    }
    return nullptr;
}

static Counts *mapped(int fd) {
    return (Counts *)mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    if (!strcmp(argv[1], "again")) {
        counts = mapped(atoi(argv[2]));
        for (int n = 0; n < 5; n++) begin_again();
        return 7;
    }
    program = argv[0], library = argv[2], until = now() + atof(argv[1]);
    shared = memfd_create("counts", 0);
    if (ftruncate(shared, sizeof(Counts))) return 3;
    counts = mapped(shared);
    struct sigaction action = {};
    action.sa_handler = handle, action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    void *(*bodies[])(void *) = {throws_and_ends, throws_and_ends, executes, executes, loads};
    pthread_t threads[5];
    for (int n = 0; n < 5; n++) pthread_create(&threads[n], nullptr, bodies[n], nullptr);
    for (auto thread : threads) pthread_join(thread, nullptr);
    printf("work %ld\nthrow_it %ld\nhandle %ld\nend_thread %ld\nwork_in_child %ld\nbegin_again %ld\nplug %ld\n",
           counts->working.load(), counts->throwing.load(), counts->handling.load(), counts->ending.load(),
           counts->in_children.load(), counts->begun.load(), counts->plugged.load());
    puts(counts->harmed ? "harmed" : "well");
    return counts->harmed != 0;
}
