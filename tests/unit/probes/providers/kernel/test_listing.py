"""What could be probed, with a kernel of which a test says what it takes."""

from types import SimpleNamespace

import pytest

from anyprobe.core.errors import SpecError, TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.kernel import listing, mechanisms, trials
from anyprobe.probes.providers.kernel.listing import Listing
from anyprobe.probes.providers.kernel.places.sites import FunctionType, KernelSite
from anyprobe.probes.providers.kernel.places.specs import parse
from anyprobe.probes.providers.kernel.trials import Trial
from anyprobe.target.kernel import tracefs
from anyprobe.target.kernel.symbols import KernelFunction
from anyprobe.target.kernel.tracefs import Field
from anyprobe.target.kernel.types import Int, Pointer, Prototype, Void

TYPES = {0: Void(), 1: Int("int", 4, signed=True), 2: Pointer(1)}
FILE = Prototype(result=1, parameters=(("file", 2), ("count", 1)))


class Types:
    name = "vmlinux"

    def prototype(self, number):
        return FILE

    def bare(self, number):
        return number, TYPES[number]

    def described(self, number):
        return ["void", "int", "int *"][number]


class Kernel:
    """Names, types, and which mechanisms work."""

    def __init__(self):
        self.sites, self.typed, self.broken, self.tried = [], True, {}, []

    def resolve(self, spec):
        return self.sites

    def type_of(self, site):
        return FunctionType(Types(), 7) if self.typed and site.function is not None else None

    def trial(self, names, name):
        self.tried.append(name)
        return Trial(name, "", 0, 20, self.broken.get(name, "")) if name in self.broken else Trial(name, "", 20, 20)


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()
    kernel.traceable, kernel.blacklist = True, []
    monkeypatch.setattr(trials, "of_mechanism", kernel.trial)
    monkeypatch.setattr(tracefs, "Traceable", lambda: SimpleNamespace(has=lambda address, names: kernel.traceable))
    monkeypatch.setattr(tracefs, "blacklist", lambda: kernel.blacklist)
    monkeypatch.setattr(mechanisms.preemption, "is_preemptible", lambda: False)
    return kernel


def at(name="vfs_read", kind="entry", offset=0, **changes):
    function = KernelFunction(name, "vmlinux", 0x1000)
    return KernelSite(f"kernel:vmlinux:{name}:{kind}", "vmlinux", name, kind, offset, function, (name,), **changes)


def listed(kernel, spec, *sites, demanded=None):
    kernel.sites = sites
    return Listing(kernel).listed(parse(spec), demanded)


def test_all_mechanisms_are_named_the_cheapest_first(kernel):
    entry, leaving = listed(kernel, "kernel::vfs_read", at(), at(kind="return"))
    assert entry.mechanisms == ("fentry", "kprobe.multi", "kprobe")
    assert leaving.mechanisms == ("fexit", "kretprobe.multi", "kretprobe")
    assert (entry.strategy, entry.refusal) == ("fentry", None)
    assert (entry.arguments, entry.result) == ((("file", "int *"), ("count", "int")), "int")


def test_each_mechanism_is_tried_once(kernel):
    listed(kernel, "kernel::vfs_*", *(at(f"vfs_{number}") for number in range(5)))
    assert sorted(kernel.tried) == ["fentry", "kprobe", "kprobe.multi"]


def test_what_the_kernel_does_not_take_is_not_possible(kernel):
    kernel.broken = {"kprobe.multi": "built without fprobe", "fentry": "not permitted"}
    (site,) = listed(kernel, "kernel::vfs_read", at())
    assert site.mechanisms == ("kprobe",)


def test_types_and_tracing_are_what_fentry_needs(kernel, monkeypatch):
    kernel.typed = False
    (site,) = listed(kernel, "kernel::vfs_read", at())
    assert (site.mechanisms, site.arguments) == (("kprobe.multi", "kprobe"), None)
    kernel.typed, kernel.traceable = True, False
    answers = [
        ([SimpleNamespace(mechanism="kprobe", close=list)], []),
        ([], [("a", Refusal(Reason.KERNEL_REFUSES, 1, "no"))]),
    ]
    monkeypatch.setattr(listing, "Counters", lambda number: SimpleNamespace(close=list))
    monkeypatch.setattr(mechanisms, "place", lambda attacher, sites, demanded: answers.pop(0))
    assert listed(kernel, "kernel::vfs_read", at())[0].mechanisms == ("kprobe",)
    assert listed(kernel, "kernel::vfs_read", at())[0].refusal.reason is Reason.KERNEL_REFUSES
    kernel.traceable = None  # not told
    assert listed(kernel, "kernel::vfs_read", at())[0].mechanisms[0] == "fentry"


