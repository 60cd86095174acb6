"""The kernel's functions and structures in a running program, from registration to removal."""

import errno

import pytest

import anyprobe
from anyprobe import Count, KprobeError, Sum, i32, u64
from anyprobe.kprobes import (
    KPROBE_FLAG_DISABLED,
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
    unregister_kprobes,
    unregister_kretprobe,
)
from support.driver import build, started
from support.results import total

pytestmark = pytest.mark.live
OPTIONS = ("-O2", "-pthread")
CALLS = 4000
"""Of ``sized`` in one round."""


@pytest.fixture
def target():
    with started(build("handled.c", *OPTIONS)) as running:
        yield running


def test_a_pre_handler_sees_the_registers_as_they_were(target, session):
    sizes = Sum("sizes")

    def pre(p, regs):
        sizes.add(regs.di)
        return 0

    kp = Kprobe(symbol_name="sized", pre_handler=pre)
    assert register_kprobe(kp) == 0
    assert kp.addr is not None
    target.go(3)
    assert (kp.hits, kp.nmissed) == (3 * CALLS, 0)
    assert total(sizes).sum == 3 * 4 * 499_500
    unregister_kprobe(kp)
    assert kp.addr is None
    target.go(1)
    target.finish()
    assert total(sizes).count == 3 * CALLS


def test_a_kretprobe_sees_the_value_the_address_and_data_of_its_own(target, session):
    doubled, addresses = Count("doubled"), Count("addresses", by=("address",))

    def entry(ri, regs):
        ri.data.size = regs.di
        return 0

    def handler(ri, regs):
        if regs_return_value(regs) == 2 * ri.data.size:
            doubled.add()
        addresses[ri.ret_addr].add()

    rp = Kretprobe(kp=Kprobe(symbol_name="sized"), handler=handler, entry_handler=entry)
    assert register_kretprobe(rp) == 0
    target.go(2)
    target.finish()
    assert total(doubled).count == 2 * CALLS
    assert rp.nmissed == 0
    assert len(addresses.result().entries) == 1
    unregister_kretprobe(rp)


def test_a_return_handler_does_not_run_where_the_entry_handler_says_so(target, session):
    seen = Sum("seen")

    def entry(ri, regs):
        return regs.di & 1

    def handler(ri, regs):
        seen.add(regs_return_value(regs))

    assert register_kretprobe(Kretprobe(Kprobe(symbol_name="sized"), handler, entry)) == 0
    target.go(1)
    target.finish()
    assert (total(seen).count, total(seen).sum) == (CALLS // 2, 4 * sum(range(0, 2000, 4)))


def test_a_jprobe_has_the_signature_of_the_function(target, session):
    seen = Sum("seen", by=("which",))

    def ten(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32, g: u64, h: i32, i: i32, j: i32):
        seen.add(h, key=(8,))
        seen.add(j, key=(10,))
        a = 1000
        seen.add(a, key=(1,))

    assert register_jprobe(Jprobe(Kprobe(symbol_name="ten"), ten)) == 0
    target.go(2)
    target.finish()
    assert {key: cell.sum for key, cell in seen.result().entries.items()} == {(8,): 16, (1,): 2000, (10,): 20}


def test_a_jprobe_knows_types_from_debug_information(target, session):
    seen = Sum("seen", by=("which",))

    def ten(a, b, j):
        seen.add(a, key=(1,))
        seen.add(b, key=(2,))
        seen.add(j, key=(10,))

    assert register_jprobe(Jprobe(Kprobe(symbol_name="ten"), ten)) == 0
    target.go(2)
    target.finish()
    assert {key: cell.sum for key, cell in seen.result().entries.items()} == {(1,): -2, (2,): -4, (10,): 20}


def test_exactly_one_of_symbol_and_address(target, session):
    assert register_kprobe(Kprobe()) == -errno.EINVAL
    found = Kprobe(symbol_name="sized")
    assert register_kprobe(found) == 0
    assert register_kprobe(Kprobe(symbol_name="sized", addr=found.addr)) == -errno.EINVAL
    assert register_kprobe(found) == -errno.EINVAL
    assert register_kprobe(Kprobe(symbol_name="no_such_function")) == -errno.ENOENT
    inside = Kprobe(addr=found.addr + 1)
    assert register_kprobe(inside) == -errno.EILSEQ
    assert "no instruction starts here" in inside.error
    again = Kprobe(addr=found.addr)
    assert register_kprobe(again) == 0
    target.go(1)
    assert again.hits == found.hits == CALLS
    target.finish()


def test_a_strict_session_raises(target):
    with anyprobe.attach(target.pid, strict=True), pytest.raises(KprobeError, match="no_such_function") as caught:
        register_kprobe(Kprobe(symbol_name="no_such_function"))
    assert caught.value.errno == errno.ENOENT


def test_batches_are_all_or_nothing(target, session):
    good = [Kprobe(symbol_name=name) for name in ("sized", "ten", "deep")]
    bad = Kprobe(symbol_name="sized", offset=1)
    assert register_kprobes([*good, bad]) == -errno.EILSEQ
    assert [kp.addr for kp in good] == [None] * 3
    target.go(1)
    assert register_kprobes(good) == 0
    target.go(1)
    assert [kp.hits for kp in good] == [CALLS, 1, 21]
    stray = Kprobe(addr=0x1234)
    unregister_kprobes([good[0], stray, good[2]])
    assert (stray.addr, good[0].addr, good[2].addr) == (None, None, None)
    target.go(1)
    assert good[1].hits == 2
    target.finish()


def test_disabled_probes_are_registered_and_not_armed(target, session):
    kp = Kprobe(symbol_name="sized", flags=KPROBE_FLAG_DISABLED)
    assert disable_kprobe(kp) == -errno.EINVAL
    assert register_kprobe(kp) == 0
    before = text(target.pid, kp.addr)
    target.go(1)
    assert kp.hits == 0
    for rounds in range(1, 4):
        assert enable_kprobe(kp) == 0
        assert not kp.flags & KPROBE_FLAG_DISABLED
        assert text(target.pid, kp.addr) != before
        target.go(1)
        assert kp.hits == rounds * CALLS
        assert disable_kprobe(kp) == 0
        assert text(target.pid, kp.addr) == before
        target.go(1)
        assert kp.hits == rounds * CALLS
    target.finish()


def text(pid, address):
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(address)
        return memory.read(16)
