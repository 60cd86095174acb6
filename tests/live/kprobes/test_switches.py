"""The states of probes, the kernel's list, and the switches over all of them, under load."""

import time

import pytest

from anyprobe import Count, emit
from anyprobe.kprobes import (
    KPROBE_FLAG_DISABLED,
    KPROBE_FLAG_OPTIMIZED,
    Kprobe,
    Kretprobe,
    debugfs,
    disable_kprobe,
    enable_kprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    unregister_kprobes,
)
from anyprobe.splice.regions.access import Access

pytestmark = pytest.mark.live


def text(pid, address):
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(address)
        return memory.read(16)


def counting(count):
    def pre(p, regs):
        count.add()
        return 0

    return pre


def test_no_hit_is_lost_while_probes_are_optimized_and_unoptimized(target, session):
    seen = Count("seen")
    kp = Kprobe(symbol_name="stepped", pre_handler=counting(seen))
    assert register_kprobe(kp) == 0
    target.run_freely()
    for _ in range(5):
        assert debugfs.set_optimization(False) == []
        assert not kp.flags & KPROBE_FLAG_OPTIMIZED
        assert text(target.pid, kp.addr)[0] == 0xCC
        assert debugfs.set_optimization(True) == []
        assert kp.flags & KPROBE_FLAG_OPTIMIZED
        assert text(target.pid, kp.addr)[0] != 0xCC
    counts = target.halt()
    assert kp.hits == seen.result().total.count == counts.calls["stepped"]
    target.finish()


def test_later_probes_follow_the_switch(target, session):
    debugfs.set_optimization(False)
    kp, rp = Kprobe(symbol_name="stepped"), Kretprobe(Kprobe(symbol_name="asked"), lambda ri, regs: 0)
    assert register_kprobe(kp) == 0
    assert register_kretprobe(rp) == 0
    assert not (kp.flags | rp.kp.flags) & KPROBE_FLAG_OPTIMIZED
    target.go(1)
    debugfs.set_optimization(True)
    assert kp.flags & rp.kp.flags & KPROBE_FLAG_OPTIMIZED
    target.go(1)
    assert (kp.hits, rp.kp.hits) == (8000, 2)
    target.finish()


def test_everything_is_disarmed_without_touching_states(target, session):
    one, other = Kprobe(symbol_name="stepped"), Kprobe(symbol_name="chosen", flags=KPROBE_FLAG_DISABLED)
    before = [text(target.pid, session.resolve(name)[0][0].address) for name in ("stepped", "chosen", "asked")]
    assert register_kprobes([one, other]) == 0
    debugfs.set_enabled(False)
    late = Kprobe(symbol_name="asked")
    assert register_kprobe(late) == 0
    target.go(1)
    assert [kp.hits for kp in (one, other, late)] == [0, 0, 0]
    assert [text(target.pid, kp.addr) for kp in (one, other, late)] == before
    assert [kp.flags & KPROBE_FLAG_DISABLED for kp in (one, other, late)] == [0, KPROBE_FLAG_DISABLED, 0]
    assert disable_kprobe(late) == 0
    assert enable_kprobe(other) == 0
    target.go(1)
    assert not debugfs.enabled()
    debugfs.set_enabled(True)
    target.go(1)
    assert [kp.hits for kp in (one, other, late)] == [4000, 100, 0]
    target.finish()


def test_probes_are_disabled_and_enabled_while_they_are_hit(target, session):
    seen = Count("seen")
    kp = Kprobe(symbol_name="stepped", pre_handler=counting(seen))
    other = Kprobe(symbol_name="stepped")
    assert register_kprobes([kp, other]) == 0
    target.run_freely()
    for _ in range(10):
        assert disable_kprobe(kp) == 0
        hits = kp.hits
        assert enable_kprobe(kp) == 0
        assert kp.hits >= hits
    counts = target.halt()
    assert kp.hits == seen.result().total.count <= other.hits == counts.calls["stepped"]
    target.finish()


def test_the_order_of_registration_stays_when_probes_were_disabled(target, session):
    def first(p, regs):
        emit("ran", which=1)

    def second(p, regs):
        emit("ran", which=2)

    probes = [Kprobe(symbol_name="chosen", pre_handler=each) for each in (first, second)]
    assert register_kprobes(probes) == 0
    assert disable_kprobe(probes[0]) == 0
    target.go(1)
    assert session.records()["ran"]["which"].tolist() == [2] * 100
    assert enable_kprobe(probes[0]) == 0
    target.go(1)
    target.finish()
    assert session.records(final=True)["ran"]["which"].tolist() == [1, 2] * 100


def test_the_list_is_the_kernels(target, session):
    probes = [Kprobe(symbol_name="chosen", offset=5), Kprobe(symbol_name="getpid", flags=KPROBE_FLAG_DISABLED)]
    assert register_kprobes(probes) == 0
    assert register_kretprobe(Kretprobe(Kprobe(symbol_name="asked"), lambda ri, regs: 0)) == 0
    lines = [str(each).split() for each in debugfs.listing()]
    module = debugfs.listing()[0].module
    assert lines[0] == [f"{probes[0].addr:016x}", "k", "chosen+0x5", module, "[OPTIMIZED]"]
    assert [lines[1][1], *lines[1][3:]] == ["k", "libc.so.6", "[DISABLED]"]
    assert lines[2][1:] == ["r", "asked+0x0", module, "[OPTIMIZED]"]
    target.go(1)
    target.finish()


def test_many_probes_come_and_go_at_once(target, session, monkeypatch):
    libc = session.objects.libc()
    functions = [each for each in libc.image.functions.all() if each.size >= 16][:400]
    probes = [Kprobe(addr=each.start + libc.bias) for each in functions]
    while register_kprobes(probes) != 0:
        probes = [kp for kp in probes if not kp.error]
    assert len(probes) >= 256
    assert all(kp.flags & KPROBE_FLAG_OPTIMIZED for kp in probes)
    target.go(1)
    stops, stop, begin = [], Access.stop, time.process_time()
    monkeypatch.setattr(Access, "stop", lambda self, what: (stops.append(what), stop(self, what))[1])
    unregister_kprobes(probes)
    assert stops == ["disarm"]
    assert time.process_time() - begin < 1
    assert debugfs.listing() == []
    target.go(1)
    target.finish()
