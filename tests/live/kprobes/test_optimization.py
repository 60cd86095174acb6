"""Reached by jumps or by traps: the switch, what neighbours and post handlers do to it, and that no hit is lost."""

import errno

import pytest

import anyprobe
from anyprobe import Count, emit
from anyprobe.kprobes import (
    KPROBE_FLAG_DISABLED,
    KPROBE_FLAG_OPTIMIZED,
    Djprobe,
    Kprobe,
    Kretprobe,
    debugfs,
    disable_kprobe,
    enable_kprobe,
    register_djprobe,
    register_kprobe,
    register_kretprobe,
    unregister_kprobe,
)
from anyprobe.probes.providers.function.outside import listing
from support.driver import wait_until

pytestmark = pytest.mark.live


@pytest.fixture(params=[False, True], ids=["stops", "live"])
def either(target, request):
    """A session of both kinds."""
    with anyprobe.attach(target.pid, live=request.param) as opened:
        yield opened


def byte_at(pid, address):
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(address)
        return memory.read(1)[0]


def counting(count):
    def pre(p, regs):
        count.add()
        return 0

    return pre


def states(pid):
    """Return what an outsider sees: the states of each line, by type and function."""
    return {(line.type, line.symbol): line.flags for line in listing.inspect(pid).registered}


def test_the_switch_under_load(target, either):
    """Entries and returns, in several threads; the state is right in the program, in the list and from outside."""
    seen, returned = Count("seen"), Count("returned")

    def handler(ri, regs):
        returned.add()

    kp = Kprobe(symbol_name="stepped", pre_handler=counting(seen))
    rp = Kretprobe(Kprobe(symbol_name="stepped"), handler, maxactive=64)
    off = Kprobe(symbol_name="chosen", flags=KPROBE_FLAG_DISABLED)
    assert register_kprobe(kp) == register_kretprobe(rp) == register_kprobe(off) == 0
    target.run_freely()
    for _ in range(4):
        for on in (False, True):
            assert debugfs.set_optimization(on) == []
            assert debugfs.optimization() == on
            wanted = ("OPTIMIZED",) if on else ()
            assert bool(kp.flags & KPROBE_FLAG_OPTIMIZED) == bool(rp.kp.flags & KPROBE_FLAG_OPTIMIZED) == on
            assert [line.flags for line in debugfs.listing()] == [wanted, wanted, ("DISABLED",)]
            assert states(target.pid) == {
                ("k", "stepped"): wanted, ("r", "stepped"): wanted, ("k", "chosen"): ("DISABLED",)
            }  # fmt: skip
            assert (byte_at(target.pid, kp.addr) == 0xCC) != on
    counts = target.halt()
    assert kp.hits == seen.result().total.count == returned.result().total.count == counts.calls["stepped"]
    assert kp.nmissed == rp.kp.nmissed == off.hits == 0
    target.finish()


def test_the_switch_governs_what_comes_later(target, either):
    assert debugfs.set_optimization(False) == []  # before there is anything
    first, second = Kprobe(symbol_name="chosen"), Kprobe(symbol_name="stepped", flags=KPROBE_FLAG_DISABLED)
    assert register_kprobe(first) == register_kprobe(second) == enable_kprobe(second) == 0
    assert [byte_at(target.pid, kp.addr) for kp in (first, second)] == [0xCC, 0xCC]
    target.go(1)
    assert disable_kprobe(first) == enable_kprobe(first) == 0
    assert byte_at(target.pid, first.addr) == 0xCC
    debugfs.set_enabled(False)
    assert debugfs.set_optimization(True) == []
    debugfs.set_enabled(True)
    assert first.flags & second.flags & KPROBE_FLAG_OPTIMIZED
    late = Kprobe(symbol_name="asked")
    assert register_kprobe(late) == 0
    assert late.flags & KPROBE_FLAG_OPTIMIZED
    target.go(1)
    assert [kp.hits for kp in (first, second, late)] == [200, 8000, 1]
    target.finish()


