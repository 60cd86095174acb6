"""What ``trace`` does: a record for each hit, shown as it comes."""

import errno
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO
from weakref import WeakKeyDictionary

from anyprobe.cli.events.threads import Threads
from anyprobe.cli.handlers.expressions import Expression
from anyprobe.cli.handlers.fetched import fetched
from anyprobe.cli.handlers.handlerplaces import Ends, HandlerMaker, HandlerPlace, once_each, one_by_one, place_in
from anyprobe.cli.handlers.handlertext import HandlerText, check_names
from anyprobe.cli.handlers.knownfunctions import Knowledge, knowledge_of
from anyprobe.cli.handlers.records import TIME, MonotonicTime, Row, rows
from anyprobe.cli.programs.targets import KERNEL, dropped, in_the_kernel, kernel_spec, on_process
from anyprobe.cli.terminal import output
from anyprobe.core.errors import OutputFailed

if TYPE_CHECKING:
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.probes.session import Session

RING_BYTES = 4 << 20
"""Bytes of a ring for each thread and spec: what comes while lines are being printed waits there."""
DROP_REPORTS = 1.0
"""Seconds between two reports of what was lost."""


@dataclass(frozen=True, slots=True)
class Traced:
    """The records of one spec: what their fields are."""

    place: HandlerPlace
    parameters: tuple[str | None, ...]
    """The fields that hold parameters, None for those that cannot be shown."""
    labels: tuple[str, ...] | None
    """The names of these parameters, where they are known."""
    fields: tuple[str, ...]
    """In the order of the bits of ``missing``."""
    has_parameters: bool
    more: bool = False
    """Whether there are more parameters than were asked for."""
    hides_result: bool = False
    """Whether there is a result that cannot be shown."""
    failed: "Callable[[Any], bool]" = lambda _: True
    """Whether a result says that the call has failed, so that ``errno`` means something."""
    places: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """In the kernel: the spec of each place, and what it is called in a line."""


