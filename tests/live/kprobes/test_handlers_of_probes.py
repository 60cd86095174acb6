"""Where the handlers of kprobes run, and what they see and change: the document's promises, one test each."""

import errno

import pytest

import anyprobe
from anyprobe import Count, HandlerError, Sum, emit, i64
from anyprobe.journal.memfds import is_ours
from anyprobe.kprobes import (
    Jprobe,
    Kprobe,
    Kretprobe,
    disable_jprobe,
    disable_kprobe,
    enable_jprobe,
    enable_kprobe,
    register_jprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    unregister_kprobe,
    unregister_kretprobe,
)
from support.driver import build, started

pytestmark = pytest.mark.live
ROUNDS = 2
CALLS = 100
"""Of ``chosen`` in one round."""


def address(session, name):
    (site,), _ = session.resolve(f"a.out:{name}")
    return site.address


def test_pre_handlers_run_before_the_instruction_and_post_handlers_behind(target, session):
    start = address(session, "chosen")

    def pre(p, regs):
        emit("seen", when=0, ax=regs.ax, di=regs.di, ip=regs.ip)
        return 0

    def post(p, regs, flags):
        emit("seen", when=1, ax=regs.ax, di=regs.di, ip=regs.ip)

    kp = Kprobe(symbol_name="chosen", offset=5, pre_handler=pre, post_handler=post)
    assert register_kprobe(kp) == 0
    target.go(ROUNDS)
    target.finish()
    rows = session.records(final=True)["seen"]
    assert rows["when"].tolist() == [0, 1] * CALLS * ROUNDS
    for row in rows:
        assert (row["ax"], row["ip"]) == ((7, start + 5) if row["when"] == 0 else (7 + row["di"], start + 8))


@pytest.mark.parametrize(("offset", "there"), [(0xB, {0x11: ROUNDS, 0xD: ROUNDS * (CALLS - 1)})])
def test_a_post_handler_runs_where_a_jump_goes(target, session, offset, there):
    start = address(session, "chosen")
    seen = Count("seen", by=("at",))

    def post(p, regs, flags):
        seen[regs.ip].add()

    assert register_kprobe(Kprobe(symbol_name="chosen", offset=offset, post_handler=post)) == 0
    target.go(ROUNDS)
    target.finish()
    assert {key[0] - start: cell.count for key, cell in seen.result().entries.items()} == there


def test_several_probes_at_one_address_run_in_order_of_registration(target, session):
    def first(p, regs):
        emit("ran", which=1)

    def second(p, regs):
        emit("ran", which=2)

    def third(p, regs):
        emit("ran", which=3)

    probes = [Kprobe(symbol_name="chosen", pre_handler=each) for each in (first, second, third)]
    assert [register_kprobe(kp) for kp in probes] == [0, 0, 0]
    target.go(1)
    assert session.records()["ran"]["which"].tolist() == [1, 2, 3] * CALLS
    unregister_kprobe(probes[0])
    target.go(1)
    assert session.records()["ran"]["which"].tolist() == [2, 3] * CALLS
    assert register_kprobe(probes[0]) == 0
    unregister_kprobe(probes[2])
    target.go(1)
    target.finish()
    assert session.records(final=True)["ran"]["which"].tolist() == [2, 1] * CALLS


@pytest.mark.parametrize("live", [False, True])
def test_probes_of_all_kinds_at_one_address_run_in_order_of_registration(target, live):
    def pre(p, regs):
        emit("ran", which=p.which)
        return 0

    def entry(ri, regs):
        emit("ran", which=2)
        return 0

    def jumped(n: i64):
        emit("ran", which=3)

    def kprobe(which):
        kp = Kprobe(symbol_name="asked", pre_handler=pre)
        kp.which = which
        return kp

    first, last = kprobe(1), kprobe(4)
    rp, jp = Kretprobe(Kprobe("asked"), lambda ri, regs: 0, entry), Jprobe(Kprobe("asked"), jumped)
    with anyprobe.attach(target.pid, live=live) as session:
        assert register_kprobe(first) == register_kretprobe(rp) == register_jprobe(jp) == register_kprobe(last) == 0
        target.go(1)
        assert session.records()["ran"]["which"].tolist() == [1, 2, 3, 4]
        assert disable_kprobe(first) == disable_jprobe(jp) == enable_kprobe(first) == enable_jprobe(jp) == 0
        target.go(1)
        assert session.records()["ran"]["which"].tolist() == [1, 2, 3, 4]
        unregister_kretprobe(rp)
        target.go(1)
        target.finish()
        assert session.records(final=True)["ran"]["which"].tolist() == [1, 3, 4]


