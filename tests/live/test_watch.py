"""``anyprobe watch``: all writes of programs that note their own: what was stored, from where, and nothing left."""

import json
import re
import signal
import subprocess

import pytest

from anyprobe.cli import main
from live.test_command_line import anyprobe, start
from support.driver import build, wait_until

pytestmark = pytest.mark.live

KINDS = """
#include <stdio.h>
#include <string.h>
volatile long x = 3;
#define DO(text) __asm__ volatile(text ::: "memory", "cc", "rax", "rbx", "rcx", "rdx", "rdi", "r8", "xmm0"); \\
    printf("%lu\\n", (unsigned long)x);
int main(void) {
    DO("movq $0x1234, x(%rip)")
    DO("movl $7, x(%rip)")
    DO("movw $0x1ff, x+4(%rip)")
    DO("movb $0xfe, x+7(%rip)")
    DO("mov $0x123456789abcdef, %rax; mov %rax, x(%rip)")
    DO("mov $0x55, %ecx; mov %ecx, x+4(%rip)")
    DO("mov $0x3344, %edx; mov %dh, x+1(%rip)")
    DO("mov $9, %r8b; mov %r8b, x+6(%rip)")
    DO("lea x(%rip), %rbx; mov $2, %ecx; movb $0x77, -2(%rbx,%rcx,2)")
    DO("addq $5, x(%rip)")
    DO("mov $100, %eax; sub %rax, x(%rip)")
    DO("incl x(%rip)")
    DO("decb x+2(%rip)")
    DO("negq x(%rip)")
    DO("notw x+6(%rip)")
    DO("orl $0xf0, x(%rip)")
    DO("andb $0x0f, x(%rip)")
    DO("xorq $-1, x(%rip)")
    DO("mov $3, %eax; lock add %eax, x(%rip)")
    DO("mov x(%rip), %rax; mov $0x4242, %ecx; lock cmpxchg %rcx, x(%rip)")
    DO("mov $1, %eax; mov $2, %ecx; lock cmpxchg %rcx, x(%rip)")
    DO("lea x(%rip), %rdi; mov $0x61, %al; stosb")
    DO("lea x(%rip), %rdi; mov $0x62, %rax; stosq")
    DO("mov $11, %eax; movnti %rax, x(%rip)")
    DO("mov $13, %eax; xchg %rax, x(%rip)")
    DO("movq $17, x(%rip)")
    DO("mov $2, %eax; lock xadd %rax, x(%rip)")
    DO("movq $19, x(%rip)")
    DO("mov $21, %eax; movq %rax, %xmm0; movq %xmm0, x(%rip)")
    DO("movq $23, x(%rip)")
    return 0;
}
"""
UNKNOWN = {"xchg", "xadd", "xmm0"}
"""Stores of which the registers afterwards do not tell what was stored."""

