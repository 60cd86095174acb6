"""The ways to a place in the kernel, each tried and not looked up by version.

Each makes one attachment for some sites, or raises what the kernel says. What an attachment holds is descriptors: the
kernel removes all when they are closed, also when it does so for a process that has been killed.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyprobe.core.errors import KernelRefused, TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.kernel.counters import GO_ON, Counters
from anyprobe.probes.providers.kernel.sites import KernelNames, KernelSite, Unable
from anyprobe.probes.providers.kernel.specs import KernelSpec
from anyprobe.target.kernel import perf, preemption, programs, tracefs
from anyprobe.target.kernel.btf import open_module
from anyprobe.target.kernel.symbols import KERNEL

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.handlers import KernelHandler

Told = Callable[[], int | None]
_MULTI_FROM = 8
"""From how many functions on one attachment for all is cheaper to make than one each."""
_NEVER_RETURN = frozenset({
    "do_exit", "do_group_exit", "make_task_dead", "kthread_exit", "kthread_complete_and_exit", "panic",
    "rewind_stack_and_make_dead", "__x64_sys_exit", "__x64_sys_exit_group", "__do_sys_exit", "__do_sys_exit_group",
})  # fmt: skip
"""Functions of which no return is seen; fexit would keep its trampoline for each thread that has entered them."""


_OF_ONE_SITE = frozenset({errno.EINVAL, errno.ENOENT, errno.ESRCH, errno.EBUSY, errno.EADDRNOTAVAIL})
"""What the kernel says of a whole group of functions if one of them cannot be traced."""


@dataclass(eq=False, slots=True)
class Attachment:
    """One thing that the kernel has attached; ``slots`` are the counters of its sites, one each."""

    mechanism: str
    sites: Sequence[KernelSite]
    slots: Sequence[int]
    descriptors: list[int] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    """Ask the kernel for what it has missed."""
    lost: int = 0
    is_told: bool = True
    """Whether the kernel counts what it misses here."""

    def misses(self) -> int:
        """Return how many hits the kernel says that it has missed."""
        if self.descriptors:
            counts = [ask() for ask in self.told]
            self.is_told = None not in counts
            self.lost = sum(count or 0 for count in counts)
        return self.lost

    def close(self) -> None:
        """Take it away; what was missed up to now is kept."""
        with suppress(KernelRefused):
            self.misses()
        while self.descriptors:
            os.close(self.descriptors.pop())

    def hold(self, descriptor: int) -> int:
        """Keep a descriptor until the end, and return it."""
        self.descriptors.append(descriptor)
        return descriptor


@dataclass(frozen=True, slots=True)
class Attacher:
    """What the mechanisms need: the counters of a probe, and what there is in the kernel."""

    counters: Counters
    names: KernelNames
    handler: "KernelHandler | None" = None
    check: Callable[[], None] = lambda: None
    """Called before each attachment; raises an error if no more is wanted."""

    def function(self, made: Attachment) -> None:
        """Attach to the entry or exit of a function by its type (``fentry``, ``fexit``)."""
        (site,), (slot,) = made.sites, made.slots
        found = self.names.type_of(site)
        if found is None:
            raise Unable("BTF has no type of it alone")
        attached = programs.EXIT if site.kind == "return" else programs.ENTRY
        code = self._code(slot, lambda handler: handler.for_function(site, found))
        types = 0 if found.types.name == KERNEL else open_module(found.types.name)
        try:
            kind = programs.Kind(programs.PROGRAM_OF_A_FUNCTION, attached, found.number, types)
            program = self._load(made, code, kind)
        finally:
            if types:
                os.close(types)
        made.hold(programs.attach_typed(program))

    def _code(self, slot: int, compiled: "Callable[[KernelHandler], bytes]") -> bytes:
        """Return a program that counts, and then runs the handler if there is one."""
        if self.handler is None:
            return self.counters.program(slot)
        return self.counters.before(slot) + compiled(self.handler)

    def kprobe(self, made: Attachment) -> None:
        """Set a kprobe, or a kretprobe."""
        (site,), (slot,) = made.sites, made.slots
        code = self._code(slot, lambda handler: handler.for_registers(site, self.names.type_of(site)))
        program = self._load(made, code, programs.Kind(programs.PROGRAM_OF_A_KPROBE))
        event = made.hold(perf.open_kprobe(site.address, returning=site.kind == "return"))
        link = made.hold(programs.attach_to_event(program, event))
        made.told.append(lambda: programs.link_misses(link))

    def multi(self, made: Attachment) -> None:
        """Attach to many functions at once (``kprobe.multi``)."""
        if self.handler is not None:
            raise Unable("it runs one program for all functions, and a handler has one for each")
        kind = programs.Kind(programs.PROGRAM_OF_A_KPROBE, programs.MULTI)
        program = self._load(made, self.counters.program_for_many(), kind)
        cookies = {site.address: slot for site, slot in zip(made.sites, made.slots, strict=True)}
        link = made.hold(programs.attach_to_many(program, cookies, returning=made.sites[0].kind == "return"))
        made.told.append(lambda: programs.link_misses(link, many=True))

    def raw(self, made: Attachment) -> None:
        """Attach to a tracepoint without its record."""
        (site,), (slot,) = made.sites, made.slots
        assert site.raw is not None
        code = self._code(slot, lambda handler: handler.for_tracepoint(site))
        program = self._load(made, code, programs.Kind(programs.PROGRAM_OF_A_TRACEPOINT))
        made.hold(programs.attach_raw(program, site.raw))

    def tracepoint(self, made: Attachment) -> None:
        """Attach to a tracepoint's event, as perf does; others at it see their hits as before."""
        if self.handler is not None:
            raise Unable("handlers do not know the record of the event yet")
        (site,), (slot,) = made.sites, made.slots
        assert site.tracepoint is not None
        number = tracefs.tracepoint_number(*site.tracepoint)
        if number is None:
            raise Unable(f"there is no tracepoint {':'.join(site.tracepoint)}")
        code = self.counters.program(slot, result=GO_ON)
        program = self._load(made, code, programs.Kind(programs.PROGRAM_OF_AN_EVENT))
        link = made.hold(programs.attach_to_event(program, made.hold(perf.open_tracepoint(number))))
        made.told.append(lambda: programs.link_misses(link))  # always 0, but None before 6.7, which counts no misses

    @staticmethod
    def _load(made: Attachment, code: bytes, kind: programs.Kind) -> int:
        program = made.hold(programs.load(code, kind))
        made.told.append(lambda: programs.recursion_misses(program))
        return program


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One way: what it is called at entries and at returns, and how it attaches."""

    name: str
    at_return: str | None
    attach: Callable[[Attacher, Attachment], None]
    many: bool = False
    """Whether one attachment may have several sites."""

    def called(self, site: KernelSite) -> str:
        """Return what it is called at a site."""
        return self.at_return if site.kind == "return" and self.at_return else self.name


FENTRY = Mechanism("fentry", "fexit", Attacher.function)
MULTI = Mechanism("kprobe.multi", "kretprobe.multi", Attacher.multi, many=True)
KPROBE = Mechanism("kprobe", "kretprobe", Attacher.kprobe)
RAW = Mechanism("raw_tp", None, Attacher.raw)
TRACEPOINT = Mechanism("tracepoint", None, Attacher.tracepoint)
CHEAPEST = (FENTRY, MULTI, KPROBE, RAW, TRACEPOINT)
"""In the order of what a hit costs."""
FOR_MANY = (MULTI, FENTRY, KPROBE, RAW, TRACEPOINT)
NAMES = tuple(name for each in CHEAPEST for name in (each.name, each.at_return) if name)


def is_possible(way: Mechanism, site: KernelSite) -> bool:
    """Return whether a mechanism is for sites of this kind; whether the kernel does it, shows when it is tried."""
    if way is RAW:
        return site.raw is not None
    if way is TRACEPOINT:
        return site.tracepoint is not None
    return site.function is not None and (site.kind != "offset" or way is KPROBE)


def is_meant(way: Mechanism, site: KernelSite, demanded: str | None) -> bool:
    """Return whether a mechanism may be used at a site; its name at entries is good for returns too."""
    return demanded in {None, way.name, way.called(site)} and is_possible(way, site)


def place(
    attacher: Attacher, sites: Sequence[KernelSite], demanded: str | None
) -> tuple[list[Attachment], list[tuple[str, Refusal]]]:
    """Attach to sites, each with the counter of its position, by the cheapest mechanism or by one that is demanded."""
    refused = {slot: why for slot, site in enumerate(sites) if (why := endless(site)) is not None}
    left = {slot: site for slot, site in enumerate(sites) if slot not in refused}
    failed: dict[int, list[str]] = {slot: [] for slot in left}
    made: list[Attachment] = []
    try:
        for way in in_order(len(sites)):
            able = [slot for slot, site in left.items() if is_meant(way, site, demanded)]
            for group in _groups(way, able, left):
                for each in _try(attacher, way, [(slot, left[slot]) for slot in group], failed):
                    made.append(each)
                    for slot in each.slots:
                        del left[slot]
    except BaseException:
        for each in made:
            each.close()
        raise
    refused |= {slot: refusal(site, failed[slot]) for slot, site in left.items()}
    return made, [(sites[slot].spec, refused[slot]) for slot in sorted(refused)]


def in_order(count: int) -> Sequence[Mechanism]:
    """Return the mechanisms in the order in which they are tried at some sites.

    A program at fentry does not run while another thread is in it that was preempted on the processor; the kernel
    counts that as missed. Kprobes cannot be preempted.
    """
    order = FOR_MANY if count >= _MULTI_FROM else CHEAPEST
    if not preemption.is_preemptible():
        return order
    return sorted(order, key=lambda way: way.name == FENTRY.name)


def _groups(way: Mechanism, slots: Sequence[int], sites: Mapping[int, KernelSite]) -> list[list[int]]:
    """Return the slots by attachment: of what is for many, those that can be traced together, and others alone.

    Where the kernel does not tell what can be traced, all are tried together, then halves.
    """
    if not way.many or len(slots) < _MULTI_FROM:
        return [[slot] for slot in slots]
    can = tracefs.traceable([sites[slot].address for slot in slots])
    if can is None:
        return [list(slots)]
    together = [slot for slot, traceable in zip(slots, can, strict=True) if traceable]
    return [together] if together else []


def _try(
    attacher: Attacher, way: Mechanism, group: list[tuple[int, KernelSite]], failed: dict[int, list[str]]
) -> list[Attachment]:
    """Attach one group; where the kernel does not take it for one of its sites, each half by itself."""
    attacher.check()
    made = Attachment(way.called(group[0][1]), [site for _, site in group], [slot for slot, _ in group])
    try:
        way.attach(attacher, made)
        return [made]
    except (Unable, TargetError) as failure:
        made.told.clear()
        made.close()
        if len(group) == 1 or not (isinstance(failure, KernelRefused) and failure.errno in _OF_ONE_SITE):
            for slot, _ in group:
                failed[slot].append(f"{made.mechanism}: {failure}")
            return []
    except BaseException:
        made.close()
        raise
    half = len(group) // 2
    return [*_try(attacher, way, group[:half], failed), *_try(attacher, way, group[half:], failed)]


def see_demanded(spec: KernelSpec, sites: Sequence[KernelSite], demanded: str | None) -> None:
    """Complain where a mechanism is demanded that is not for such sites at all."""
    if any(is_meant(way, sites[0], demanded) for way in CHEAPEST):
        return
    ways = [way.called(sites[0]) for way in CHEAPEST if is_possible(way, sites[0])]
    raise spec.error(spec.function, f"{demanded} is not for this; possible: {', '.join(ways)}")


def endless(site: KernelSite) -> Refusal | None:
    """Return that a site is a return of a function that never returns, None if it is not."""
    if site.kind == "return" and _NEVER_RETURN.intersection(site.names):
        return Refusal(Reason.NO_EXIT, site.address, "the function never returns")
    return None


def refusal(site: KernelSite, failed: Sequence[str]) -> Refusal:
    """Return why no mechanism could do it."""
    for low, high, name in tracefs.blacklist() if site.function is not None else ():
        if low <= site.address < high:
            detail = f"kprobes may not be set in {name}, since it runs on their way, and {'; '.join(failed)}"
            return Refusal(Reason.KPROBE_BLACKLIST, site.address, detail)
    if site.kind == "offset" and any("EILSEQ" in each for each in failed):
        return Refusal(Reason.NOT_A_BOUNDARY, site.address, "no instruction of the function starts here")
    return Refusal(Reason.KERNEL_REFUSES, site.address, "; ".join(failed))
