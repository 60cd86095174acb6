"""What somebody writes who knows the kernel's interface but not ours: it works, or the message says why not."""

import errno

import pytest

import anyprobe
from anyprobe import HandlerError, printf
from anyprobe.kprobes import (
    Jprobe,
    Kprobe,
    Kretprobe,
    disable_kprobe,
    dmesg,
    enable_kretprobe,
    jprobe_return,
    kretprobe_instance,
    register_jprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    regs_return_value,
    unregister_kprobe,
)

pytestmark = pytest.mark.live


def quiet(p, regs):
    return 0


def test_structures_are_filled_in_as_in_c(target, session):
    """``my_kretprobe.kp.symbol_name = …``, ``ri->rp->kp.symbol_name``, ``jprobe_return()``."""

    def handler(ri: kretprobe_instance, regs):
        printf(f"{ri.rp.kp.symbol_name} returned {regs_return_value(regs)}, {ri.rp.kp.addr == ri.rp.addr}")
        return 0

    def jumped(n):
        printf(f"n = {n}")
        jprobe_return()
        return 0

    my_kretprobe = Kretprobe(handler=handler, maxactive=20)
    my_kretprobe.kp.symbol_name = "folds"
    my_jprobe = Jprobe(entry=jumped)
    my_jprobe.kp.symbol_name = "folds"
    assert register_kretprobe(my_kretprobe) == register_jprobe(my_jprobe) == 0
    target.go(1)
    target.finish()
    assert dmesg(final=True) == ["n = 1", "folds returned 21, True"]


def test_a_return_probe_is_disabled_by_its_kprobe(target, session):
    rp = Kretprobe(Kprobe("asked"), quiet)
    assert register_kretprobe(rp) == disable_kprobe(rp.kp) == 0
    target.go(1)
    assert rp.kp.hits == 0
    assert enable_kretprobe(rp) == 0
    target.go(1)
    assert rp.kp.hits == 1
    target.finish()


def test_a_handler_of_other_parameters_is_shown_with_those_that_it_has(target, session):
    def short(p):
        return 0

    for probe, register, wanted in (
        (Kprobe("asked", pre_handler=short), register_kprobe, r"short\(p, regs\)"),
        (Kprobe("asked", post_handler=quiet), register_kprobe, r"quiet\(p, regs, flags\)"),
        (Kprobe("chosen", fault_handler=quiet), register_kprobe, r"quiet\(p, regs, trapnr\)"),
        (Kretprobe(Kprobe("asked"), short), register_kretprobe, r"short\(ri, regs\)"),
        (Kretprobe(Kprobe("asked"), quiet, short), register_kretprobe, r"short\(ri, regs\)"),
    ):
        with pytest.raises(HandlerError, match=f"this handler is called as {wanted}") as caught:
            register(probe)
        assert caught.value.file == __file__
    target.finish()


def test_a_field_that_there_is_not_is_told_from_one_that_there_is(target, session):
    def pre(p, regs):
        return regs.rdi

    with pytest.raises(HandlerError, match=r"(?s)pt_regs has no rdi.*instead: di"):
        register_kprobe(Kprobe("asked", pre_handler=pre))
    target.finish()


@pytest.mark.parametrize("name", ["asked%return", "asked+0x4", "ask*"])
def test_a_symbol_is_a_name(target, session, name):
    kp = Kprobe(name)
    assert register_kprobe(kp) == -errno.ENOENT
    assert repr(name) in kp.error
    target.finish()


def test_numbers_come_with_their_reason(target, session):
    kp, text = Kprobe("asked"), Kprobe(addr="0x401000")
    assert disable_kprobe(kp) == register_kprobe(text) == -errno.EINVAL
    assert (kp.error, text.error) == ("it is not registered", "addr is a number, not '0x401000'")
    assert register_kprobes([kp, kp]) == -errno.EINVAL
    assert (kp.error, kp.addr, kp.registration) == ("it is registered already", None, None)
    for wrong in (Kretprobe(Kprobe("asked"), quiet), "asked", [kp]):
        with pytest.raises(TypeError, match="register_kprobe is for a Kprobe, not for"):
            register_kprobe(wrong)
    target.finish()


def test_a_probe_is_registered_again(target):
    """In the session, by symbol or by address and offset, and in the next session."""
    with anyprobe.attach(target.pid) as session:
        start = session.resolve("a.out:asked")[0][0].address
        named, by_address = Kprobe("chosen", offset=5), Kprobe(addr=start - 4, offset=4)
        for _ in range(2):
            assert register_kprobes([named, by_address]) == 0
            assert by_address.addr == start
            unregister_kprobe(named)
            unregister_kprobe(by_address)
            assert (named.addr, by_address.addr) == (None, start - 4)
        assert register_kprobe(named) == 0
        target.go(1)
    assert named.hits == 100
    with anyprobe.attach(target.pid):
        assert register_kprobe(named) == 0, named.error
        target.go(2)
        assert named.hits == 200
    target.finish()


def test_what_was_counted_stays_readable(target):
    """After the probe is unregistered, and after the session."""
    with anyprobe.attach(target.pid):
        kps = [Kprobe("chosen"), Kprobe("asked")]
        rp = Kretprobe(Kprobe("recursive"), quiet, maxactive=3)
        assert register_kprobes(kps) == register_kretprobe(rp) == 0
        target.go(2)
        unregister_kprobe(kps[0])
        assert (kps[0].hits, kps[0].addr) == (200, None)
        target.go(1)
    target.go(1)
    assert [kp.hits for kp in kps] == [200, 3]
    assert (rp.kp.hits, rp.nmissed) == (9, 24)
    target.finish()


def test_an_entry_handler_sends_the_thread_nowhere(target):
    """As in the kernel, where its ``regs.ip`` is ignored; here that is said."""

    def entry(ri, regs):
        regs.ip = 0
        return 0

    with anyprobe.attach(target.pid, unsafe=True):
        rp = Kretprobe(Kprobe("asked"), quiet, entry)
        assert register_kretprobe(rp) == -errno.EINVAL
        assert "pre_handler" in rp.kp.error
        target.go(1)
        target.finish()
