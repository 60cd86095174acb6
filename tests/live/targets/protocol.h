/* The protocol every test target speaks, so that a test never sleeps.
 *
 * stdout: "ready PID" once set up; after each command "calls NAME N", "returns NAME N", "tails NAME N" (cumulative own
 *         counts; returns include tails) and "done"; at the end "ok", or at any time "BAD reason" with exit status 1.
 * stdin:  "go N"  run N rounds;   "free"  run rounds until the next line comes;   "end" or end of file: finish.
 *
 * A program defines setup(), one_round() and tallies through TALLY(name). stdin is read with read(2), byte by byte, and
 * written with write(2), so forked children never inherit half a buffer.
 */
#ifndef PROTOCOL_H
#define PROTOCOL_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kept whole, out of line and with the ordinary calling convention. */
#if defined(__clang__)
#define PROBED __attribute__((noinline))
#else
#define PROBED __attribute__((noinline, noclone, noipa))
#endif

/* Hand-written functions, where the exact bytes matter. */
#define FUNCTION(name) ".globl " #name "\n.type " #name ",@function\n" #name ":\n.cfi_startproc\n"
#define END(name) ".cfi_endproc\n.size " #name ", . - " #name "\n"

struct tally {
    const char *name;
    long calls, returns, tails;
    struct tally *next;
};
static struct tally *tallies;
#define TALLY(function) static struct tally function##_tally = {#function, 0, 0, 0, 0}
#define USE_TALLY(function) (function##_tally.next = tallies, tallies = &function##_tally)
#define CALLED(function) __atomic_fetch_add(&function##_tally.calls, 1, __ATOMIC_RELAXED)
#define RETURNED(function) __atomic_fetch_add(&function##_tally.returns, 1, __ATOMIC_RELAXED)
#define TAILED(function) (RETURNED(function), __atomic_fetch_add(&function##_tally.tails, 1, __ATOMIC_RELAXED))
/* A call that comes back by an ordinary return. */
#define COUNTED(function, call) (CALLED(function), (call)); RETURNED(function)

static void say(const char *format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    ssize_t written = write(1, line, (size_t)length);
    (void)written;
}

static void check(int holds, const char *reason) {
    if (holds) return;
    say("BAD %s\n", reason);
    _exit(1);
}

static void setup(int argc, char **argv);
static void one_round(void);

static int next_command(char *line, size_t size) {
    size_t used = 0;
    char byte;
    for (;;) {
        ssize_t got = read(0, &byte, 1);
        if (got < 0) check(0, "reading a command failed");
        if (got == 0) return 0;
        if (byte == '\n') break;
        if (used + 1 < size) line[used++] = byte;
    }
    line[used] = 0;
    return 1;
}

static int command_waits(void) {
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}

static void report(void) {
    for (struct tally *t = tallies; t; t = t->next)
        say("calls %s %ld\nreturns %s %ld\ntails %s %ld\n", t->name, t->calls, t->name, t->returns, t->name, t->tails);
}

int main(int argc, char **argv) {
    char line[64];
    setup(argc, argv);
    say("ready %d\n", (int)getpid());
    while (next_command(line, sizeof line)) {
        if (!strncmp(line, "go ", 3)) {
#ifdef MANY_ROUNDS
            many_rounds(atol(line + 3));
#else
            for (long rounds = atol(line + 3); rounds > 0; rounds--) one_round();
#endif
        } else if (!strcmp(line, "free")) {
            say("running\n");
            while (!command_waits()) one_round();
            next_command(line, sizeof line);
        } else {
            break;
        }
        report();
        say("done\n");
    }
    report();
    say("ok\n");
    return 0;
}

#ifdef __cplusplus
}
#endif
#endif
