/* A program that ends in the middle of calls, whose functions note the time that each has spent by the program's own clock.

   ends_in_calls HOW: exit, _exit, quick_exit, thread (another thread exits), coroutine (main waits on its stack), recursion,
   syscall, SIGNAL (a number: kills itself). Prints "NAME SELF CALLS OPEN" for each function: nanoseconds of its own, calls
   that have ended and those that have not, and "all NS", without what
   passes until a new thread runs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { MAIN, PART, ENDS, DEEP, CO, FUNCTIONS };
static const char *const names[] = {"main", "part", "ends", "deep", "co"};
static long long spent[FUNCTIONS], began;
static int calls[FUNCTIONS], over[FUNCTIONS];
static const char *how;
static ucontext_t home, other;
static char stack[1 << 16];

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static inline __attribute__((always_inline)) void spend(int who, int ms) {
    long long begin = now(), at;
    do at = now(); while (at - begin < ms * 1000000ll);
    spent[who] += at - begin;
}
__attribute__((noinline)) void part(void) {
    calls[PART]++;
    spend(PART, 10);
    over[PART]++;
    __asm__ volatile("");
}
__attribute__((noinline)) void ends(void) {
    char text[400];
    int size = 0;
    calls[ENDS]++;
    part();
    spend(ENDS, 30);
    for (int n = 0; n < FUNCTIONS; n++)
        size += sprintf(text + size, "%s %lld %d %d\n", names[n], spent[n], over[n], calls[n] - over[n]);
    size += sprintf(text + size, "all %lld\n", now() - began);
    if (write(1, text, size) != size || !spent[ENDS]) return;
    if (!strcmp(how, "_exit")) _exit(0);
    if (!strcmp(how, "quick_exit")) quick_exit(0);
    if (!strcmp(how, "syscall")) syscall(SYS_exit_group, 0);
    if (atoi(how)) kill(getpid(), atoi(how));
    if (spent[PART]) exit(0);
}
__attribute__((noinline)) void deep(int more) {
    calls[DEEP]++;
    spend(DEEP, 5);
    if (more) deep(more - 1);
    else ends();
    spend(DEEP, 1);
    over[DEEP]++;
}
__attribute__((noinline)) void co(void) {
    calls[CO]++;
    spend(CO, 20);
    ends();
    spend(CO, 1);
    over[CO]++;
}
static void *thread(void *asked) {
    began += now() - *(long long *)asked; // a tracer may hold a thread until it knows the new one
    co();
    return NULL;
}
int main(int argc, char **argv) {
    pthread_t id;
    how = argc > 1 ? argv[1] : "exit";
    began = now();
    calls[MAIN]++;
    spend(MAIN, 40);
    part();
    spend(MAIN, 20);
    if (!strcmp(how, "thread")) {
        long long asked = now();
        if (pthread_create(&id, NULL, thread, &asked) || pthread_join(id, NULL)) return 1;
    } else if (!strcmp(how, "coroutine")) {
        getcontext(&other);
        other.uc_stack.ss_sp = stack;
        other.uc_stack.ss_size = sizeof stack;
        other.uc_link = &home;
        makecontext(&other, co, 0);
        swapcontext(&home, &other);
    } else if (!strcmp(how, "recursion")) deep(3);
    else ends();
    over[MAIN]++;
    return 3;
}
