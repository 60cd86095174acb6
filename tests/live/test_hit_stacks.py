"""``hit.stack``: the true stack of a thread that waits for a callback, which debuggers do not find."""

import os
import shutil
import subprocess

import pytest

import anyprobe
from support.driver import build

SOURCE = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
volatile int done;
__attribute__((noinline)) int leaf(int x) { done += x; return done; }
__attribute__((noinline)) int middle(int x) { return leaf(x + 1) + 1; }
__attribute__((noinline)) int outer(int x) { char room[x * 32]; room[x] = x; return middle(room[x]) + room[x]; }
static int compared(const void *left, const void *right) { return leaf(*(int *)left - *(int *)right); }
static void handler(int number) { leaf(number); }
int main(void) {
    int two[2] = {2, 1};
    char byte;
    puts("ready");
    fflush(stdout);
    if (read(0, &byte, 1) != 1) return 1;
    outer(3);
    qsort(two, 2, sizeof *two, compared);
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    return 0;
}
"""


def functions_of(stack):
    """Return the names of the functions on a stack."""
    return [each.partition(":")[2].partition("+")[0] for each in str(stack).split(" < ")]


@pytest.mark.parametrize("options", [("-O2",), ("-O0",), ("-O2", "-fno-omit-frame-pointer")], ids=" ".join)
@pytest.mark.parametrize("place", ["entry", "return", "insn"])
def test_stacks(options, place):
    """Below variable frames, library functions and signal handlers; a debugger that looks meanwhile sees none of it."""
    program = build("hit_stacks.c", *options, "-fno-optimize-sibling-calls", text=SOURCE)
    seen, shown = [], []
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        with anyprobe.attach(process.pid) as session:

            @session.callback(f"a.out:leaf%{place}" if place != "entry" else "a.out:leaf", timeout=300)
            def on_leaf(hit):
                assert hit.stack[0] == hit.ip
                seen.append(functions_of(hit.stack))
                if shutil.which("gdb") and not shown and place == "entry":
                    command = ["gdb", "-batch", "-nx", "-p", str(process.pid), "-ex", "bt 3"]
                    shown.append(subprocess.run(command, capture_output=True, text=True, timeout=200).stdout)

            process.stdin.write(b"x")
            process.stdin.flush()
            assert os.waitstatus_to_exitcode(process.wait(300) << 8) == 0
            assert session.callbacks.errors == []
            assert not any(session.snapshot().missing.values())
    assert all(each[0] == "leaf" for each in seen)
    first, compared, handled = (
        next(each for each in seen if name in each) for name in ("outer", "compared", "handler")
    )
    assert first[:4] == ["leaf", "middle", "outer", "main"]
    assert compared[1] == "compared"
    assert "main" in compared
    assert handled[1] == "handler"
    assert "main" in handled
    if shown:
        assert "in main" not in shown[0]
