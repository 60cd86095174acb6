"""Handlers read and write the memory of the process that they run in: that of a fork child, where they run there."""

import subprocess
from contextlib import suppress

import pytest

import anyprobe
from anyprobe import Count, cstr, ptr, u8, u64
from support.driver import build

pytestmark = pytest.mark.live
CHILDREN, CALLS = 3, 5
PROGRAM = """
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static char text[32] = "the parent";
static long mark = 1;
__attribute__((noinline)) void work(char *of, long *marked) {
    __asm__ volatile("" : : "r"(of), "r"(marked) : "memory");
}
static void calls(int deep, int number) {
    mark = 1;
    sprintf(text, "child %d.%d", number, deep);
    for (int n = 0; n < 5; n++) work(text, &mark);
    printf("%ld\\n", mark); fflush(stdout);
    if (deep) {
        if (!fork()) { calls(deep - 1, number); _exit(0); }
        wait(0);
    }
}
int main(void) {
    puts("ready"); fflush(stdout);
    getchar();
    for (int number = 0; number < 3; number++) {
        if (!fork()) { calls(1, number); _exit(0); }
        wait(0);
    }
    work(text, &mark);
    printf("%ld\\n", mark);
    return 0;
}
"""
EXPECTED = {"the parent": 1} | {f"child {number}.{deep}": CALLS for number in range(CHILDREN) for deep in (0, 1)}
MARKS = [*2 * CHILDREN * [1 + CALLS], 2]


@pytest.fixture
def program():
    pipe = subprocess.PIPE
    command = [build("memory_of_children.c", "-O1", text=PROGRAM)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        with suppress(ProcessLookupError):
            process.kill()


@pytest.mark.parametrize("timed_first", [False, True])
def test_each_process_has_its_own(program, timed_first):
    """Its parent has something else at the same addresses."""
    texts = Count("texts", by=("text",))
    with anyprobe.attach(program.pid, unsafe=True) as session:
        if timed_first:
            session.time("a.out:work")

        @session.entry("a.out:work")
        def on_work(of: ptr[u8], marked: ptr[u64]):
            texts.add(key=(cstr(of, 32),))
            before = marked[0]
            if before is not None:
                marked[0] = before + 1

        said, _ = program.communicate(b"\n", timeout=180)
        session.wait(180)
        assert {text: cell.count for (text,), cell in texts.items()} == EXPECTED
        assert not session.snapshot().missing
    assert [int(line) for line in said.split()] == MARKS
