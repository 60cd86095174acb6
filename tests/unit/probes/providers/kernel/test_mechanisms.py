"""Which way to a place is taken, with a kernel that takes what a test says."""

import errno
import os
from dataclasses import dataclass, field

import pytest

from anyprobe.core.errors import KernelRefused
from anyprobe.core.refusal import Reason
from anyprobe.probes.providers.kernel import mechanisms
from anyprobe.probes.providers.kernel.mechanisms import FENTRY, KPROBE, MULTI, TRACEPOINT, Attacher, place
from anyprobe.probes.providers.kernel.places.sites import KernelSite
from anyprobe.target.kernel import tracefs
from anyprobe.target.kernel.symbols import KernelFunction

ATTACHER = Attacher(None, None)


@dataclass
class Kernel:
    """Takes or refuses; ``refuses``: error numbers by the attachment's name or by a function's."""

    refuses: dict[str, int] = field(default_factory=dict)
    traceable: object = None
    taken: list[tuple[str, list[str]]] = field(default_factory=list)

    def attach(self, made):
        names = [site.name for site in made.sites]
        for what in (made.mechanism, *names, *(f"{made.mechanism} {name}" for name in names)):
            if what in self.refuses:
                raise KernelRefused("attach a program", self.refuses[what])
        self.taken.append((made.mechanism, names))


@pytest.fixture
def kernel(monkeypatch):
    made = Kernel()
    ways = [each._replace(attach=lambda _, attachment: made.attach(attachment)) for each in mechanisms.CHEAPEST]
    renamed = dict(zip(mechanisms.CHEAPEST, ways, strict=True))
    monkeypatch.setattr(mechanisms, "CHEAPEST", tuple(ways))
    monkeypatch.setattr(mechanisms, "FOR_MANY", tuple(renamed[each] for each in mechanisms.FOR_MANY))
    monkeypatch.setattr(mechanisms.tracefs, "traceable", lambda addresses: made.traceable and made.traceable(addresses))
    monkeypatch.setattr(mechanisms.preemption, "is_preemptible", lambda: False)
    monkeypatch.setattr(mechanisms.tracefs, "blacklist", lambda: [(0x500, 0x600, "noinstr_function")])
    return made


def function(name="vfs_read", kind="entry", address=0x1000, offset=0, **more):
    spec = f"kernel:vmlinux:{name}:{kind}"
    return KernelSite(spec, "vmlinux", name, kind, offset, KernelFunction(name, "vmlinux", address), (name,), **more)


def test_cheapest_first(kernel):
    assert [each.mechanism for each in place(ATTACHER, [function()], None)[0]] == [FENTRY.name]
    assert [each.mechanism for each in place(ATTACHER, [function(kind="return")], None)[0]] == [FENTRY.at_return]


def test_next_one_where_the_kernel_refuses(kernel):
    kernel.refuses = {"fentry": errno.EPERM, "kprobe.multi": errno.EOPNOTSUPP}
    made, refused = place(ATTACHER, [function()], None)
    assert [each.mechanism for each in made] == [KPROBE.name]
    assert not refused


def test_demanded_one_and_no_other(kernel):
    kernel.refuses = {"kprobe": errno.ENOENT}
    made, refused = place(ATTACHER, [function()], "kprobe")
    assert not made
    ((spec, why),) = refused
    assert spec == "kernel:vmlinux:vfs_read:entry"
    assert why.reason is Reason.KERNEL_REFUSES
    assert "kprobe: " in why.detail
    assert "ENOENT" in why.detail


@pytest.mark.parametrize("demanded", ["kprobe", "kretprobe"])
def test_a_return_may_be_demanded_by_both_names(kernel, demanded):
    assert [each.mechanism for each in place(ATTACHER, [function(kind="return")], demanded)[0]] == ["kretprobe"]


def test_an_entry_is_not_had_by_what_is_for_returns(kernel):
    assert not mechanisms.is_meant(FENTRY, function(), "fexit")
    assert mechanisms.is_meant(FENTRY, function(kind="return"), "fexit")


def test_offsets_are_for_kprobes(kernel):
    assert [each.mechanism for each in place(ATTACHER, [function(kind="offset", offset=4)], None)[0]] == ["kprobe"]


def test_many_functions_have_one_attachment(kernel):
    sites = [function(f"f{number}", address=0x1000 + number) for number in range(20)]
    made, refused = place(ATTACHER, sites, None)
    assert [(each.mechanism, list(each.slots)) for each in made] == [(MULTI.name, list(range(20)))]
    assert not refused


def test_one_bad_function_does_not_spoil_the_others(kernel):
    kernel.refuses = {"kprobe.multi f11": errno.EINVAL, "f4": errno.EINVAL}
    sites = [function(f"f{number}", address=0x1000 + number) for number in range(20)]
    made, refused = place(ATTACHER, sites, None)
    slots = sorted((slot, each.mechanism) for each in made for slot in each.slots)
    assert [slot for slot, _ in slots] == [number for number in range(20) if number != 4]
    assert dict(slots)[11] == FENTRY.name
    assert {mechanism for slot, mechanism in slots if slot != 11} == {MULTI.name}
    assert [spec for spec, _ in refused] == ["kernel:vmlinux:f4:entry"]


