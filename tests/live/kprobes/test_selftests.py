"""Tests of the kernel's own (KUnit, fprobe, BPF's uprobe tests), for programs."""

import errno
import itertools
import subprocess

import pytest

import anyprobe
from anyprobe import Count, Sum, emit
from anyprobe.kprobes import (
    Kprobe,
    Kretprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    register_kretprobes,
    regs_return_value,
    unregister_kprobe,
    unregister_kprobes,
    unregister_kretprobe,
)
from anyprobe.splice.regions.access import Access
from support.driver import TARGETS, build, started

pytestmark = pytest.mark.live
PATTERNED = 0xA0
"""Where all registers of ``patterned`` are set."""


def test_consumers(target, session):
    """All sets of probes of both kinds on one function, before and after: each counts exactly while it is there."""

    def quiet(ri, regs):
        return 0

    kinds = ("entry", "entry", "return")
    hits = dict.fromkeys(range(3), 0)

    def register(number):
        if kinds[number] == "entry":
            probe = Kprobe(symbol_name="asked")
            assert register_kprobe(probe) == 0
        else:
            probe = Kretprobe(Kprobe(symbol_name="asked"), quiet)
            assert register_kretprobe(probe) == 0
        return probe

    def unregister(probe):
        unregister_kprobe(probe) if isinstance(probe, Kprobe) else unregister_kretprobe(probe)

    def count(probe):
        return probe.hits if isinstance(probe, Kprobe) else probe.kp.hits

    subsets = [set(each) for size in range(4) for each in itertools.combinations(range(3), size)]
    for before, after in itertools.product(subsets[::3], subsets):
        there = {number: register(number) for number in sorted(before)}
        target.go(1)
        assert {number: count(probe) for number, probe in there.items()} == dict.fromkeys(before, 1)
        for number in before - after:
            unregister(there.pop(number))
        for number in sorted(after - before):
            there[number] = register(number)
        target.go(1)
        assert {number: count(probe) for number, probe in there.items()} == {n: 2 if n in before else 1 for n in after}
        for probe in there.values():
            unregister(probe)
        hits.clear()
    target.finish()