PROGRAM = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
long counter = 5, others[8];
static volatile long sink;
KEPT void bump(long n) { counter += n; }
KEPT void set(long n) { counter = n; }
KEPT long get(void) { return counter; }
static void *run(void *n) { set((long)n); return 0; }
int main(int argc, char **words) {
    long count = atol(words[2]);
    switch (*words[1]) {
    case 'b': for (long i = 1; i <= count; i++) { bump(i); if (i % 100 == 0) usleep(2000); } break;
    case 't': for (long i = 1; i <= count; i++) {
        pthread_t t;
        pthread_create(&t, 0, run, (void *)i);
        pthread_join(t, 0);
    } break;
    case 'f': bump(1); if (!fork()) { bump(10); set(7); bump(1); _exit(0); } wait(0); bump(2); break;
    case 'r': set(3); sink = get(); bump(1); sink = get(); break;
    case 'k': {
        long value = 0x7172737475767778;
        int both[2];
        if (pipe(both) || write(both[1], &value, 8) != 8 || read(both[0], &counter, 8) != 8) abort();
        set(1);
        break;
    }
    case 'e': for (;;) { bump(1); usleep(1000); }
    }
    printf("%p %ld\\n", (void *)&counter, counter);
}
"""


@pytest.fixture(scope="module")
def program():
    return build("watched.c", "-O1", "-g", "-pthread", text=PROGRAM)


@pytest.fixture
def endless(program):
    with subprocess.Popen([program, "e", "1"]) as process:
        try:
            yield process.pid
            assert process.poll() is None, "the target died"
        finally:
            process.kill()


def watch(*arguments, status=0):
    """Return the rows, what the program has printed, and what was said."""
    found = anyprobe("watch", *arguments[:-1], "--json", "-o", "/dev/stderr", *arguments[-1])
    assert found.returncode == status, found.stderr
    lines = found.stderr.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return rows, found.stdout, [line for line in lines if not line.startswith("{")]


def test_what_each_kind_of_instruction_stores():
    escaped = re.sub(r'DO\("(.*)"\)', lambda found: found[0].replace("%", "%%"), KINDS)
    program = build("stores.c", "-O1", text=escaped)
    rows, printed, _ = watch("x", ("--", program))
    values = [int(line) for line in printed.split()]
    texts = re.findall(r'DO\("(.*)"\)', KINDS)
    assert len(rows) == len(values) == len(texts)
    before = 3
    for row, value, text in zip(rows, values, texts, strict=True):
        unknown = any(re.search(rf"\b{each}\b", text) for each in UNKNOWN)
        assert row["new"] == (None if unknown else value), text
        assert row["old"] == before, text
        before = row["new"]


def test_every_write_of_a_program_with_its_value_function_line_and_stack(program):
    rows, printed, _ = watch("counter", ("--", program, "b", "3000"))
    expected, sums = 5, []
    for number in range(1, 3001):
        sums.append((expected, expected + number))
        expected += number
    assert [(row["old"], row["new"]) for row in rows] == sums
    address, last = printed.split()
    assert int(last) == expected
    assert {row["address"] for row in rows} == {int(address, 16)}
    assert {row["function"] for row in rows} == {"bump"}
    line = 1 + PROGRAM.splitlines().index("KEPT void bump(long n) { counter += n; }")
    assert {row["line"].rpartition(":")[2] for row in rows} == {str(line)}
    assert {tuple(each.split("+")[0] for each in row["stack"][:2]) for row in rows} == {
        ("watched:bump", "watched:main")
    }


def test_threads_that_come_later_are_watched(program):
    rows, _, _ = watch("a.out:counter", ("--", program, "t", "50"))
    assert [row["new"] for row in rows] == list(range(1, 51))
    assert len({row["tid"] for row in rows} - {rows[0]["pid"]}) == 50
    assert {row["stack"][1].split("+")[0] for row in rows} == {"watched:run"}


def test_a_fork_child_has_values_of_its_own(program):
    rows, printed, _ = watch("counter", ("--", program, "f", "0"))
    (parent, child) = dict.fromkeys(row["pid"] for row in rows)
    assert [(row["old"], row["new"]) for row in rows if row["pid"] == parent] == [(5, 6), (6, 8)]
    assert [(row["old"], row["new"]) for row in rows if row["pid"] == child] == [(6, 16), (16, 7), (7, 8)]
    assert printed.split()[1] == "8"


def test_reads_on_request(program):
    rows, _, _ = watch("counter", "--read", ("--", program, "r", "0"))
    found = [(row["kind"], row["function"], row["new"]) for row in rows if row["function"] in {"set", "get", "bump"}]
    assert found == [("write", "set", 3), ("read", "get", 3), ("write", "bump", 4), ("read", "get", 4)]


def test_what_the_kernel_writes(program):
    rows, _, said = watch("counter", ("--", program, "k", "0"))
    if any("not met" in line for line in said):
        pytest.skip("this user may not watch the kernel")
    own, kernel = [[row for row in rows if (row["kind"] == "kernel") is each] for each in (False, True)]
    assert kernel
    assert all(any(frame.startswith("libc.so.6:read") for frame in row["stack"]) for row in kernel)
    assert {row["module"] for row in kernel} == {"[kernel]"}
    assert [(row["function"], row["new"]) for row in own] == [("set", 1)]


def test_so_many_and_then_it_ends(endless):
    rows, _, _ = watch("counter", "--count", "5", ("-p", str(endless)))
    assert len(rows) == 5
    assert all(row["new"] == row["old"] + 1 for row in rows)


def test_addresses_and_lengths(program, endless):
    rows, _, _ = watch("counter", "--count", "1", ("-p", str(endless)))
    address = rows[0]["address"]
    for text, sizes in ((f"{address:#x}", {8}), (f"{address:#x}:4", {4}), (f"{address:#x}:1", {1})):
        rows, _, _ = watch(text, "--count", "3", ("-p", str(endless)))
        assert {row["size"] for row in rows} == sizes
    rows, _, _ = watch(f"{address - 1:#x}:10", "--count", "4", ("-p", str(endless)))
    assert {(row["address"], row["size"]) for row in rows} == {(address, 8)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_however_it_ends_all_debug_registers_are_free_again(endless, number):
    four = ("counter", "others:8")
    for _ in range(3):
        with start("watch", "others:24", "counter", "-p", str(endless)) as watching:
            assert watching.stdout.readline()
            watching.send_signal(number)
            watching.stdout.read()
            watching.wait(60)
    rows, _, _ = watch(*four, "--count", "2", ("-p", str(endless)))
    assert len(rows) == 2


def test_a_fifth_watchpoint_is_refused_by_name(endless, capfd):
    assert main(["watch", "others:24", "counter", "counter:4", "-p", str(endless)]) == 1
    said = capfd.readouterr().err
    assert "5 watchpoints are needed" in said
    assert "others:24 (3)" in said
    assert main(["watch", "others", "-p", str(endless)]) == 1
    assert "others (8): 8 watchpoints are needed" in capfd.readouterr().err


def test_that_others_have_the_debug_registers_is_said(endless, capfd):
    with start("watch", "others:24", "counter", "-p", str(endless)) as watching:
        try:
            assert watching.stdout.readline()
            assert main(["watch", "others:8", "-p", str(endless)]) == 1
            assert "no debug register is free" in capfd.readouterr().err
        finally:
            watching.kill()
            watching.stdout.read()


@pytest.mark.parametrize(
    ("place", "status", "message"),
    [
        ("wrong", 2, "no variable 'wrong' with a symbol"),
        ("a.out:wrong", 2, "no variable 'wrong' in a.out"),
        ("counter:0", 2, "a length of 0"),
        ("0x10", 1, "nothing mapped at 0x10"),
        ("0xffffffffff600000", 1, ""),
        ("0xfffffffffffffffff", 1, ""),
    ],
)
def test_what_cannot_be_watched(endless, capfd, place, status, message):
    assert main(["watch", place, "-p", str(endless), "--for", "0.1"]) == status
    assert message in capfd.readouterr().err


def test_a_program_that_is_not_there(capfd):
    assert main(["watch", "counter", "-p", "4194304"]) == 1
    assert "there is no process" in capfd.readouterr().err


def test_it_ends_with_the_program(program):
    with start("watch", "counter", "--", str(program), "t", "3") as watching:
        wait_until(lambda: watching.poll() is not None, "it has ended")
        assert watching.returncode == 0
        watching.stdout.read()
        assert "3 accesses, 3 shown" in watching.stderr.read()