def test_nothing_possible_is_a_refusal_with_every_reason(kernel):
    kernel.traceable, kernel.blacklist = False, [(0x1000, 0x1100, "vfs_read")]
    (site,) = listed(kernel, "kernel::vfs_read", at())
    assert (site.strategy, site.mechanisms) == (None, ())
    assert site.refusal.reason is Reason.KPROBE_BLACKLIST
    assert "fentry: the kernel does not trace it" in site.refusal.detail
    kernel.blacklist = [(0x5000, 0x5100, "vfs_read")]
    assert listed(kernel, "kernel::vfs_read.part.0", at("vfs_read.part.0"))[0].refusal == site.refusal
    assert listed(kernel, "kernel::do_exit%return", at("do_exit", "return"))[0].refusal.reason is Reason.NO_EXIT


def test_a_mechanism_that_is_demanded_is_the_only_one(kernel):
    assert listed(kernel, "kernel::vfs_read", at(), demanded="kprobe")[0].mechanisms == ("kprobe",)
    with pytest.raises(SpecError, match="raw_tp is not for this"):
        listed(kernel, "kernel::vfs_read", at(), demanded="raw_tp")


def test_single_instructions_are_tried_themselves(kernel, monkeypatch):
    refusal = Refusal(Reason.NOT_A_BOUNDARY, 0x1001, "no instruction of the function starts here")
    made = SimpleNamespace(mechanism="kprobe", close=lambda: kernel.tried.append("closed"))
    monkeypatch.setattr("anyprobe.probes.providers.kernel.listing.Counters", lambda _: SimpleNamespace(close=int))
    answers = [([made], []), ([], [("kernel:vmlinux:vfs_read:0x1", refusal)])]
    monkeypatch.setattr(mechanisms, "place", lambda attacher, sites, demanded: answers.pop(0))
    first, second = listed(kernel, "kernel::vfs_read+4", at(kind="offset", offset=4), at(kind="offset", offset=1))
    assert (first.mechanisms, kernel.tried) == (("kprobe",), ["closed"])
    assert second.refusal is refusal


def test_tracepoints_and_system_calls_have_the_fields_of_their_events(kernel, monkeypatch):
    asked = []

    def fields(category, name):
        asked.append((category, name))
        if category == "gone":
            raise TargetError("no")
        return [Field("fd", "int", 16, 8, is_signed=False)]

    monkeypatch.setattr(tracefs, "fields", fields)
    call = at("read", "return", tracepoint=("syscalls", "sys_exit_read"))
    (site,) = listed(kernel, "syscall::read:return", call)
    assert (site.arguments, site.result) == ((("fd", "int"),), "long")
    assert asked == [("syscalls", "sys_enter_read")]
    switch = KernelSite("", "sched", "sched_switch", "entry", tracepoint=("sched", "sched_switch"), raw="sched_switch")
    (site,) = listed(kernel, "tracepoint:sched:sched_switch", switch)
    assert (site.arguments, site.result) == ((("fd", "int"),), None)
    assert site.mechanisms == ("raw_tp", "tp_btf", "tracepoint")
    gone = KernelSite("", "gone", "x", "entry", tracepoint=("gone", "x"))
    assert listed(kernel, "tracepoint:gone:x", gone)[0].arguments is None


def test_every_mechanism_can_be_tried_or_is_placed():
    tried = {name for name in mechanisms.NAMES if name in trials._MECHANISMS}
    placed = {mechanisms.EVENT.name, mechanisms.UPROBE.name, mechanisms.UPROBE.at_return, mechanisms.SPLICE.name}
    assert tried | placed == set(mechanisms.NAMES)
