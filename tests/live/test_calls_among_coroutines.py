"""Calls of anyprobe's in programs whose threads are on stacks of coroutines: nothing beside these is written to."""

import shutil
import signal
import subprocess
from contextlib import contextmanager

import pytest

import anyprobe
from anyprobe.target.system import procfs
from support.driver import build, wait_until
from support.results import hits

pytestmark = pytest.mark.live
PROGRAM = r"""
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COUNT = 64, SIZE = 2048, GAP = 256, EACH = SIZE + GAP, ALL = COUNT * EACH };
static void *inside[COUNT], *outside;
static long calls, spoilt;
static __thread char local[ALL] __attribute__((aligned(64)));

__attribute__((noinline, noclone)) long probed(long n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
void change(void **from, void *to);
__asm__("change: push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rsp, (%rdi); mov %rsi, %rsp\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret");

static int current;
__attribute__((noreturn)) static void body(void) {
    for (int me = current;; me = current) {
        for (int n = 0; n < 10; n++) calls += probed(n) > 0;
        change(&inside[me], outside);
    }
}
static int told_to_end(void) { sigset_t met; sigpending(&met); return sigismember(&met, SIGTERM); }
static void run(char *stacks) {
    memset(stacks, 0x5a, ALL);
    for (int n = 0; n < COUNT; n++) {
        void **top = (void **)(((unsigned long)(stacks + n * EACH + EACH) & ~15ul) - 8);
        *--top = (void *)body;
        memset(top -= 6, 0, 48);
        inside[n] = top;
    }
    while (!told_to_end()) {
        for (current = 0; current < COUNT; current++) change(&outside, inside[current]);
        for (int n = 0; n < COUNT; n++)
            for (int at = 0; at < GAP; at++)
                if (stacks[n * EACH + at] != 0x5a) { spoilt++; stacks[n * EACH + at] = 0x5a; }
    }
    printf("%ld %ld\n", calls, spoilt);
    fflush(stdout);
}
__attribute__((noinline)) static long deep(int n) {
    volatile char frame[4096]; frame[0] = (char)n;
    return n ? deep(n - 1) + frame[0] : 0;
}
static void *in_thread(void *kind) {
    if (!strcmp(kind, "thread's")) run(alloca(ALL));
    else run(local);
    _exit(0);
}
int main(int argc, char **argv) {
    const char *kind = argv[1];
    sigset_t blocked;
    (void)argc;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, NULL);  /* no signal frames among the stacks */
    if (!strncmp(kind, "deep", 4)) deep(200);  /* of what the main stack has, nothing is unused */
    printf("ready\n");
    fflush(stdout);
    if (!strcmp(kind, "arena") || !strcmp(kind, "deep arena"))
        run((char *)mmap(0, ALL + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096);
    else if (!strcmp(kind, "heap")) run(malloc(ALL));
    else if (!strcmp(kind, "main's")) run(alloca(ALL));
    else if (!strcmp(kind, "deep main's")) { char *stacks = alloca(ALL); deep(20); run(stacks); }
    else if (!strcmp(kind, "local")) run(local);
    else {
        pthread_t thread;
        pthread_attr_t room;
        pthread_attr_init(&room);
        pthread_attr_setstacksize(&room, 1 << 20);
        if (pthread_create(&thread, &room, in_thread, argv[1])) return 1;
        pthread_exit(NULL);  /* the other one is the only one */
    }
    return 0;
}
"""
KINDS = ["arena", "deep arena", "heap", "main's", "deep main's", "local", "thread's", "thread's local"]
LIBRARIES = {
    "glibc": ("gcc",),
    "static glibc": ("gcc", "-static"),
    "musl": ("musl-gcc",),
    "static musl": ("musl-gcc", "-static"),
}


@contextmanager
def running(*command):
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written_between_stacks(kind, library):
    """Sessions one after the other, so that each place that a call can be made in is met."""
    compiler, *options = LIBRARIES[library]
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    program = build(
        "among_coroutines.c", "-ftls-model=local-exec", "-no-pie", *options, text=PROGRAM, compiler=compiler
    )
    with running(program, kind) as process:
        assert process.stdout.readline() == "ready\n"
        if kind.startswith("thread's"):
            wait_until(lambda: procfs.read_stat(process.pid).ended, "the end of the first thread")
        for _ in range(3):
            with anyprobe.attach(process.pid) as session:
                session.count("a.out:probed")
                assert not session.refused
                before = hits(session.snapshot(), "probed")
                wait_until(lambda: hits(session.snapshot(), "probed") > before, "hits")  # noqa: B023
        process.send_signal(signal.SIGTERM)
        calls, spoilt = map(int, process.stdout.readline().split())
        assert process.wait(180) == 0
    assert calls > 0
    assert spoilt == 0