@dataclass
class Trace:
    """Records of hits, and the way in which they are printed."""

    printed: tuple[Expression, ...] = ()
    parameters: int | None = None
    """How many are shown; None for all that are known of."""
    as_json: bool = False
    several: bool = False
    """Whether there may be more than one process."""
    most: int | None = None
    """End after so many hits."""
    when: Expression | None = None
    """Only hits for which this holds."""
    quiet: bool = False
    """Whether there is no header."""
    shown: int = 0
    _traced: "WeakKeyDictionary[Measured, dict[str, Traced]]" = field(default_factory=WeakKeyDictionary)
    _places: "WeakKeyDictionary[Measured, dict[int, tuple[str, str]]]" = field(default_factory=WeakKeyDictionary)
    _processes: set[int] = field(default_factory=set)
    """The processes that have been traced."""
    _times: MonotonicTime = field(default_factory=MonotonicTime)
    _threads: Threads = field(default_factory=Threads)
    _began: int = 0
    _zero: float = 0.0
    """The time of day from which times count."""
    _headed: bool = False
    _dropped: int = 0
    _looked: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether as many hits were shown as were wanted."""
        return self.most is not None and self.shown >= self.most

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Place the handlers of all specs in one session."""
        if not self._began:
            self._began, self._zero = time.monotonic_ns(), time.time()
        if session.pid != KERNEL:
            self._begin_process(session)
        written = (*self.printed, *self._conditions)
        specs = one_by_one(session, specs, markers=not written)  # what is written is about all of them
        wanted = [(fetched(spec.text), knowledge_of(session, spec, written)) for spec in specs]
        for _, known in wanted:
            check_names(written, known.names, known.reason)
        places = [
            place_in(session, spec, (*arguments, *written), known.names)
            for spec, (arguments, known) in zip(specs, wanted, strict=True)
        ]
        with once_each(session):
            first = len(self._traced.get(session, ()))
            for index, (place, (arguments, known)) in enumerate(zip(places, wanted, strict=True), first):
                self._put(session, f"hit {index}", place, known, arguments)
        if session.pid != KERNEL:
            self._threads.see(spec for _, (spec, _) in _places(on_process(session)))
        else:
            traced = self._traced.get(session, {}).values()
            self._threads.see(spec for each in traced for spec, _ in each.places.values())

    def _begin_process(self, session: "Measured") -> None:
        """Get ready for the lines of a program; a process that has executed another one is in no call any more."""
        if session not in self._traced:
            if session.pid in self._processes:
                self._threads.forget_calls(session.pid)
            self._processes.add(session.pid)
            self.several = self.several or len(self._processes) > 1
        self._threads.know(session.pid)
        on_process(session).handling.ring_bytes = RING_BYTES

    def _put(
        self, session: "Measured", name: str, place: HandlerPlace, known: Knowledge, arguments: tuple[Expression, ...]
    ) -> None:
        """Place the handler of one spec, whose records have this name; ``arguments`` are shown as parameters are."""
        from anyprobe.handlers.intrinsics import emit_partial

        fields = ["tid", "cpu", "ip", *(("pid", "comm") if place.in_kernel else ())]
        parameters: list[str] = []
        seen: tuple[str | None, ...]
        expressions = (*arguments, *self.printed)
        labels = [f"argument{at}" for at in range(len(arguments))] + [f"printed{at}" for at in range(len(self.printed))]

        def write(text: HandlerText, shown: Sequence[str], has_result: bool) -> None:
            parameters.extend(f"parameter{index}" for index in range(len(shown)))
            given = [*zip(parameters, shown, strict=True), *[("result", "retval")] * has_result]
            text.add_condition(self.when)
            where = f"u64({place.address}), pid=ctx.pid, comm=ctx.comm" if place.in_kernel else "ctx.ip"
            text.add(f"    emit_partial({name!r}, tid=ctx.tid, cpu=ctx.cpu, ip={where},")
            text.add(*(f"        {label}={each}," for label, each in given))
            for label, each in zip(labels, expressions, strict=True):
                text.add_expression(f"        {label}=", each, ",")
            text.add("    )")
            fields.extend((*parameters, *["result"] * has_result, *labels))

        shown = 0 if arguments else self.parameters
        maker = HandlerMaker(
            place, (*expressions, *self._conditions), known, write, {"emit_partial": emit_partial}, shown
        )
        received = maker.put(session)
        if arguments:
            seen = tuple(labels[: len(arguments)])
        else:
            seen = tuple(None if at is None else parameters[at] for at in received.fields)
        names = tuple(each.label for each in arguments) or received.labels
        self._traced.setdefault(session, {})[name] = Traced(
            place, seen, names, tuple(fields), place.has_parameters or bool(arguments),
            more=not arguments and self.parameters is not None and len(known.names) > self.parameters,
            hides_result=known.hides_result,
            failed=known.failure(place.wanted) if place.returns and not place.in_kernel else lambda _: True,
            places=_places_in_kernel(session, place) if place.in_kernel else {},
        )  # fmt: skip

    @property
    def _conditions(self) -> tuple[Expression, ...]:
        return () if self.when is None else (self.when,)

    # -- what comes

    def look(self, sessions: "Sequence[Measured]", stream: TextIO, *, final: bool = False) -> int:
        """Show what has come since the last look."""
        show = self._as_json if self.as_json else self._as_text
        lines: list[str] = []
        self._threads.look()
        for row in rows(sessions, final=final):
            if self.enough:
                break
            traced = self._traced.get(row.session, {}).get(row.name)
            if traced is not None:
                lines.append(show(row, traced))
                self.shown += 1
        if lines and not self._headed and not self.as_json and not self.quiet:
            from anyprobe.reports.trace import heading

            lines.insert(0, heading(self._zero))
            self._headed = True
        if lines:
            try:
                stream.write("\n".join(lines) + "\n")
                stream.flush()
            except OutputFailed as failure:
                if failure.errno == errno.ETIMEDOUT:
                    output.warn(f"the end was asked for: the last {len(lines):,} lines, or some of them, are lost")
                raise
        self._report_drops(sessions, final=final)
        return len(lines)

    def document(self) -> dict[str, Any]:
        """Return nothing: all is printed already."""
        return {}

    def _report_drops(self, sessions: "Sequence[Measured]", *, final: bool) -> None:
        """Say how many hits have no line, as soon as that is known: a trace with holes must not look whole."""
        now = time.monotonic()
        if not final and now - self._looked < DROP_REPORTS:
            return
        self._looked = now
        dropped = sum(count for session in sessions for count in _lost(session).values())
        if dropped > self._dropped:
            output.warn(f"{dropped:,} hits have no line: they came faster than they could be shown")
            self._dropped = dropped

    def knows(self, session: "Measured", name: str) -> bool:
        """Return whether records of a name are those of this trace."""
        return name in self._traced.get(session, ())

    def document_of(self, row: Row) -> dict[str, Any]:
        """Return the document of one of its records."""
        return self._document(row, self._traced[row.session][row.name])

    def _as_json(self, row: Row, traced: Traced) -> str:
        from anyprobe.exporters.json_document import json_text

        return json_text(self._document(row, traced))

    def _document(self, row: Row, traced: Traced) -> dict[str, Any]:
        values = _values(row, traced)
        document: dict[str, Any] = {
            "ts_ns": self._times.of(row.fields[TIME]),
            "pid": self._process(row, values),
            "tid": values["tid"],
            "cpu": values["cpu"],
            "spec": self._place(row, traced)[0],
        }
        if traced.has_parameters:
            given = _given(values, traced)
            document["args"] = given if traced.labels is None else dict(zip(traced.labels, given, strict=True))
        if traced.place.returns:
            document["retval"] = values.get("result")
        hidden = self._without_meaning(values, traced)
        return document | {
            each.label: None if index in hidden else values[f"printed{index}"]
            for index, each in enumerate(self.printed)
        }

    def _as_text(self, row: Row, traced: Traced) -> str:
        from anyprobe.reports.trace import Hit, line

        values = _values(row, traced)
        hidden = self._without_meaning(values, traced)
        printed = {
            each.label: values[f"printed{index}"] for index, each in enumerate(self.printed) if index not in hidden
        }
        if traced.place.returns:
            printed.pop("retval", None)  # it is shown anyway
        labels = traced.labels or ("",) * len(traced.parameters)
        result = traced.place.returns and ("result" in values or traced.hides_result)
        shown = traced.has_parameters and not self.printed
        canonical, place = self._place(row, traced)
        pid = self._process(row, values)
        return line(
            Hit(
                name=values["comm"] if traced.place.in_kernel else self._threads.name(pid, values["tid"]),
                depth=self._threads.depth(pid, values["tid"], canonical),
                seconds=(self._times.of(row.fields[TIME]) - self._began) / 1e9,
                thread=f"{pid}/{values['tid']}" if self.several else str(values["tid"]),
                place=place,
                arguments=list(zip(labels, _given(values, traced), strict=True)) if shown else None,
                has_result=result,
                result=values.get("result"),
                printed=printed,
                more=traced.more,
            )
        )

    def _process(self, row: Row, values: dict[str, Any]) -> int:
        """Return the process of a hit: of a fork child its own, where that is still known."""
        return values["pid"] if "pid" in values else self._threads.process(row.session.pid, values["tid"])

    def _without_meaning(self, values: dict[str, Any], traced: Traced) -> frozenset[int]:
        """Return which expressions mean nothing in a line: those with ``errno`` of a call that has not failed."""
        of_errno = frozenset(index for index, each in enumerate(self.printed) if each.uses("errno"))
        if not of_errno or not traced.place.returns or traced.failed(values.get("result")):
            return frozenset()
        return of_errno

    def _place(self, row: Row, traced: Traced) -> tuple[str, str]:
        """Return the spec of a hit, and what it is called in a line."""
        ip = row.fields["ip"]
        if traced.place.in_kernel:
            return traced.places.get(ip) or (traced.place.spec, traced.place.spec)
        known = self._places.setdefault(row.session, {})
        if ip not in known:
            found = _places(on_process(row.session))
            self._threads.see(spec for _, (spec, _) in found)
            known |= dict(found)
        return known.get(ip) or (traced.place.spec, traced.place.spec)


