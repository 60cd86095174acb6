"""The ways to a place in the kernel, each tried and not looked up by version.

Each makes one attachment for some sites, or raises what the kernel says. What an attachment holds is descriptors: the
kernel removes all when they are closed, also when it does so for a process that has been killed.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from anyprobe.core.errors import KernelRefused, TargetError, UnsupportedTarget
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.kernel.attacher import Attacher, Attachment
from anyprobe.probes.providers.kernel.places.sites import KernelSite, Unable
from anyprobe.probes.providers.kernel.places.specs import KernelSpec
from anyprobe.target.kernel import preemption, tracefs
from anyprobe.target.kernel.descriptors import TOO_MANY

_MULTI_FROM = 8
"""From how many functions on one attachment for all is cheaper to make than one each."""
_NEVER_RETURN = frozenset({
    "do_exit", "do_group_exit", "make_task_dead", "kthread_exit", "kthread_complete_and_exit", "panic",
    "rewind_stack_and_make_dead", "__x64_sys_exit", "__x64_sys_exit_group", "__do_sys_exit", "__do_sys_exit_group",
})  # fmt: skip
"""Functions of which no return is seen; fexit would keep its trampoline for each thread that has entered them."""


_UNTRACED = "ftrace cannot trace it"
_OF_ONE_SITE = frozenset({errno.EINVAL, errno.ENOENT, errno.ESRCH, errno.EBUSY, errno.EADDRNOTAVAIL})
"""What the kernel says of a whole group of functions if one of them cannot be traced."""


class Mechanism(NamedTuple):
    """One way: what it is called at entries and at returns, how it attaches, and at which sites it may."""

    name: str
    at_return: str | None
    attach: Callable[[Attacher, Attachment], None]
    is_possible: Callable[[KernelSite], bool]
    """Whether it is for sites of this kind; whether the kernel does it, shows when it is tried."""
    many: bool = False
    """Whether one attachment may have several sites."""
    on_demand: bool = False
    """Whether it is used only if it is demanded."""

    def called(self, site: KernelSite) -> str:
        """Return what it is called at a site."""
        return self.at_return if site.kind == "return" and self.at_return else self.name


def _at_an_end(site: KernelSite) -> bool:
    return site.function is not None and site.kind != "offset"


FENTRY = Mechanism("fentry", "fexit", Attacher.function, _at_an_end)
MULTI = Mechanism("kprobe.multi", "kretprobe.multi", Attacher.multi, _at_an_end, many=True)
KPROBE = Mechanism("kprobe", "kretprobe", Attacher.kprobe, lambda site: site.function is not None)
RAW = Mechanism("raw_tp", None, Attacher.raw, lambda site: site.raw is not None)
TYPED = Mechanism("tp_btf", None, Attacher.typed_tracepoint, lambda site: site.raw is not None)
TRACEPOINT = Mechanism("tracepoint", None, Attacher.tracepoint, lambda site: site.tracepoint is not None)
UPROBE = Mechanism("uprobe", "uretprobe", Attacher.uprobe, lambda site: site.file is not None)
EVENT = Mechanism("perf_event", None, Attacher.event, lambda site: site.event is not None)
SPLICE = Mechanism(
    "splice", None, Attacher.splice, lambda site: site.function is not None, many=True, on_demand=True,
)  # fmt: skip
CHEAPEST = (FENTRY, MULTI, KPROBE, RAW, TYPED, TRACEPOINT, EVENT, UPROBE)
"""In the order of what a hit costs."""
FOR_MANY = (MULTI, FENTRY, KPROBE, RAW, TYPED, TRACEPOINT, EVENT, UPROBE)
AT_FUNCTIONS = frozenset({FENTRY.name, MULTI.name, KPROBE.name})
"""The mechanisms for functions of the kernel."""
WITHOUT_A_RECORD = frozenset({RAW.name, TYPED.name})
"""The mechanisms at tracepoints that see what the tracepoint passes, not the fields of its record."""
NAMES = tuple(name for each in (*CHEAPEST, SPLICE) for name in (each.name, each.at_return) if name)


def is_meant(way: Mechanism, site: KernelSite, demanded: str | None) -> bool:
    """Return whether a mechanism may be used at a site; its name at entries is good for returns too."""
    asked = demanded is not None or not way.on_demand
    return asked and demanded in {None, way.name, way.called(site)} and way.is_possible(site)


def place(
    attacher: Attacher, sites: Sequence[KernelSite], demanded: str | None
) -> tuple[list[Attachment], list[tuple[str, Refusal]]]:
    """Attach to sites, each with the counter of its position, by the cheapest mechanism or by one that is demanded."""
    if demanded == SPLICE.name:
        return _spliced(attacher, sites)
    refused = {slot: why for slot, site in enumerate(sites) if (why := endless(site)) is not None}
    left = {slot: site for slot, site in enumerate(sites) if slot not in refused}
    failed: dict[int, list[str]] = {slot: [] for slot in left}
    made: list[Attachment] = []
    try:
        for way in in_order(len(sites)):
            able = [slot for slot, site in left.items() if is_meant(way, site, demanded)]
            groups = _groups(way, able, left)
            if way is FENTRY:
                for slot in set(able).difference(*groups):
                    failed[slot].append(f"{way.called(left[slot])}: {_UNTRACED}")
            for group in groups:
                for each in _try(attacher, way, [(slot, left[slot]) for slot in group], failed):
                    made.append(each)
                    for slot in each.slots:
                        del left[slot]
    except BaseException:
        for each in made:
            each.close()
        raise
    restrictions = tracefs.Restrictions()
    for slot, site in left.items():
        if _is_unknown(site, failed[slot]):
            near = attacher.names.tracepoints_like(site.name)
            nearest = f"; nearest: {', '.join(near)}" if near else ""
            failed[slot].insert(0, f"no tracepoint of the kernel has this name{nearest}")
        refused[slot] = refusal(site, failed[slot], restrictions)
    return made, [(sites[slot].spec, refused[slot]) for slot in sorted(refused)]


def _is_unknown(site: KernelSite, failed: Sequence[str]) -> bool:
    """Return whether it is at a tracepoint by a name that the kernel does not know."""
    named_only = site.raw is not None and site.tracepoint is None
    return named_only and any(f"({errno.errorcode[errno.ENOENT]})" in each for each in failed)


def _spliced(attacher: Attacher, sites: Sequence[KernelSite]) -> tuple[list[Attachment], list[tuple[str, Refusal]]]:
    """Splice all sites at once; each refusal is of one site."""
    attacher.check()
    made = Attachment(SPLICE.name, sites, range(len(sites)))
    try:
        SPLICE.attach(attacher, made)
    except Unable as failure:
        made.close()
        raise UnsupportedTarget(str(failure)) from None
    except BaseException:
        made.close()
        raise
    assert made.splices is not None
    why = made.splices.refused
    made.slots = [slot for slot in range(len(sites)) if slot not in why]
    made.sites = [sites[slot] for slot in made.slots]
    refused = [(sites[slot].spec, why[slot]) for slot in sorted(why)]
    if not made.slots:
        made.close()
    return [made] if made.slots else [], refused


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

    Where the kernel does not tell what can be traced, all are tried together, then halves. Where it does, others are
    not tried by what needs that: of each one the type would be looked up first.
    """
    if len(slots) < _MULTI_FROM or not (way.many or way is FENTRY):
        return [[slot] for slot in slots]
    can = tracefs.traceable([sites[slot].address for slot in slots])
    if can is not None:
        slots = [slot for slot, traceable in zip(slots, can, strict=True) if traceable]
    return [list(slots)] * bool(slots) if way.many else [[slot] for slot in slots]


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
        if isinstance(failure, KernelRefused) and failure.errno in TOO_MANY:
            raise
        if len(group) == 1 or not (isinstance(failure, KernelRefused) and failure.errno in _OF_ONE_SITE):
            for slot, _ in group:
                failed[slot].append(f"{made.mechanism}: {failure}")
            return []
    except BaseException:
        made.close()
        raise
    half = len(group) // 2
    return [*_try(attacher, way, group[:half], failed), *_try(attacher, way, group[half:], failed)]