def test_the_kunit_tests(target, session):
    """test_kprobes, test_kretprobes: several functions in one batch, each with its own value."""
    pre, post, values = Count("pre", by=("n",)), Count("post"), Sum("values", by=("which",))

    def pre_handler(p, regs):
        pre[regs.di].add()
        return 0

    def post_handler(p, regs, flags):
        post.add()

    def first(ri, regs):
        values.add(regs_return_value(regs), key=(1,))

    def second(ri, regs):
        values.add(regs_return_value(regs), key=(2,))

    names = ("chosen", "recursive")
    kps = [Kprobe(symbol_name=name, pre_handler=pre_handler, post_handler=post_handler) for name in names]
    rps = [Kretprobe(Kprobe(symbol_name=name), each) for name, each in zip(names, (first, second), strict=True)]
    assert register_kprobes(kps) == 0
    assert register_kretprobes(rps) == 0
    target.go(1)
    target.finish()
    assert post.result().total.count == sum(cell.count for cell in pre.result().entries.values()) == 111
    sums = {key: cell.sum for key, cell in values.result().entries.items()}
    assert sums == {(1,): 8 + sum(n + 108 for n in range(1, 100)), (2,): sum(n * (n + 1) // 2 for n in range(11))}


def test_stack_traces_within_nested_kretprobes(target, session):
    """The program looks at its return addresses itself, with return probes on both functions."""

    def quiet(ri, regs):
        return 0

    rps = [Kretprobe(Kprobe(symbol_name=name), quiet, maxactive=1) for name in ("asked", "caller_of")]
    assert register_kretprobes(rps) == 0
    target.go(3)
    assert [rp.kp.hits for rp in rps] == [3, 3]
    target.finish()


def test_only_the_registers_that_a_handler_writes_change(target):
    """BPF's uretprobe_regs_change."""
    with anyprobe.attach(target.pid, unsafe=True) as session:

        def change(p, regs):
            regs.r10 = 0xDEAD
            regs.bx = 0xBEEF
            return 0

        def look(p, regs):
            emit("seen", ax=regs.ax, bx=regs.bx, r10=regs.r10, r11=regs.r11, si=regs.si, bp=regs.bp, r15=regs.r15)
            return 0

        assert register_kprobe(Kprobe(symbol_name="patterned", offset=PATTERNED, pre_handler=change)) == 0
        assert register_kprobe(Kprobe(symbol_name="patterned", offset=PATTERNED + 2, pre_handler=look)) == 0
        target.go(1)
        target.finish()
        (row,) = session.records(final=True)["seen"]
        ones = 0x0101010101010101
        assert (row["ax"], row["bx"], row["r10"]) == (0, 0xBEEF, 0xDEAD)
        assert (row["r11"], row["si"], row["bp"], row["r15"]) == (11 * ones, 5 * ones, 7 * ones, 15 * ones)


def test_a_batch_takes_one_stop(target, session, monkeypatch):
    stops = []
    stop = Access.stop
    monkeypatch.setattr(Access, "stop", lambda self, what: (stops.append(what), stop(self, what))[1])
    probes = [Kprobe(symbol_name=name) for name in ("stepped", "chosen", "recursive", "leaves", "asked")]
    assert register_kprobes(probes) == 0
    assert stops.count("arm") == 1
    target.go(1)
    stops.clear()
    unregister_kprobes([*probes[:2], Kprobe(addr=1), *probes[2:]])
    assert stops == ["disarm"]
    target.go(1)
    target.finish()


@pytest.mark.parametrize("address", [0xFFFFFFFFFF600000, 0x10, 0])
def test_addresses_that_are_no_code(session, address):
    kp = Kprobe(addr=address)
    assert register_kprobe(kp) == -errno.EINVAL
    assert kp.error


def test_a_session_whose_program_has_ended():
    with started(build("kprobed.c", "-O2", "-pthread")) as target, anyprobe.attach(target.pid):
        kp = Kprobe(symbol_name="asked")
        assert register_kprobe(kp) == 0
        target.go(1)
        target.finish()
        assert kp.hits == 1
        assert register_kprobe(Kprobe(symbol_name="chosen")) == -errno.ESRCH
        unregister_kprobe(kp)
        assert kp.addr is None


def test_a_name_that_several_functions_have(tmp_path):
    """The kernel's kprobe_non_uniq_symbol."""
    same = "static __attribute__((noinline, noclone, noipa)) long same(long n) {{ return n + {0}; }}\n"
    (tmp_path / "other.c").write_text(same.format(1) + "long other(long n) { return same(n); }\n")
    (tmp_path / "twice.c").write_text(
        '#include "protocol.h"\n' + same.format(2) + "long other(long n);\n"
        'static void one_round(void) { check(same(1) == 3 && other(1) == 2, "same"); }\n'
        "static void setup(int argc, char **argv) { (void)argc; (void)argv; }\n"
    )
    program = tmp_path / "twice"
    sources = [tmp_path / "twice.c", tmp_path / "other.c"]
    subprocess.run(["gcc", "-O2", "-I", TARGETS, *sources, "-o", program], check=True)
    with started(program) as target, anyprobe.attach(target.pid) as session:
        kp = Kprobe(symbol_name="same")
        assert register_kprobe(kp) == -errno.EADDRNOTAVAIL
        assert "2 functions of twice are named 'same'" in kp.error
        starts = [f.start for f in session.objects.objects[0].image.functions.lookup("same")]
        by_address = [Kprobe(addr=start + session.objects.objects[0].bias) for start in starts]
        assert register_kprobes(by_address) == 0
        target.go(1)
        assert [each.hits for each in by_address] == [1, 1]
        target.finish()


def test_a_program_that_is_started_with_probes():
    program = build("kprobed.c", "-O2", "-pthread")
    with anyprobe.run([str(program)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as session:
        seen = Count("seen")

        def pre(p, regs):
            seen.add()
            return 0

        kp = Kprobe(symbol_name="main", pre_handler=pre)
        assert register_kprobe(kp) == 0
        session.resume()
        assert session.wait(180) == 0
        assert kp.hits == seen.result().total.count == 1
