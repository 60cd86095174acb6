"""What the kprobes document promises of return probes."""

import errno

import pytest

import anyprobe
from anyprobe import Count, Sum, emit, i64, u64
from anyprobe.kprobes import (
    TRAMPOLINE,
    Kprobe,
    Kretprobe,
    register_kprobe,
    register_kretprobe,
    regs_return_value,
    unregister_kretprobe,
)
from support.results import total

pytestmark = pytest.mark.live


def values(sums):
    def handler(ri, regs):
        sums.add(regs_return_value(regs))

    return handler


@pytest.mark.parametrize("maxactive", [0, 1, 4, 11, 4096])
def test_maxactive_calls_are_followed_at_one_time(target, session, maxactive):
    sums = Sum("sums")
    rp = Kretprobe(Kprobe(symbol_name="recursive"), values(sums), maxactive=maxactive)
    assert register_kretprobe(rp) == 0
    target.go(3)
    target.finish()
    followed = min(maxactive or 11, 11)
    assert (total(sums).count, rp.nmissed) == (3 * followed, 3 * (11 - followed))
    # the outermost calls are followed: recursive(10), recursive(9), ...
    assert total(sums).sum == 3 * sum(n * (n + 1) // 2 for n in range(11 - followed, 11))


def test_maxactive_counts_all_threads(target, session):
    sums = Sum("sums")

    def slow(ri, regs):
        spent = 0
        for i in range(200):
            spent += i ^ regs.di
        sums.add(spent)

    def entry(ri, regs):
        ri.data.n = regs.di
        return 0

    rp = Kretprobe(Kprobe(symbol_name="stepped"), slow, entry, maxactive=1)
    assert register_kretprobe(rp) == 0
    for _ in range(20):
        counts = target.go(5)
        if rp.nmissed:
            break
    assert total(sums).count + rp.nmissed == counts.calls["stepped"]
    target.finish()


def test_an_entry_handler_that_declines_takes_no_instance(target, session):
    sums = Sum("sums")

    def entry(ri, regs):
        return regs.di != 0

    rp = Kretprobe(Kprobe(symbol_name="recursive"), values(sums), entry, maxactive=1)
    assert register_kretprobe(rp) == 0
    target.go(2)
    target.finish()
    assert (total(sums).count, rp.nmissed) == (2, 0)


def test_too_much_is_refused(session):
    for rp in (
        Kretprobe(Kprobe(symbol_name="recursive"), values(Sum("a")), maxactive=4097),
        Kretprobe(Kprobe(symbol_name="recursive"), values(Sum("b")), data_size=64),
    ):
        assert register_kretprobe(rp) == -errno.E2BIG
    inside = Kretprobe(Kprobe(symbol_name="recursive", offset=4), values(Sum("c")))
    assert register_kretprobe(inside) == -errno.EINVAL


@pytest.mark.parametrize("maxactive", [0, 1, 8])
@pytest.mark.parametrize(
    ("function", "calls", "returns"),
    [("leaves", 100, 50), ("forked", 1, 1), ("switched", 1, None), ("ends", 1, 0)],
)
def test_calls_that_return_less_often_leave_nothing_behind(target, session, function, calls, returns, maxactive):
    entries, sums = Count("entries"), Sum("sums")

    def entry(ri, regs):
        entries.add()
        return 0

    rp = Kretprobe(Kprobe(symbol_name=function), values(sums), entry, maxactive=maxactive)
    assert register_kretprobe(rp) == 0
    rounds = 6
    target.go(rounds)
    assert rp.nmissed == 0
    assert total(entries).count == rounds * calls
    if returns is not None:
        assert total(sums).count == rounds * returns
    unregister_kretprobe(rp)
    target.go(1)
    target.finish()


def test_the_return_address_is_the_real_one(target, session):
    addresses = Count("addresses", by=("which", "address"))

    def handler(ri, regs):
        addresses.add(key=(0, ri.ret_addr))
        addresses.add(key=(1, regs.ip))
        addresses.add(key=(2, u64(regs_return_value(regs))))

    assert register_kretprobe(Kretprobe(Kprobe(symbol_name="asked"), handler)) == 0
    target.go(2)
    target.finish()
    keys = [key for key, _ in addresses.result().entries.items()]
    assert len(keys) == 3
    assert len({address for _, address in keys}) == 1


@pytest.mark.parametrize("maxactive", [0, 1])
def test_the_value_is_missing_where_a_function_ends_in_a_jump_and_only_exits_are_used(target, maxactive):
    returned, missing = Sum("returned"), Count("missing")

    def handler(ri, regs):
        value = regs_return_value(regs)
        if value is None:
            missing.add()
        else:
            returned.add(value)

    rp = Kretprobe(Kprobe(symbol_name="tails"), handler, maxactive=maxactive)
    with anyprobe.attach(target.pid, returns="exits"):
        assert register_kretprobe(rp) == 0
        target.go(3)
        target.finish()
    assert (total(returned).count, total(returned).sum, total(missing).count) == (18, 45, 12)
    assert rp.nmissed == 0


@pytest.mark.parametrize("returns", ["auto", "callers"])
@pytest.mark.parametrize("maxactive", [0, 1])
def test_the_value_is_there_where_the_caller_of_a_function_goes_on(target, maxactive, returns):
    returned, missing, entered = Sum("returned"), Count("missing"), Count("entered")

    def entry(ri, regs):
        ri.data.argument = regs.di
        entered.add()
        return 0

    def handler(ri, regs):
        value = regs_return_value(regs)
        if value is None:
            missing.add()
        else:
            returned.add(i64(value + 0 * ri.data.argument))

    with anyprobe.attach(target.pid, returns=returns):
        rp = Kretprobe(Kprobe(symbol_name="tails"), handler, entry, data_size=8, maxactive=maxactive)
        assert register_kretprobe(rp) == 0
        target.go(3)
        assert (total(returned).count, total(returned).sum) == (30, 3 * (15 - 30))
        assert (total(missing).count, total(entered).count, rp.nmissed) == (0, 30, 0)
    target.finish()


def test_the_trampoline_has_the_value_at_tail_exits_too(target, session):
    returned, missing, sums = Sum("returned"), Count("missing"), Sum("others")

    def handler(ri, regs):
        value = regs_return_value(regs)
        if value is None:
            missing.add()
        else:
            returned.add(value)

    rp = Kretprobe(Kprobe(symbol_name="tails", flags=TRAMPOLINE), handler)
    assert register_kretprobe(rp) == 0, rp.kp.error
    assert register_kretprobe(Kretprobe(Kprobe(symbol_name="other", flags=TRAMPOLINE), values(sums))) == 0
    target.go(3)
    assert (total(returned).count, total(returned).sum) == (30, 3 * (15 - 30))
    assert (total(sums).count, total(sums).sum) == (15, 3 * (-30 - 3))  # others call it, too
    assert (rp.kp.hits, rp.nmissed) == (30, 0)
    target.finish()


def test_kprobe_and_kretprobe_on_one_function(target, session):
    def pre(p, regs):
        emit("ran", which=1)
        return 0

    def entry(ri, regs):
        emit("ran", which=2)
        return 0

    def handler(ri, regs):
        emit("ran", which=3)

    assert register_kretprobe(Kretprobe(Kprobe(symbol_name="asked"), handler, entry)) == 0
    assert register_kprobe(Kprobe(symbol_name="asked", pre_handler=pre)) == 0
    target.go(2)
    target.finish()
    assert session.records(final=True)["ran"]["which"].tolist() == [2, 1, 3] * 2