def check_demanded(spec: KernelSpec, sites: Sequence[KernelSite], demanded: str | None) -> None:
    """Complain where a mechanism is demanded that is not for such sites at all."""
    every = (*CHEAPEST, SPLICE)
    if any(is_meant(way, sites[0], demanded) for way in every):
        return
    ways = [way.called(sites[0]) for way in every if way.is_possible(sites[0])]
    raise spec.error(spec.function, f"{demanded} is not for this; possible: {', '.join(ways)}")


def endless(site: KernelSite) -> Refusal | None:
    """Return that a site is a return of a function that never returns, None if it is not."""
    if site.kind == "return" and _NEVER_RETURN.intersection(site.names):
        return Refusal(Reason.NO_EXIT, site.address, "the function never returns")
    return None


def on_their_way(function: str) -> str:
    """Return why the kernel sets no kprobes in a function that is on its blacklist."""
    return f"kprobes may not be set in {function}, since it runs on their way"


def refusal(site: KernelSite, failed: Sequence[str], restrictions: tracefs.Restrictions) -> Refusal:
    """Return why no mechanism could do it."""
    if site.function is not None and restrictions.has_gone(site.function.module):
        detail = f"{site.function.module} has been unloaded meanwhile"
        return Refusal(Reason.KERNEL_REFUSES, site.address, detail)
    blacklisted = restrictions.blacklisted(site.address, site.names) if site.function is not None else ""
    if blacklisted:
        detail = f"{on_their_way(blacklisted)}, and {'; '.join(failed)}"
        return Refusal(Reason.KPROBE_BLACKLIST, site.address, detail)
    if site.kind == "offset" and any("EILSEQ" in each for each in failed):
        return Refusal(Reason.NOT_A_BOUNDARY, site.address, "no instruction of the function starts here")
    if site.function is not None and restrictions.traceable.has(site.function.address, site.names) is False:
        detail = f"{site.name} was built without the call by which ftrace traces functions; {'; '.join(failed)}"
        return Refusal(Reason.NOT_TRACEABLE, site.address, detail)
    return Refusal(Reason.KERNEL_REFUSES, site.address, "; ".join(failed))
