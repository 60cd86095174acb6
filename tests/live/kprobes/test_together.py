"""Handlers that follow each other at one site are called together, and are none the wiser."""

import pytest

import anyprobe
from anyprobe import Count, CSource, Hist, Sum, emit, f64, i32, i64, u64
from anyprobe.kprobes import (
    Jprobe,
    Kprobe,
    Kretprobe,
    disable_kprobe,
    enable_kprobe,
    register_jprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    regs_return_value,
    unregister_kprobe,
    unregister_kretprobe,
)
from anyprobe.splice.codegen.handlers import chain as handlerchain
from support.driver import build, started

pytestmark = pytest.mark.live
NAMES = ("ax", "bx", "cx", "dx", "si", "di", "bp", *(f"r{n}" for n in range(8, 16)))
PATTERNS = [(number + 1) * 0x0101010101010101 for number in range(15)]
STATUS = 0x8D5


@pytest.fixture
def chains(monkeypatch):
    """Return the lengths of the chains that are written."""
    written = []
    original = handlerchain.CallWriter.run

    def run(writer, address):
        written.append(len(writer._handlers))
        return original(writer, address)

    monkeypatch.setattr(handlerchain.CallWriter, "run", run)
    return written


def registers(p, regs):
    emit(
        "seen", which=p.which, ax=regs.ax, bx=regs.bx, cx=regs.cx, dx=regs.dx, si=regs.si, di=regs.di, bp=regs.bp,
        r8=regs.r8, r9=regs.r9, r10=regs.r10, r11=regs.r11, r12=regs.r12, r13=regs.r13, r14=regs.r14, r15=regs.r15,
        sp=regs.sp, flags=regs.flags, ip=regs.ip,
    )  # fmt: skip
    return 0


@pytest.mark.parametrize("strategy", ["auto", "trap"])
def test_each_sees_all_registers_and_the_program_keeps_them(chains, strategy):
    with (
        started(build("selftests.c", "-O2", "-pthread")) as target,
        anyprobe.attach(target.pid, strategy=strategy) as session,
    ):
        kps = [Kprobe("leaf", pre_handler=registers) for _ in range(6)]
        for which, kp in enumerate(kps):
            kp.which = which
            assert register_kprobe(kp) == 0
        assert {2, 3, 4} <= set(chains) <= {1, 2, 3, 4}
        counts = target.go(1)
        assert (counts.calls["changed"], counts.calls["wrong"]) == (0, 0)
        target.finish()
        rows = session.records(final=True)["seen"]
        assert rows["which"].tolist() == [*range(6)] * 2
        assert all([int(row[name]) for name in NAMES] == PATTERNS for row in rows)
        assert [int(row["flags"]) & STATUS for row in rows] == [0] * 6 + [STATUS] * 6
        assert {int(row["ip"]) for row in rows} == {kps[0].addr}
        assert len(set(rows["sp"].tolist())) == 1


def test_what_one_changes_the_next_one_sees():
    with (
        started(build("selftests.c", "-O2", "-pthread")) as target,
        anyprobe.attach(target.pid, unsafe=True) as session,
    ):

        def change(p, regs):
            regs.cx = 0x5151
            regs.r11 = regs.r11 + p.which
            return 0

        kps = [Kprobe("leaf", pre_handler=each) for each in (change, change, registers)]
        for which, kp in enumerate(kps):
            kp.which = which
        assert register_kprobes(kps) == 0
        counts = target.go(1)
        assert counts.calls["changed"] == 1 << 2 | 1 << 10
        target.finish()
        for row in session.records(final=True)["seen"]:
            wanted = dict(zip(NAMES, PATTERNS, strict=True)) | {"cx": 0x5151, "r11": PATTERNS[10] + 1}
            assert {name: int(row[name]) for name in NAMES} == wanted


@pytest.mark.parametrize("maxactive", [0, 16])
@pytest.mark.parametrize("first", ["k", "r"])
def test_a_kprobe_and_a_kretprobe_come_and_go(chains, target, session, maxactive, first):
    """Under load of several threads; each counts exactly while it is there, and finds its own data."""
    sizes, results, wrong = Hist("sizes"), Sum("results"), Count("wrong")

    def pre(p, regs):
        sizes.add(regs.di & 0xFFFF)
        return 0

    def entry(ri, regs):
        ri.data.n = regs.di
        ri.data.sp = regs.sp
        return 0

    def handler(ri, regs):
        results.add(1)
        if regs_return_value(regs) != i64(ri.data.n) * 3 or ri.data.sp != regs.sp:
            wrong.add()

    kp, rp = Kprobe("stepped", pre_handler=pre), Kretprobe(Kprobe("stepped"), handler, entry, maxactive=maxactive)
    registrations = [(register_kprobe, kp), (register_kretprobe, rp)]
    for register, probe in registrations if first == "k" else registrations[::-1]:
        assert register(probe) == 0
    assert 2 in chains
    target.go(2)
    assert (kp.hits, rp.kp.hits, kp.nmissed, rp.nmissed) == (8000, 8000, 0, 0)
    for round_ in range(3):
        target.run_freely()
        assert disable_kprobe(kp) == enable_kprobe(kp) == 0
        unregister_kretprobe(rp) if round_ & 1 else unregister_kprobe(kp)
        assert (register_kretprobe(rp) if round_ & 1 else register_kprobe(kp)) == 0
        target.halt()
        before = kp.hits, rp.kp.hits
        target.go(1)
        assert (kp.hits - before[0], rp.kp.hits - before[1]) == (4000, 4000)
    assert wrong.result().total.count == 0
    assert kp.nmissed == rp.nmissed == 0
    target.finish()


