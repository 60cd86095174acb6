"""What the document says of handlers, on a program in which arguments are passed in every way."""

import pytest

import anyprobe
from anyprobe import Array, Count, Struct, f32, f64, i16, i32, i64, ptr, u64
from anyprobe.kprobes import (
    Jprobe,
    Kprobe,
    Kretprobe,
    jprobe_return,
    register_jprobe,
    register_kprobe,
    register_kretprobe,
    register_kretprobes,
    unregister_kretprobe,
)
from support.driver import build, started

pytestmark = pytest.mark.live

PROGRAM = r"""
#include "protocol.h"
#include <execinfo.h>
struct pair { long a, b; };
struct big { long v[4]; };
PROBED double mixed(int a, double b, float c, struct pair p, struct big s, long e, long f, long g, short h) {
    return a + b + c + p.a + p.b + s.v[3] + e + f + g + h;
}
TALLY(stored); TALLY(doubled); TALLY(five);
PROBED long store(long *p, long n) { long old = *p; *p = n; return old; }
PROBED long twice(long n) { return n * 2; }
PROBED long fives(void) { return 5; }
long callee(long n);
long calling(long n);
__asm__(".text\n" FUNCTION(callee) "lea 1(%rdi), %rax\n" "ret\n" END(callee)
        FUNCTION(calling) "call callee\n" "mov $39, %eax\n" "syscall\n" "lea 1(%rdi), %rax\n" "ret\n" END(calling));
PROBED int inner(void) { void *found[16]; return backtrace(found, 16); }
PROBED int middle(void) { return inner() + 1; }
PROBED int outer(void) { return middle() + 1; }
PROBED long deep(long n) { volatile long kept = n; return n ? deep(n - 1) + kept : 0; }
static int depth;
static void one_round(void) {
    struct pair p = {1, 2};
    struct big s = {{1, 2, 3, 4}};
    check(mixed(1, 2.5, 3.5f, p, s, 5, 6, 7, -8) == 1 + 2.5 + 3.5 + 3 + 4 + 5 + 6 + 7 - 8, "mixed");
    long x = 1;
    stored_tally.calls = store(&x, 9);
    doubled_tally.calls = twice(21);
    five_tally.calls = fives();
    check(x == 9, "store");
    check(calling(4) == 5, "calling");
    int found = outer();
    if (!depth) depth = found;
    check(found == depth, "the depth of the stack, as backtrace() sees it");
    check(deep(10) == 55, "deep");
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(stored); USE_TALLY(doubled); USE_TALLY(five);
}
"""


@pytest.fixture
def target():
    with started(build("promises.c", "-O2", "-g", text=PROGRAM)) as running:
        yield running


def test_a_jprobe_sees_arguments_wherever_they_are_and_changes_copies(target, session):
    """In registers of both kinds, structs by value in registers and on the stack, the rest on the stack."""
    seen, named = Count("seen", by=("which", "value")), Count("named", by=("which", "value"))
    pair, big = Struct("pair", a=i64, b=i64), Struct("big", v=Array(i64, 4))

    def mixed(a: i32, b: f64, c: f32, p: pair, s: big, e: i64, f: i64, g: i64, h: i16):
        for_each = i64(b * 10) * 100 + i64(c * 10)
        seen.add(key=(1, a))
        seen.add(key=(2, for_each))
        seen.add(key=(3, p.a * 10 + p.b))
        seen.add(key=(4, s.v[3]))
        seen.add(key=(5, e * 100 + f * 10 + g))
        seen.add(key=(6, h))
        a = 1000
        e = g = -1
        seen.add(key=(7, a + e + g))
        jprobe_return()
        return 0

    def by_name(a, c, p, s, h):
        named.add(key=(1, a))
        named.add(key=(2, i64(c * 10)))
        named.add(key=(3, p.a * 10 + p.b))
        named.add(key=(4, s.v[3]))
        named.add(key=(6, h))

    for entry in (mixed, by_name):
        jp = Jprobe(Kprobe("mixed"), entry)
        assert register_jprobe(jp) == 0, jp.kp.error
    target.go(2)
    target.finish()
    wanted = {(1, 1), (2, 2535), (3, 12), (4, 4), (5, 567), (6, -8), (7, 998)}
    assert {key: cell.count for key, cell in seen.result().entries.items()} == dict.fromkeys(wanted, 2)
    assert set(named.result().entries) == {(1, 1), (2, 35), (3, 12), (4, 4), (6, -8)}


