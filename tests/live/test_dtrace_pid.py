"""More of what DTrace's tests of its pid provider ask: names, errors, parameters, children."""

import os
import subprocess

import pytest

import anyprobe
from anyprobe import Sum, i64
from support.driver import build
from support.results import hits

pytestmark = pytest.mark.live

PROGRAM = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
static volatile double kept;
static volatile long sum;
KEPT long ten(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j) {
    return a + b + c + d + e + f + g + h + i + j;
}
KEPT double halved(double of) { __asm__ volatile("" : "+x"(of)); return of / 2; }
KEPT void work(void) { __asm__ volatile(""); }
int main(int argc, char **argv) {
    (void)argc; (void)argv;
    for (long n = 0; n < 100; n++) sum += ten(n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9);
    for (int n = 0; n < 1000; n++) kept = halved(kept + n * 1.25);
    for (int n = 0; n < 3; n++) work();
    if (!fork()) { for (int n = 0; n < 20; n++) work(); _exit(0); }
    wait(0);
    if (!vfork()) { for (int n = 0; n < 300; n++) work(); _exit(0); }
    wait(0);
    free(malloc(100));
    printf("%.17g %ld\\n", kept, sum);
    return 0;
}
"""
ALIASES = """
__asm__(".text\\n.globl go, _go, __go\\n.type go,@function\\n.type _go,@function\\n.type __go,@function\\n"
        ".weak __go\\n__go: _go: go: ret\\n.size go, .-go\\n.size _go, .-_go\\n.size __go, .-__go\\n"
        ".weak chosen\\n.type chosen,@function\\n.type aa,@function\\nchosen: aa: nop; ret\\n"
        ".size chosen, .-chosen\\n.size aa, .-aa\\n");
int main(void) { return 0; }
"""


@pytest.fixture(scope="module")
def program():
    return str(build("dtrace_pid.c", "-O1", text=PROGRAM))


@pytest.fixture
def held(program):
    """A session on a running process: one that waits to be told."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.stdout.read(1) == b"x"  # its libraries are there
        with anyprobe.attach(process.pid) as session:
            yield session
        process.stdin.close()


def run(program, place):
    """Run the program under probes to its end; return the results and what it printed."""
    reads, writes = os.pipe()
    with anyprobe.run([program], stdout=writes) as session:
        os.close(writes)
        place(session)
        session.resume()
        with open(reads) as printed:
            text = printed.read()
        assert session.wait(60) == 0
        return session.snapshot(), text


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pid$target:bogus.so:malloc:entry", "no module 'bogus.so'"),  # err.D_PDESC_ZERO.badlib
        ("pidgin:libc:malloc:entry", "no provider 'pidgin'"),  # err.D_PDESC_ZERO.badproc1
        ("pid0:libc:malloc:entry", "process 0"),  # err.D_PROC_BADPID.badproc2
        ("pid$target:libc:bogus_function:entry", "no function 'bogus_function' in libc"),  # err.D_PROC_FUNC.badfunc
        ("pid$target:libc:malloc:bogus", "no such name 'bogus'"),  # err.D_PROC_NAME.badname
        ("pid$target:libc:-:*", "one instruction at a time"),  # err.D_PROC_NAME.alldash
        ("pid$target:libc:-:1*", "one instruction at a time"),  # err.D_PROC_NAME.globdash
        ("pid$target:libc:malloc:fffff", "lies beyond malloc"),  # err.D_PROC_OFF.toobig
    ],
)
def test_errors_point_at_the_part_and_change_nothing(held, spec, message):
    with pytest.raises(anyprobe.SpecError) as caught:
        held.count(spec)
    assert message in str(caught.value)
    assert "^" in str(caught.value)
    assert held.probes == []


