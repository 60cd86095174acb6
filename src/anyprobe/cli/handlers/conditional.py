"""``count`` and ``time`` under a condition: handlers count what it holds for, and results have the usual form."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from anyprobe.cli.programs import targets

if TYPE_CHECKING:
    from anyprobe.cli.handlers.expressions import Expression
    from anyprobe.cli.handlers.handlerplaces import HandlerPlace
    from anyprobe.cli.handlers.handlertext import HandlerText
    from anyprobe.cli.handlers.knownfunctions import Knowledge
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.aggregates.results import CellValue
    from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot

    Cells = dict[tuple[int, int], CellValue]

CAPACITY = 1 << 14
"""Places that hits are counted of apart from each other."""
_COUNTED, _TIMED, _TAILS = "counted under --when", "timed under --when", "left by a jump under --when"
_NAMES = frozenset({_COUNTED, _TIMED, _TAILS})


@dataclass
class _Conditional(ABC):
    """What is measured, and the condition."""

    when: "Expression | None"
    pending: bool | None = None
    """Whether specs follow what is loaded later: those in the kernel; of others sessions know it."""
    _things: dict[str, Any] = field(default_factory=dict)
    _numbers: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """What hits of places in the kernel are counted by: address and handler's number, by spec and address."""
    _last_number: int = 0
    also: ClassVar[tuple[str, ...]] = ()
    """Names that are wanted besides those in the condition."""

    @classmethod
    def of(cls, text: str | None, *, pending: bool | None = None) -> Self:
        """Read the options."""
        if text is None:
            return cls(None, pending)
        from anyprobe.cli.handlers.expressions import parse_one

        return cls(parse_one("--when", text), pending)

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Place what counts."""
        if self.when is None:
            self._plainly(session, specs)
            return
        from anyprobe.cli.handlers.expressions import parse_one
        from anyprobe.cli.handlers.handlerplaces import once_each, one_by_one, place_in
        from anyprobe.cli.handlers.handlertext import check_names
        from anyprobe.cli.handlers.knownfunctions import knowledge_of

        self._things = self._things or self._made()
        wanted = (self.when, *(parse_one("--when", name) for name in self.also))
        specs = one_by_one(session, specs)
        known = [knowledge_of(session, spec, wanted) for spec in specs]
        for each in known:
            check_names(wanted, each.names, each.reason)
        places = [place_in(session, spec, wanted, each.names) for spec, each in zip(specs, known, strict=True)]
        with once_each(session, each_mechanism=True):
            for place, each in zip(places, known, strict=True):
                self._put(session, place, each, wanted, self._number_of(session, place))

    def _number_of(self, session: "Measured", place: "HandlerPlace") -> int:
        """Return the number by which the hits of a place are counted apart from those of others at its addresses.

        In a program no two have one address; in the kernel both ends of a function have, and each mechanism.
        """
        if not place.in_kernel:
            return 0
        from anyprobe.cli.programs.targets import in_the_kernel, kernel_spec

        self._last_number += 1
        for site in in_the_kernel(session).resolve(kernel_spec(place.wanted)):
            address = site.address if place.has_address else 0
            self._numbers.setdefault((site.spec, site.address), (address, self._last_number))
        return self._last_number

    def _put(
        self,
        session: "Measured",
        place: "HandlerPlace",
        known: "Knowledge",
        wanted: "tuple[Expression, ...]",
        number: int,
    ) -> None:
        from anyprobe.cli.handlers.handlerplaces import HandlerMaker
        from anyprobe.cli.handlers.handlertext import uses_returns

        def write(text: "HandlerText", shown: Sequence[str], returns: bool) -> None:  # noqa: ARG001 - a Write
            if uses_returns(wanted):
                tails = "" if known.has_parts and self._result(known, wanted) is None else self._tails(place, number)
                text.add_condition_of_calls(self.when, tails)
            else:
                text.add_condition(self.when)
            text.add(self._line(place, number))

        HandlerMaker(place, wanted, known, write, self._things, retval=self._result(known, wanted)).put(session)

    def _tails(self, place: "HandlerPlace", number: int) -> str:
        return f"tails.add(key=(u64({place.function}), {number}))"

    def _result(self, known: "Knowledge", wanted: "Sequence[Expression]") -> object:
        """Return the type of results that no word holds, unless they are used: it is not asked for what they are."""
        from anyprobe.handlers.types.annotations import u64

        return None if known.reads_result(wanted) else u64

    def seen(self, snapshot: "Snapshot") -> "Snapshot":
        """Return results as they would be if only what the condition holds for had happened."""
        if self.when is None:
            return snapshot
        counted = {each.name: each.entries for each in snapshot.aggregations if each.name in _NAMES}
        lost = {each.name: {"no room": each.dropped} for each in snapshot.aggregations if each.dropped}
        others = tuple(each for each in snapshot.aggregations if each.name not in _NAMES)
        found = replace(snapshot, aggregations=others, dropped={**snapshot.dropped, **lost})
        by_place = {
            name: {(int(key[0]), int(key[1])): cell for key, cell in entries.items()}
            for name, entries in counted.items()
        }
        return self._results(found, by_place)

    def _asked(self, sites: "Sequence[SiteResult]") -> "list[SiteResult]":
        """Return the sites that were asked for: of calls, their beginnings."""
        entered = {(each.module, each.function) for each in sites if each.kind == "entry"}
        return [
            each
            for each in sites
            if each.kind != "return"
            or (each.module, each.function) not in entered
            or (each.spec, each.address) in self._numbers
        ]

    def _place_of(self, site: "SiteResult") -> "tuple[int, int]":
        """Return by which a site's hits are counted."""
        return self._numbers.get((site.spec, site.address), (site.address, 0))

    @abstractmethod
    def _plainly(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Measure without a condition."""

    @abstractmethod
    def _made(self) -> dict[str, Any]:
        """Return the aggregations by their names in the handler."""

    @abstractmethod
    def _line(self, place: "HandlerPlace", number: int) -> str:
        """Return what the handler does where the condition holds."""

    @abstractmethod
    def _results(self, snapshot: "Snapshot", counted: "dict[str, Cells]") -> "Snapshot":
        """Return the results, from what was counted by place."""


class Counts(_Conditional):
    """``count``: hits at each site; calls, where the condition is about what only their end knows."""

    def _plainly(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        targets.count(session, specs, pending=self.pending)

    def _made(self) -> dict[str, Any]:
        from anyprobe.data.aggregates.aggregations import Count

        return {
            "counted": Count(_COUNTED, by=("address", "number"), capacity=CAPACITY),
            "tails": Count(_TAILS, by=("address", "number"), capacity=CAPACITY),
        }

    def _line(self, place: "HandlerPlace", number: int) -> str:
        return f"    counted.add(key=(u64({place.address}), {number}))"

    def _results(self, snapshot: "Snapshot", counted: "dict[str, Cells]") -> "Snapshot":
        from anyprobe.cli.handlers.handlertext import uses_returns

        found = counted.get(_COUNTED, {})
        hits = {place: cell.count for place, cell in found.items()}
        sites = [replace(each, hits=hits.get(self._place_of(each), 0)) for each in self._asked(snapshot.sites)]
        tails = sum(cell.count for cell in counted.get(_TAILS, {}).values())
        of_returns = self.when is not None and uses_returns([self.when])
        return replace(snapshot, sites=tuple(sites), tail_exits=tails if of_returns else None)


class Times(_Conditional):
    """``time``: the durations of calls."""

    also = ("latency_ns",)

    def _plainly(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        if self.pending:
            targets.on_process(session, "times of what is loaded later")
        if session.pid == targets.KERNEL:
            targets.in_the_kernel(session).time(*map(targets.kernel_spec, specs))
        else:
            targets.on_process(session).time(*map(targets.process_spec, specs))

    def _made(self) -> dict[str, Any]:
        from anyprobe.data.aggregates.aggregations import Count, Hist

        return {
            "timed": Hist(_TIMED, by=("address", "number"), capacity=1 << 10),
            "tails": Count(_TAILS, by=("address", "number"), capacity=CAPACITY),
        }

    def _line(self, place: "HandlerPlace", number: int) -> str:
        return f"    timed.add(latency_ns, key=(u64({place.function}), {number}))"

    def _result(self, known: "Knowledge", wanted: "Sequence[Expression]") -> object:
        from anyprobe.handlers.types.annotations import u64

        return None if known.reads_result(wanted) and self.when is not None and self.when.uses("retval") else u64

    def _results(self, snapshot: "Snapshot", counted: "dict[str, Cells]") -> "Snapshot":
        timed, tails = counted.get(_TIMED, {}), counted.get(_TAILS, {})
        entries = self._asked(snapshot.sites)
        places = [(each, self._place_of(each)) for each in entries]
        functions = [timing_of(each, timed.get(place), tails.get(place)) for each, place in places]
        sites = [
            replace(each, hits=function.count + function.tail_exits)
            for each, function in zip(entries, functions, strict=True)
        ]
        return replace(snapshot, sites=tuple(sites), functions=tuple(functions))


def with_functions(
    snapshot: "Snapshot", names: Collection[str], timing: "Callable[[SiteResult, str], FunctionTiming]"
) -> "Snapshot":
    """Return results with a function for each entry, in the stead of what handlers have counted under some names.

    Args:
        snapshot: what was counted.
        names: of aggregations, which are left out.
        timing: returns the function from its entry, and from the name that keys have of it.
    """
    lost = {each.name: {"no room": each.dropped} for each in snapshot.aggregations if each.dropped}
    entries = [each for each in snapshot.sites if each.kind == "entry"]
    return replace(
        snapshot,
        sites=(),
        functions=tuple(timing(each, f"{each.module}:{each.function}") for each in entries),
        aggregations=tuple(each for each in snapshot.aggregations if each.name not in names),
        dropped={**snapshot.dropped, **lost},
    )


def timing_of(site: "SiteResult", cell: "CellValue | None", tails: "CellValue | None") -> "FunctionTiming":
    """Return the calls of a function that handlers have timed; ``tails``: those that left by a jump."""
    from anyprobe.data.snapshots.snapshot import FunctionTiming

    return FunctionTiming(
        spec=site.spec,
        module=site.module,
        function=site.function,
        count=0 if cell is None else cell.count,
        tail_exits=0 if tails is None else tails.count,
        sum_ns=0.0 if cell is None else float(cell.sum or 0),
        min_ns=0.0 if cell is None else float(cell.min or 0),
        max_ns=0.0 if cell is None else float(cell.max or 0),
        buckets=() if cell is None else cell.buckets,
        nmissed=site.nmissed,
        address=site.address,
    )