@pytest.mark.parametrize("on", [True, False], ids=["jumps", "traps"])
def test_neighbours_post_handlers_and_disabling_lose_nothing(target, either, on):
    """What takes a probe's jump away in the kernel: here it keeps it, and every execution is counted."""
    seen, after, next_seen = Count("seen"), Count("behind"), Count("next_seen")

    def post(p, regs, flags):
        after.add()

    debugfs.set_optimization(on)
    kept = Kprobe(symbol_name="stepped", pre_handler=counting(seen))
    assert register_kprobe(kept) == 0
    target.run_freely()
    neighbours = neighbour_offsets(kept)[:2]
    assert neighbours
    for _ in range(3):
        others = [Kprobe(symbol_name="stepped", offset=at, pre_handler=counting(next_seen)) for at in neighbours]
        others.append(Kprobe(symbol_name="stepped", post_handler=post))
        others.append(Kprobe(symbol_name="stepped", flags=KPROBE_FLAG_DISABLED))
        for other in others:
            assert register_kprobe(other) == 0, other.error
            assert bool(kept.flags & KPROBE_FLAG_OPTIMIZED) == on
        wait_until(lambda: next_seen.result().total.count, "a neighbour is hit")
        assert disable_kprobe(others[-2]) == disable_kprobe(others[0]) == 0
        assert bool(kept.flags & KPROBE_FLAG_OPTIMIZED) == on
        for other in others:
            unregister_kprobe(other)
        assert bool(kept.flags & KPROBE_FLAG_OPTIMIZED) == on
    counts = target.halt()
    assert kept.hits == seen.result().total.count == counts.calls["stepped"]
    assert 0 < next_seen.result().total.count < len(neighbours) * counts.calls["stepped"]
    assert after.result().total.count < counts.calls["stepped"]
    target.finish()


def neighbour_offsets(kp):
    """Return where the instructions of the probed function behind the first begin, by the engine's own refusals."""
    made = []
    for offset in range(1, 24):
        probe = Kprobe(symbol_name=kp.symbol_name, offset=offset, flags=KPROBE_FLAG_DISABLED)
        if register_kprobe(probe) == 0:
            made.append(probe)
    for probe in made:
        unregister_kprobe(probe)
    return [probe.offset for probe in made]


@pytest.mark.parametrize("order", [(0, 4, 7), (4, 0, 7), (7, 4, 0)])
def test_djprobes_in_each_others_bytes_whoever_comes_first(target, session, order):
    """One whose address lies in another's JTPR, and the reverse: the original returns -EEXIST."""
    (site,), _ = session.resolve("a.out:shapes")
    probes = [Djprobe(site.address + offset) for offset in order]
    for djp in probes:
        assert register_djprobe(djp) == 0, djp.kp.error
        target.go(1)
    assert [djp.kp.hits for djp in probes] == [6, 4, 2]
    assert all(djp.kp.flags & KPROBE_FLAG_OPTIMIZED for djp in probes)
    assert {line.flags for line in listing.inspect(target.pid).registered} == {("OPTIMIZED",)}
    target.finish()


@pytest.mark.parametrize(("first", "second"), [((0, 7), (4, 6)), ((4, 6), (0, 7))])
def test_the_original_refuses_an_overlap_either_way(target, session, first, second):
    (site,), _ = session.resolve("a.out:shapes")
    numbers = [
        register_djprobe(Djprobe(), site.address + offset, size, strict_djprobe=True)
        for offset, size in (first, second)
    ]
    assert numbers == [0, -errno.EEXIST]
    target.go(1)
    target.finish()


def test_order_stays_the_order_of_registration_in_a_live_session(target):
    def first(p, regs):
        emit("ran", which=1)

    def second(p, regs):
        emit("ran", which=2)

    with anyprobe.attach(target.pid, live=True) as session:
        probes = [Kprobe(symbol_name="chosen", pre_handler=each) for each in (first, second)]
        assert register_kprobe(probes[0]) == register_kprobe(probes[1]) == 0
        assert disable_kprobe(probes[0]) == enable_kprobe(probes[0]) == 0
        target.go(1)
        target.finish()
        assert session.records(final=True)["ran"]["which"].tolist() == [1, 2] * 100