def test_addprobes(program):
    """tst.addprobes: entries in one session, returns in a later one, of one process."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for spec in ("libc:read:entry", "libc:read:return"):
            with anyprobe.attach(process.pid) as session:
                session.count(f"pid$target:{spec}")
                for _ in range(5):
                    process.stdin.write(b"x")
                    process.stdin.flush()
                    assert process.stdout.read(1) == b"x"
                assert session.snapshot().hits >= 4  # the thread may be within a call
        process.stdin.close()


def test_args1(program):
    """tst.args1: ten parameters, six in registers and four on the stack."""
    sums = [Sum(f"argument {number}") for number in range(10)]
    one, two, three, four, five, six, seven, eight, nine, ten = sums

    def place(session):
        @session.entry("pid$target:a.out:ten:entry")
        def entered(a: i64, b: i64, c: i64, d: i64, e: i64, f: i64, g: i64, h: i64, i: i64, j: i64):
            one.add(a)
            two.add(b)
            three.add(c)
            four.add(d)
            five.add(e)
            six.add(f)
            seven.add(g)
            eight.add(h)
            nine.add(i)
            ten.add(j)

    snapshot, _ = run(program, place)
    found = [snapshot.aggregation(each.name).total.sum for each in sums]
    assert found == [sum(range(100)) + 100 * number for number in range(10)]


def test_float(program):
    """tst.float: a program that computes with the FPU prints the same, each of its instructions probed."""
    plain = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    snapshot, text = run(program, lambda session: session.count("pid$target:a.out:halved:*"))
    assert text == plain
    assert hits(snapshot, "halved") == 1000


def test_fork_and_vfork(program):
    """tst.fork, tst.vfork: children are counted with their parent, and end as they would."""
    snapshot, _ = run(program, lambda session: session.count("pid$target:a.out:work:entry"))
    assert snapshot.hits == 3 + 20 + 300


def test_main(program):
    """tst.main: the first function of the program, which whoever starts it may have to stop at himself."""
    snapshot, _ = run(program, lambda session: session.count("pid$target:a.out:main:entry", "pid$target:a.out:main:0"))
    assert [site.hits for site in snapshot.sites] == [1, 1]


@pytest.mark.parametrize("module", ["libc", "libc.so", "libc.so.6", "libc*", "l?bc", "[l]ibc.so.6", ""])
def test_probemod_and_probefunc(held, module):
    """tst.probemod, tst.probefunc: a library by any of its names; results have the file's name and the function's."""
    (site,) = [
        each for each in held.resolve(f"pid$target:{module}:getppid:entry")[0] if each.object.name == "libc.so.6"
    ]
    assert (site.object.name, site.name) == ("libc.so.6", "getppid")


@pytest.mark.parametrize("provider", ["pid$target", "p*d$target", "p?d$target", "pi[cd]$target", "*"])
def test_provregex(held, provider):
    """tst.provregex1 to 4: globs of the provider."""
    (probe,) = held.count(f"{provider}:libc.so.6:getppid:entry")
    assert probe.armed


def test_globs_in_all_four_parts(held):
    sites, _ = held.resolve("p*$target:lib[c].so*:getpp?d:[er]*")
    assert {site.kind for site in sites} == {"entry", "return", "insn"}
    (probe,) = held.count("pid$target:libc:getppid:*")
    offsets = {(site.kind, site.offset) for site in held.snapshot().sites}
    assert {("entry", 0), ("insn", 0)} <= offsets
    assert any(kind == "return" for kind, _ in offsets)
    assert probe.armed


def test_dash(held):
    """tst.dash: an instruction by its address in the process, or by its offset in a library."""
    (site,) = held.resolve("pid$target:libc:getppid:entry")[0]
    (same,) = held.resolve(f"pid$target::-:{site.address:x}")[0]
    (again,) = held.resolve(f"pid$target:libc:-:{site.function.start:x}")[0]
    assert site.address == same.address == again.address
    (probe,) = held.count(f"pid$target::-:{site.address:x}")
    assert probe.armed


def test_self_grab():
    """tst.self-grab: a process that probes itself by its number is told so, and does not wait for ever."""
    with pytest.raises(anyprobe.AnyprobeError):
        anyprobe.attach(os.getpid())


def test_weak1_and_weak2():
    """tst.weak1, tst.weak2: of several names the one with fewer underscores, and a weak one before a local one."""
    aliased = build("aliases.c", "-O1", text=ALIASES)
    with anyprobe.run([str(aliased)]) as session:
        found = {each.function for each in session.list("a.out:*go*", "a.out:*chosen*", "a.out:aa")}
        assert all(session.resolve(f"a.out:{name}")[0] for name in ("go", "_go", "__go", "chosen", "aa"))
        names = {session.resolve(f"a.out:{name}")[0][0].function.name for name in ("go", "_go", "__go")}
        assert names == {"go"}
        assert {session.resolve(f"a.out:{name}")[0][0].function.name for name in ("chosen", "aa")} == {"chosen"}
        assert {"go", "chosen"} <= found
