// Coroutines by ucontext that throw, are interrupted by signals, and go on in other threads. Each function notes the time
// that it has spent by the program's own clock.
//
// fibers_disturbed HOW ROUNDS: HOW has words among: moves, signals, altstack.
#include <atomic>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

enum { COUNT = 6, SIZE = 65536 };
enum { LEAF, YIELDS, BODY, RESUMES, RUN, THROWS, CATCHES, FUNCTIONS };
static const char *const names[] = {"leaf", "yields", "body", "resumes", "run", "throws", "catches"};
static std::atomic<long long> spent[FUNCTIONS];
static std::atomic<long> calls[FUNCTIONS];
static ucontext_t contexts[COUNT];
static bool ended[COUNT];
static thread_local ucontext_t *home;

static long long now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static inline __attribute__((always_inline)) void spend(int who, int us) {
    long long begin = now(), at;
    do at = now(); while (at - begin < us * 1000ll);
    spent[who] += at - begin;
}
#define FUNCTION extern "C" __attribute__((noinline))
FUNCTION ucontext_t *where() { asm volatile(""); return home; }  // looked up in each thread anew
FUNCTION void handler(int) { asm volatile(""); }
FUNCTION void leaf() { calls[LEAF]++; spend(LEAF, 40); asm volatile(""); }
FUNCTION void throws(int n) {
    calls[THROWS]++;
    spend(THROWS, 20);
    if (n % 2) throw std::runtime_error("x");
    asm volatile("");
}
FUNCTION void yields(int me) {
    calls[YIELDS]++;
    spend(YIELDS, 30);
    swapcontext(&contexts[me], where());
    spend(YIELDS, 20);
}
FUNCTION void catches(int n) {
    calls[CATCHES]++;
    spend(CATCHES, 10);
    try {
        throws(n);
    } catch (std::exception &) {
        spend(CATCHES, 10);
    }
    leaf();
}
FUNCTION void body(int me, int rounds) {
    calls[BODY]++;
    for (int n = 0; n < rounds; n++) {
        spend(BODY, 100);
        leaf();
        yields(me);
        catches(n);
    }
    ended[me] = true;
    spend(BODY, 1);
}
FUNCTION void resumes(int n) {
    calls[RESUMES]++;
    spend(RESUMES, 50);
    swapcontext(home, &contexts[n]);
    spend(RESUMES, 10);
}
FUNCTION void run() {
    calls[RUN]++;
    for (int n = 0; n < COUNT; n++)
        if (!ended[n]) {
            spend(RUN, 5);
            resumes(n);
            leaf();
        }
}
static void starts(int me, int rounds) {
    body(me, rounds);
    setcontext(where());
}
static void *in_thread(void *) {
    ucontext_t own;
    home = &own;
    run();
    return nullptr;
}
int main(int, char **argv) {
    const char *how = argv[1];
    int rounds = atoi(argv[2]);
    if (strstr(how, "signals")) {
        stack_t stack = {};
        stack.ss_sp = malloc(SIZE);
        stack.ss_size = SIZE;
        sigaltstack(&stack, nullptr);
        struct sigaction action = {};
        action.sa_handler = handler;
        action.sa_flags = SA_RESTART | (strstr(how, "altstack") ? SA_ONSTACK : 0);
        sigaction(SIGALRM, &action, nullptr);
        itimerval every = {{0, 100}, {0, 100}};
        setitimer(ITIMER_REAL, &every, nullptr);
    }
    char *stacks = static_cast<char *>(malloc(COUNT * SIZE));
    for (int n = 0; n < COUNT; n++) {
        getcontext(&contexts[n]);
        contexts[n].uc_stack.ss_sp = stacks + n * SIZE;
        contexts[n].uc_stack.ss_size = SIZE;
        makecontext(&contexts[n], reinterpret_cast<void (*)()>(starts), 2, n, rounds);
    }
    ucontext_t own;
    home = &own;
    for (int n = 0; n <= rounds; n++) {
        pthread_t thread;
        if (!strstr(how, "moves") || n % 2 == 0) run();
        else if (pthread_create(&thread, nullptr, in_thread, nullptr) || pthread_join(thread, nullptr)) return 1;
    }
    for (int n = 0; n < FUNCTIONS; n++) printf("%s %lld %ld\n", names[n], spent[n].load(), calls[n].load());
    return 0;
}