def test_what_cannot_be_traced_is_not_tried_with_the_others(kernel):
    kernel.traceable = lambda addresses: [address % 2 == 0 for address in addresses]
    sites = [function(f"f{number}", address=0x1000 + number) for number in range(20)]
    made, _ = place(ATTACHER, sites, None)
    assert [(each.mechanism, len(each.slots)) for each in made] == [(MULTI.name, 10), *[(FENTRY.name, 1)] * 10]
    assert list(made[0].slots) == list(range(0, 20, 2))


def test_without_multi_each_is_attached_alone(kernel):
    kernel.refuses = {"kprobe.multi": errno.EOPNOTSUPP}
    sites = [function(f"f{number}", address=0x1000 + number) for number in range(20)]
    made, _ = place(ATTACHER, sites, None)
    assert [each.mechanism for each in made] == [FENTRY.name] * 20


def test_system_call_falls_back_to_its_tracepoint(kernel):
    kernel.refuses = dict.fromkeys(("fentry", "kprobe.multi", "kprobe"), errno.EPERM)
    made, _ = place(ATTACHER, [function(tracepoint=("syscalls", "sys_enter_read"))], None)
    assert [each.mechanism for each in made] == [TRACEPOINT.name]


def test_refusals_have_their_reasons(kernel):
    kernel.refuses = {"fentry": errno.ENOENT, "kprobe.multi": errno.ENOENT, "kprobe": errno.EINVAL}
    ((_, why),) = place(ATTACHER, [function(address=0x540)], None)[1]
    assert why.reason is Reason.KPROBE_BLACKLIST
    assert "noinstr_function" in why.detail
    part = function("noinstr_function.part.0", address=0x900)
    assert place(ATTACHER, [part], None)[1][0][1].reason is Reason.KPROBE_BLACKLIST
    other = function("noinstr_function_too.part.0", address=0x900)
    assert place(ATTACHER, [other], None)[1][0][1].reason is not Reason.KPROBE_BLACKLIST
    kernel.refuses = {"kprobe": errno.EILSEQ}
    ((_, why),) = place(ATTACHER, [function(kind="offset", offset=1)], None)[1]
    assert why.reason is Reason.NOT_A_BOUNDARY
    ((_, why),) = place(ATTACHER, [function("do_exit", "return")], None)[1]
    assert why.reason is Reason.NO_EXIT


@pytest.mark.parametrize("traceable", [True, False, None])
def test_functions_that_ftrace_cannot_trace_are_told_apart(kernel, monkeypatch, traceable):
    monkeypatch.setattr(mechanisms.tracefs.Traceable, "has", lambda self, address, names: traceable)
    kernel.refuses = {"fentry": errno.ENOENT, "kprobe.multi": errno.ENOENT, "kprobe": errno.EINVAL}
    ((_, why),) = place(ATTACHER, [function()], None)[1]
    assert (why.reason is Reason.NOT_TRACEABLE) == (traceable is False)
    assert "EINVAL" in why.detail


def test_an_interrupt_takes_back_what_was_attached(kernel):
    closed = []

    def attach(made):
        if made.sites[0].name == "second":
            raise KeyboardInterrupt
        made.told.append(lambda: closed.append(made.sites[0].name))
        made.descriptors.append(os.open("/dev/null", os.O_RDONLY))

    kernel.attach = attach
    with pytest.raises(KeyboardInterrupt):
        place(ATTACHER, [function("first"), function("second", address=0x2000)], None)
    assert closed == ["first"]


def test_preemptible_kernel_is_not_probed_by_what_misses_hits_then(kernel, monkeypatch):
    monkeypatch.setattr(mechanisms.preemption, "is_preemptible", lambda: True)
    assert [each.mechanism for each in place(ATTACHER, [function()], None)[0]] == [MULTI.name]
    kernel.refuses = {"kprobe.multi": errno.EOPNOTSUPP}
    assert [each.mechanism for each in place(ATTACHER, [function()], None)[0]] == [KPROBE.name]
    assert [each.mechanism for each in place(ATTACHER, [function()], "fentry")[0]] == [FENTRY.name]


def test_function_of_a_module_that_has_gone(kernel, monkeypatch):
    kernel.refuses = dict.fromkeys(["fentry", "kprobe.multi", "kprobe"], errno.ENOENT)
    monkeypatch.setattr(tracefs.loaded_modules, "loaded", lambda: {"other": 1})
    site = KernelSite("kernel:visitor:arrive:entry", "visitor", "arrive", "entry", 0,
        KernelFunction("arrive", "visitor", 0x1000), ("arrive",))  # fmt: skip
    _, ((_, why),) = place(ATTACHER, [site], None)
    assert (why.reason, why.detail) == (Reason.KERNEL_REFUSES, "visitor has been unloaded meanwhile")