def test_arguments_of_all_kinds_behind_another_handler(chains):
    text = r"""
    #include "protocol.h"
    PROBED double many(long a, double b, long c, long d, long e, long f, long g, long h, int i) {
        return a + b + c + d + e + f + g + h + i;
    }
    static void one_round(void) { check(many(1, 2.5, 3, 4, 5, 6, 7, 8, -9) == 27.5, "many"); }
    static void setup(int argc, char **argv) { (void)argc; (void)argv; }
    """
    with started(build("many_kinds.c", text=text)) as target, anyprobe.attach(target.pid):
        seen, sums = Count("seen", by=("which", "value")), Hist("sums")

        def pre(p, regs):
            sums.add(regs.di + regs.si + regs.dx + regs.cx + regs.r8 + regs.r9)
            return 0

        def whole(a: i64, b: f64, c: i64, d: i64, e: i64, f: i64, g: i64, h: i64, i: i32):
            seen.add(key=(1, a * 100000 + c * 10000 + d * 1000 + e * 100 + f * 10 + g))
            seen.add(key=(2, h))
            seen.add(key=(3, i))

        def half(a: i64, b: f64):
            seen.add(key=(4, i64(b * 10)))

        def handler(ri, regs):
            seen.add(key=(5, 1))

        assert register_kprobe(Kprobe("many", pre_handler=pre)) == 0
        for each in (whole, half):
            assert register_jprobe(Jprobe(Kprobe("many"), each)) == 0
        assert register_kretprobe(Kretprobe(Kprobe("many"), handler, lambda ri, regs: 0)) == 0
        target.go(3)
        target.finish()
        wanted = {(1, 134567), (2, 8), (3, -9), (4, 25), (5, 1)}
        assert {key: cell.count for key, cell in seen.result().entries.items()} == dict.fromkeys(wanted, 3)
        assert sums.result().total.count == 3
        assert 2 in chains


def test_hits_in_handlers_are_missed_by_each():
    """By signals that come in the middle, and by a handler in C that calls the probed function."""
    with started(build("handled.c", "-O2", "-pthread"), "timer") as target, anyprobe.attach(target.pid):
        sizes, others = Sum("sizes"), Hist("others")

        def slow(p, regs):
            total = 0
            for i in range(2000):
                total = total * 3 + (i ^ regs.di)
            sizes.add(total)
            return 0

        def other(p, regs):
            others.add(regs.di)
            return 0

        kps = [Kprobe("sized", pre_handler=each) for each in (slow, other)]
        assert register_kprobes(kps) == 0
        for _ in range(20):
            target.go(1)
            if kps[1].nmissed:
                break
        counts = target.finish()
        assert kps[0].nmissed == kps[1].nmissed > 0
        assert kps[0].hits == kps[1].hits == sizes.result().total.count == others.result().total.count
        assert kps[0].hits + kps[0].nmissed == counts.calls["sized"]


def test_fork_children_and_first_hits(chains):
    """Threads without a block yet, and children, which never have one: both handlers run, and both are counted."""
    text = r"""
    #include "protocol.h"
    #include <pthread.h>
    #include <sys/wait.h>
    TALLY(called);
    PROBED long called(long n) { return n ^ 1; }
    static void *thread(void *unused) { (void)unused; CALLED(called); check(called(4) == 5, "thread"); return 0; }
    static void one_round(void) {
        pthread_t one;
        check(!pthread_create(&one, 0, thread, 0) && !pthread_join(one, 0), "pthread_create");
        pid_t child = fork();
        if (!child) _exit(called(2) == 3 && called(7) == 6 ? 0 : 9);
        int status;
        check(waitpid(child, &status, 0) == child && status == 0, "the child");
    }
    static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(called); }
    """
    adding = CSource("int handler(struct anyprobe_ctx *ctx) { anyprobe_add(ctx->state, ctx->rdi); return 0; }", state=8)
    with started(build("forking_together.c", "-pthread", text=text)) as target, anyprobe.attach(target.pid):
        sums = Sum("sums", by=("n",))

        def pre(p, regs):
            sums.add(u64(1), key=(regs.di,))
            return 0

        kps = [Kprobe("called", pre_handler=each) for each in (pre, adding, pre)]
        assert register_kprobes(kps) == 0
        target.go(5)
        target.finish()
        assert 3 in chains
        assert {key[0]: cell.sum for key, cell in sums.result().entries.items()} == {4: 10, 2: 10, 7: 10}
        assert adding.words() == [5 * (4 + 2 + 7)]
        assert [kp.hits for kp in kps] == [15] * 3
