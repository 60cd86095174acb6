"""Handlers of both ends of calls in the kernel, and the times of calls."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from anyprobe.data.aggregates.aggregations import Count, Hist
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult
from anyprobe.handlers.types.annotations import AnyType
from anyprobe.probes.providers.kernel.handlers import KernelCallData, KernelHandler
from anyprobe.probes.providers.kernel.places.sites import KernelSite
from anyprobe.probes.providers.kernel.places.specs import KernelSpec

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.handling import Handled
    from anyprobe.probes.providers.kernel.probe import KernelProbe

Handler = Callable[..., Any]
_SPLICE = "splice"
_TWINS = {"fexit": "fentry", "kretprobe": "kprobe"}
"""By which mechanism the entry of a call is seen whose return is seen by another: both know its frame."""


@dataclass(eq=False)
class KernelCall:
    """A handler of both ends of a call; ``ret`` gives it the one for the return, and both are placed then."""

    session: "Handled"
    specs: Sequence[KernelSpec]
    function: Handler
    when: Handler | None = None
    retval: AnyType | None = None
    mechanism: str | None = None
    at_tails: Handler | None = None
    """What runs instead of the return's handler where a function is seen to end in a jump to another one."""
    waiting: bool = True
    """Whether the entry's handler waits for ``ret``."""
    entry: "list[KernelProbe]" = field(default_factory=list)
    returns: "list[KernelProbe]" = field(default_factory=list)
    data: KernelCallData = field(default_factory=KernelCallData)

    def ret(self, function: Handler) -> Handler:
        """Place the handler that runs when the call returns, and the one at the entry if that waits for it."""
        self.session.settle(self)
        collection = self.session.collection
        entering = KernelHandler(collection, self.function, self.when, call=self.data)
        leaving = KernelHandler(collection, function, None, self.retval, self.data, self.at_tails)
        together = self.waiting and self.session.demanded(self.mechanism) == _SPLICE
        for spec in self.specs:
            if together:
                entry, returns = self.session.arm_ends(spec, entering, leaving)
                self.entry.append(entry)
                self.returns.append(returns)
                continue
            if self.waiting:
                self.session.check_handler(spec, entering)
            # first the ends: a call whose beginning alone is seen would keep its data
            (returns,) = self.session.arm([spec.at("return")], self.mechanism, leaving)
            self.returns.append(returns)
            if self.waiting:
                self.entry += self._entries(spec, returns, entering)
        self.waiting = False
        collection.open(self.data.storage)  # no call is seen at its end alone that began before
        return function

    def _entries(self, spec: KernelSpec, returns: "KernelProbe", handler: KernelHandler) -> "Iterator[KernelProbe]":
        """Place the handler at the entries of the functions whose returns are seen, each by the same kind of way."""
        names = {(each.module, each.name): way.mechanism for way in returns.attachments for each in way.sites}
        by_way: dict[str, list[KernelSite]] = {}
        for site in self.session.resolve(spec.at("entry")):
            way = names.get((site.module, site.name))
            if way is not None:
                by_way.setdefault(_TWINS[way], []).append(site)
        for mechanism, sites in by_way.items():
            yield self.session.arm_sites(spec.at("entry"), sites, mechanism, handler)

    def place_alone(self) -> None:
        """Place the entry's handler without one for the return."""
        if self.waiting:
            self.waiting = False
            handler = KernelHandler(self.session.collection, self.function, self.when)
            self.entry += self.session.arm(self.specs, self.mechanism, handler)


def timing(times: Hist, unmatched: Count, tails: Count) -> tuple[Handler, Handler, Handler]:
    """Return the handlers of both ends of calls that take durations, and count ends without a beginning.

    The last one is for ends by a jump to another function: the call is not over then.
    """

    def entered(ctx):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - a handler
        ctx.data.began = ctx.now

    def left(ctx):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - a handler
        began = ctx.data.began
        if began is None:
            unmatched.add(key=(ctx.func,))
        else:
            times.add(ctx.now - began, key=(ctx.func,))

    def jumped(ctx):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - a handler
        if ctx.data.began is None:
            unmatched.add(key=(ctx.func,))
        else:
            tails.add(key=(ctx.func,))

    return entered, left, jumped


class Timing:
    """The durations of the calls of some functions."""

    def __init__(self, session: "Handled", spec: KernelSpec, mechanism: str | None) -> None:
        """See both ends of all calls."""
        if not spec.is_function:
            raise spec.error(spec.function, "functions of the kernel and system calls are timed here")
        sites = session.resolve(spec.at("entry"))
        self._times = Hist("times", by=("func",), capacity=len(sites))
        self._unmatched = Count("unmatched", by=("func",), capacity=len(sites))
        self._tails = Count("tails", by=("func",), capacity=len(sites))
        entered, left, jumped = timing(self._times, self._unmatched, self._tails)
        self.call = KernelCall(session, [spec], entered, mechanism=mechanism, at_tails=jumped)
        self.call.ret(left)
        self._session = session

    @property
    def aggregations(self) -> frozenset[object]:
        """What is no aggregation of the user's."""
        return frozenset({self._times, self._unmatched, self._tails})

    @property
    def probes(self) -> "list[KernelProbe]":
        """The probes at both ends."""
        return [*self.call.entry, *self.call.returns]

    def results(self) -> Iterator[FunctionTiming]:
        """Yield the durations by function."""
        collection = self._session.collection
        times = collection.numbers(self._times)
        unmatched = collection.numbers(self._unmatched)
        tails = collection.numbers(self._tails)
        ends: dict[int, list[SiteResult]] = {}
        for probe in self.call.returns:
            for site in probe.results():
                ends.setdefault(site.address, []).append(site)
        for probe in self.call.entry:
            for site in probe.results():
                cell, lost = times.get((site.address,)), unmatched.get((site.address,))
                places = (site, *ends.get(site.address, ()))
                jumped = tails.get((site.address,))
                count, jumps = (0 if each is None else each.count for each in (cell, jumped))
                timing = FunctionTiming(
                    site.spec, site.module, site.function, count, tail_exits=jumps,
                    unmatched=0 if lost is None else lost.count,
                    in_flight=max(0, site.hits - count - jumps - sum(each.nmissed for each in places[1:])),
                    nmissed=sum(each.nmissed for each in places),
                    address=site.address, places=places,
                )  # fmt: skip
                if cell is not None:
                    timing = replace(
                        timing, sum_ns=float(cell.sum or 0), min_ns=float(cell.min or 0), max_ns=float(cell.max or 0),
                        buckets=tuple((float(low), float(high), number) for low, high, number in cell.buckets),
                    )  # fmt: skip
                yield timing