def _values(row: Row, traced: Traced) -> dict[str, Any]:
    """Return the fields of a record, None where they are missing."""
    missing = row.fields.get("missing", 0)
    return {name: None if missing >> index & 1 else row.fields[name] for index, name in enumerate(traced.fields)}


def _given(values: dict[str, Any], traced: Traced) -> list[Any]:
    """Return the values of parameters, None for what cannot be shown."""
    return [None if name is None else values[name] for name in traced.parameters]


def _places(session: "Session") -> "list[tuple[int, tuple[str, str]]]":
    found = []
    for probe in session.probes:
        for place in probe.places:
            site = place.site
            inside = f"+{place.offset:#x}" if site.kind not in {"entry", "return"} and place.offset else ""
            module = site.object.name
            if site.marker is not None:
                found.append((place.address, (site.canonical, site.label)))
                continue
            # what has no name is called by its place in the module already
            name = site.name if site.name.startswith(f"{module}+") else f"{module}:{site.name}"
            found.append((place.address, (site.canonical, f"{name}{inside}")))
    return found


def _places_in_kernel(session: "Measured", place: HandlerPlace) -> dict[int, tuple[str, str]]:
    found = {}
    ends = kernel_spec(place.wanted)
    ends = ends.at("return") if place.ends is Ends.CALL else ends
    for site in in_the_kernel(session).resolve(ends):
        inside = f"+{site.offset:#x}" if site.kind == "offset" else ""
        shown = ":".join(filter(None, (site.module, site.name)))
        found[site.address if place.has_address else 0] = site.spec, f"{shown}{inside}"
    return found


def _lost(session: "Measured") -> dict[str, int]:
    """Return how many records of hits were lost, by name."""
    return {name: sum(causes.values()) for name, causes in dropped(session).items()}
