"""What the kernel forbids, before anything is attached: by name and with its error number."""

import errno

import pytest

from anyprobe import HandlerError
from anyprobe.core.errors import KprobeError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.kprobes import Djprobe, Jprobe, Kprobe, Kretprobe
from anyprobe.kprobes.kernel import handlers, places


def sets(p, regs):
    regs.di = 4


def adds(p, regs):
    regs.ip += 4
    return 1


def reads(p, regs):
    return regs.di


def faulted(p, regs, trapnr):
    return 0


@pytest.mark.parametrize(
    ("probe", "number", "text"),
    [
        (Kprobe("f", pre_handler=sets), errno.EACCES, "sets sets regs.di"),
        (Kprobe("f", pre_handler=adds), errno.EACCES, "adds sets regs.ip"),
        (Kretprobe(Kprobe("f"), handler=reads, entry_handler=sets), errno.EACCES, "regs.di"),
        (Kprobe("f", fault_handler=faulted), errno.EOPNOTSUPP, "no fault handlers"),
        (Djprobe(addr=5, size=5), errno.EOPNOTSUPP, "mechanism='splice'"),
        (Jprobe(Kprobe("f")), errno.EINVAL, "needs an entry"),
        (Kretprobe(Kprobe("f")), errno.EINVAL, "needs a handler"),
        (Kretprobe(Kprobe("f"), handler=reads, maxactive=5000), errno.E2BIG, "maxactive"),
        (Kretprobe(Kprobe("f"), handler=reads, data_size=100), errno.E2BIG, "data_size"),
    ],
)
def test_check(probe, number, text):
    with pytest.raises(KprobeError, match=text) as caught:
        handlers.check(probe)
    assert caught.value.errno == number


def test_what_is_permitted():
    handlers.check(Kprobe("f", pre_handler=reads, post_handler=faulted))
    handlers.check(Kretprobe(Kprobe("f"), handler=reads, maxactive=4096))
    handlers.check(Djprobe(5, 5, handler=reads), spliced=True)


def test_wrong_parameters_are_a_mistake_of_the_handler():
    with pytest.raises(HandlerError, match=r"called as faulted\(p, regs\)"):
        handlers.check(Kprobe("f", pre_handler=faulted))


@pytest.mark.parametrize(
    ("reason", "detail", "number"),
    [
        (Reason.KPROBE_BLACKLIST, "kprobe: Invalid argument (EINVAL)", errno.EINVAL),
        (Reason.NOT_A_BOUNDARY, "no instruction", errno.EILSEQ),
        (
            Reason.KERNEL_REFUSES,
            "kprobe: the kernel does not set a kprobe: Operation not permitted (EPERM)",
            errno.EPERM,
        ),
        (Reason.KERNEL_REFUSES, "for no reason", errno.EINVAL),
    ],
)
def test_numbers_of_refusals(reason, detail, number):
    assert places.refused(Refusal(reason, 5, detail)).errno == number