def test_a_handler_redirects_if_it_returns_1(target):
    with anyprobe.attach(target.pid, unsafe=True) as session:
        other, redirected, target_address = Count("n"), Count("redirected"), address(session, "other")

        def pre(p, regs):
            regs.ip = target_address
            if regs.di & 1:
                redirected.add()
                return 1
            return 0

        def post(p, regs, flags):
            other.add()

        assert register_kprobe(Kprobe(symbol_name="chosen", pre_handler=pre, post_handler=post)) == 0
        site = session.snapshot().sites[0]
        assert site.strategy != "trap"
        target.go(ROUNDS)
        assert redirected.result().total.count == other.result().total.count == ROUNDS * CALLS // 2
    target.go(1)
    target.finish()


def test_registers_are_changed_in_unsafe_sessions_only(target, session):
    def pre(p, regs):
        regs.di = regs.di
        return 0

    with pytest.raises(HandlerError, match="unsafe=True"):
        register_kprobe(Kprobe(symbol_name="chosen", pre_handler=pre))
    assert not session.probes
    target.go(1)
    target.finish()


def test_the_flags_are_there(target, session):
    seen = Count("seen", by=("flags",))

    def pre(p, regs):
        seen[regs.flags & 0x8D5].add()
        return 0

    assert register_kprobe(Kprobe(symbol_name="chosen", offset=0xB, pre_handler=pre)) == 0
    target.go(1)
    target.finish()
    counts = {key[0]: cell.count for key, cell in seen.result().entries.items()}
    assert sum(counts.values()) == CALLS
    assert sum(count for flags, count in counts.items() if flags & 0x40) == 1


def test_the_flags_are_changed(target):
    with anyprobe.attach(target.pid, unsafe=True):

        def pre(p, regs):
            kept = regs.flags
            regs.flags = 0
            regs.flags = kept ^ 0x10  # the auxiliary carry, which the branch does not look at
            return 0

        assert register_kprobe(Kprobe(symbol_name="chosen", offset=0xB, pre_handler=pre)) == 0
        target.go(1)
    target.finish()


def test_handlers_read_the_fields_of_their_probe(target, session):
    hits = Count("hits", by=("which",))

    def pre(p, regs):
        hits[p.which].add()
        return 0

    probes = [Kprobe(symbol_name=name, pre_handler=pre) for name in ("chosen", "recursive")]
    for number, kp in enumerate(probes):
        kp.which = number
    assert register_kprobes(probes) == 0
    target.go(1)
    target.finish()
    assert {key[0]: cell.count for key, cell in hits.result().entries.items()} == {0: CALLS, 1: 11}


def test_what_must_not_be_probed_is_refused_with_the_reason(target, session):
    kp = Kprobe(symbol_name="stepped", pre_handler=None)
    assert register_kprobe(kp) == 0
    assert register_kprobe(Kprobe(symbol_name="exit", pre_handler=lambda p, regs: 0)) == 0  # reached by a pun
    ours = [each for each in session.mappings() if is_ours(each) and each.executable]
    assert ours
    for start in (each.start + offset for each in ours for offset in (0, 64, 256, 4095)):
        refused = Kprobe(addr=start)
        assert register_kprobe(refused) == -errno.EINVAL
        assert "our own code" in refused.error
    trampoline = Kprobe(symbol_name="__restore_rt")
    assert register_kprobe(trampoline) == -errno.EINVAL
    assert "signal-return-trampoline" in trampoline.error
    target.go(1)
    target.finish()


def test_a_hit_in_a_handler_counts_as_missed():
    with started(build("handled.c", "-O2", "-pthread"), "timer") as target, anyprobe.attach(target.pid):
        sizes = Sum("sizes")

        def slow(p, regs):
            total = 0
            for i in range(2000):
                total = total * 3 + (i ^ regs.di)
            sizes.add(total)
            return 0

        kp = Kprobe(symbol_name="sized", pre_handler=slow)
        assert register_kprobe(kp) == 0
        for _ in range(20):
            target.go(1)
            if kp.nmissed:
                break
        assert kp.nmissed > 0
        counts = target.finish()
        assert kp.hits + kp.nmissed == counts.calls["sized"]
        assert sizes.result().total.count == kp.hits