def test_bugs_are_fixed_and_faults_injected(target):
    """Arguments, memory, and results, in handlers of each kind; behind the end of the session nothing stays."""

    def memory(p, regs):
        ptr[u64](regs.di)[0] = 77
        return 0

    def argument(p, regs):
        regs.di = 100
        return 0

    def result(ri, regs):
        regs.ax = 99
        return 0

    def after(p, regs, flags):
        regs.ax = 123

    def entry(ri, regs):
        regs.di = regs.di + 1
        return 0

    with anyprobe.attach(target.pid, unsafe=True):
        for kp in (Kprobe("store", pre_handler=memory), Kprobe("twice", pre_handler=argument)):
            assert register_kprobe(kp) == 0, kp.error
        assert register_kprobe(Kprobe("fives", post_handler=after)) == 0
        assert register_kretprobe(Kretprobe(Kprobe("twice"), None, entry)) == 0
        calls = target.go(1).calls
        assert (calls["stored"], calls["doubled"], calls["five"]) == (77, 202, 123)
        rp = Kretprobe(Kprobe("fives"), result)
        assert register_kretprobe(rp) == 0
        assert target.go(1).calls["five"] == 99
        unregister_kretprobe(rp)
        assert target.go(1).calls["five"] == 123
    calls = target.go(1).calls
    assert (calls["stored"], calls["doubled"], calls["five"]) == (1, 42, 5)
    target.finish()


def test_post_handlers_of_calls_system_calls_and_returns(target, session):
    """At the callee's first instruction, behind the system call, and where the return leads."""
    where = Count("where", by=("offset", "ip"))

    def post(p, regs, flags):
        if flags == 0:
            where.add(key=(p.offset, regs.ip))

    for offset in (0, 5, 0xA, 0xC, 0x10):
        kp = Kprobe("calling", offset=offset, post_handler=post)
        assert register_kprobe(kp) == 0, kp.error
    target.go(3)
    target.finish()
    places = {name: session.resolve(f"a.out:{name}")[0][0] for name in ("calling", "callee")}
    found = {key[0]: (key[1], cell.count) for key, cell in where.result().entries.items()}
    start = places["calling"].address
    assert found[0] == (places["callee"].address, 3)
    assert [found[offset] for offset in (5, 0xA, 0xC)] == [(start + at, 3) for at in (0xA, 0xC, 0x10)]
    address, times = found[0x10]
    assert times == 3
    assert session.objects.at(address).is_executable
    assert not start <= address < start + 0x11


def test_the_c_librarys_backtrace_is_as_deep_inside_of_return_probes(target, session):
    target.go(1)
    rps = [Kretprobe(Kprobe(name), lambda ri, regs: 0) for name in ("inner", "middle", "outer")]
    assert register_kretprobes(rps) == 0
    target.go(3)
    assert [rp.kp.hits for rp in rps] == [3, 3, 3]
    target.finish()


def test_without_an_instance_the_entry_handler_is_skipped_and_nothing_else_happens(target, session):
    entries, returns = Count("entries"), Count("returns")

    def entry(ri, regs):
        entries.add()
        return 0

    def handler(ri, regs):
        returns.add()

    rp = Kretprobe(Kprobe("deep"), handler, entry, maxactive=3)
    assert register_kretprobe(rp) == 0
    target.go(2)
    counted = [each.result().total.count for each in (entries, returns)]
    assert (counted, rp.kp.hits, rp.nmissed) == ([6, 6], 6, 16)
    unregister_kretprobe(rp)
    assert register_kretprobe(rp) == 0
    assert rp.nmissed == 0
    target.go(1)
    assert rp.nmissed == 8
    target.finish()
