"""Events of a session: defined, enabled, traced and removed by the lines that one writes to ``kprobe_events``."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import KprobeError
from anyprobe.handlers.frontend.collecting import MISSING
from anyprobe.kprobes.events.definition import Definition, Point, parse_definition
from anyprobe.kprobes.events.errors import DefinitionError, Problem
from anyprobe.kprobes.events.places import addresses_of, places_of
from anyprobe.kprobes.events.program import Program, program, shown
from anyprobe.kprobes.registries import registry_of, strict
from anyprobe.kprobes.structures import KPROBE_FLAG_DISABLED, Kprobe, Kretprobe, kprobe_of
from anyprobe.probes.scripts.current import current

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session

_PROBLEMS = {
    errno.EILSEQ: Problem.BAD_INSN_BNDRY,
    errno.ENOENT: Problem.BAD_PROBE_ADDR,
    errno.EADDRNOTAVAIL: Problem.NON_UNIQ_SYMBOL,
}


@dataclass(eq=False)
class EventProbe:
    """One definition, and the probe that it came to."""

    definition: Definition
    program: Program
    probe: Kprobe | Kretprobe


@dataclass(eq=False)
class Event:
    """An event: one definition, or several of the same form."""

    name: str
    record: str
    probes: list[EventProbe] = field(default_factory=list)
    enabled: bool = False

    @property
    def form(self) -> Definition:
        """The first definition, whose form the others have."""
        return self.probes[0].definition


class Events:
    """The file ``kprobe_events`` of a session, and the events in it."""

    def __init__(self, session: "Session | KernelSession | None" = None) -> None:
        """Begin without events; ``session``: the current one by default, on a process or on the running kernel."""
        self._session: Session | KernelSession = session or current()
        self._places = places_of(self._session)
        self._events: dict[str, Event] = {}
        self._numbers = count(1)
        self.error_log: list[str] = []
        """What was wrong, the kernel's way, newest last."""

    def write(self, text: str) -> int:
        """Define and delete events, a line each; return 0 or a negative error number.

        The lines before a wrong line take effect. In a strict session ``DefinitionError`` is raised.
        """
        for line in text.splitlines():
            stripped = line.partition("#")[0].strip()
            if not stripped:
                continue
            try:
                self._take(parse_definition(stripped))
            except DefinitionError as error:
                self.error_log.append(error.log())
                if strict(self._session):
                    raise
                return -error.errno
        return 0

    def clear(self) -> int:
        """Delete all events, as opening the file for writing does."""
        busy = any(event.enabled for event in self._events.values())
        return -errno.EBUSY if busy else self.write("".join(f"-:{name}\n" for name in list(self._events)))

    def __str__(self) -> str:
        """Return the definitions."""
        return "".join(f"{each.definition}\n" for event in self._events.values() for each in event.probes)

    def profile(self) -> str:
        """Return hits and misses of each event, as ``kprobe_profile`` has them."""
        lines = []
        for event in self._events.values():
            kps = [kprobe_of(each.probe) for each in event.probes]
            hits, missed = sum(kp.hits for kp in kps), sum(kp.nmissed for kp in kps)
            lines.append(f"  {event.form.event:<44} {hits:15} {missed:15}\n")
        return "".join(lines)

    # -- defining

    def _take(self, definition: Definition) -> None:
        if definition.kind == "-":
            self._delete(definition)
            return
        known = self._events.get(definition.name)
        if known is not None:
            self._compare(definition, known)
        record = known.record if known is not None else self._record(definition.name)
        made = program(
            definition, record, addresses_of(self._places, definition), knows_caller=self._places.knows_caller
        )
        probe = self._probe(definition, made)
        self._register(definition, probe)
        event = self._events.setdefault(definition.name, Event(definition.name, record))
        event.probes.append(EventProbe(definition, made, probe))
        if event.enabled:
            registry_of(self._session).enable(probe)

    def _record(self, name: str) -> str:
        """Return a name for records: an event that was deleted may come again with other fields."""
        return f"{name} {next(self._numbers)}"

    def _compare(self, definition: Definition, known: Event) -> None:
        """See that a further definition of an event has the form of the others."""
        if definition.kind != known.form.kind:
            raise DefinitionError(definition.line, 0, Problem.DIFF_PROBE_TYPE, errno.EEXIST)
        words = definition.line.split()
        rest = definition.line.split(None, 2)[2] if len(words) > 2 else ""
        position = len(definition.line) - len(rest)
        form = [(each.name, each.type) for each in known.form.arguments]
        if form != [(each.name, each.type) for each in definition.arguments]:
            raise DefinitionError(definition.line, position, Problem.DIFF_ARG_TYPE, errno.EEXIST)
        if any(str(each.definition) == str(definition) for each in known.probes):
            raise DefinitionError(definition.line, 0, Problem.SAME_PROBE, errno.EEXIST)

    def _probe(self, definition: Definition, made: Program) -> Kprobe | Kretprobe:
        point = definition.point
        assert point is not None
        kp = self._kprobe(definition, point)
        kp.flags = KPROBE_FLAG_DISABLED
        if definition.kind == "p":
            kp.pre_handler = made.handler
            return kp
        return Kretprobe(kp, made.handler, made.entry_handler, maxactive=definition.maxactive)

    def _kprobe(self, definition: Definition, point: Point) -> Kprobe:
        if point.address is not None:
            return Kprobe(addr=point.address)
        if not point.path:
            return Kprobe(symbol_name=point.symbol, offset=point.offset, module=point.module)
        address = self._places.in_file(point)
        if address is None:
            raise DefinitionError(definition.line, point.position, Problem.BAD_PROBE_ADDR, errno.ENOENT)
        return Kprobe(addr=address)

    def _register(self, definition: Definition, probe: Kprobe | Kretprobe) -> None:
        assert definition.point is not None
        try:
            registry_of(self._session).register([probe])
        except KprobeError as error:
            problem = _PROBLEMS.get(error.errno, Problem.BAD_PROBE_ADDR)
            if definition.kind == "r" and "not the first instruction" in error.detail:
                problem = Problem.BAD_RETPROBE
            position = definition.point.position
            raise DefinitionError(definition.line, position, problem, error.errno, error.detail) from error

    def _delete(self, definition: Definition) -> None:
        event = self._find(definition.event, definition.group)
        if event is None:
            raise DefinitionError(definition.line, 2, Problem.NO_EVENT, errno.ENOENT)
        if event.enabled:
            raise DefinitionError(definition.line, 2, Problem.BUSY, errno.EBUSY)
        words = definition.line.split()[1:]  # one of several definitions of an event is named by what it begins with
        found = [each for each in event.probes if each.definition.line.split()[1 : 1 + len(words)] == words]
        if not found:
            raise DefinitionError(definition.line, 2, Problem.NO_EVENT, errno.ENOENT)
        registry_of(self._session).unregister([each.probe for each in found])
        event.probes = [each for each in event.probes if each not in found]
        if not event.probes:
            del self._events[event.name]

    def _find(self, event: str, group: str = "") -> Event | None:
        for known in self._events.values():
            if known.form.event == event and group in {"", known.form.group}:
                return known
        return None

    # -- tracing

    def enable(self, event: str, on: bool = True) -> None:
        """Enable or disable an event, ``EVENT`` or ``GROUP/EVENT``, or all of a group: ``GROUP/``."""
        group, slash, name = event.rpartition("/")
        found = [
            each
            for each in self._events.values()
            if group in {"", each.form.group} and (each.form.event == name or (slash and not name))
        ]
        if not found:
            raise KprobeError(errno.ENOENT, f"there is no event {event!r}")
        known, probes = registry_of(self._session), [one.probe for each in found for one in each.probes]
        known.enable(*probes) if on else known.disable(*probes)
        for each in found:
            each.enabled = on

    def lines(self, *, final: bool = False) -> Iterator[str]:
        """Yield what was traced since the last time, as the kernel's ``trace`` shows it, in the order of time."""
        by_record = {event.record: event for event in self._events.values()}
        for record, row in self._session.rows(final=final):
            if record in by_record:
                yield self._line(by_record[record], row)

    def _line(self, event: Event, row: dict[str, Any]) -> str:
        made = event.probes[0]
        bits = int(row[MISSING])
        missing = {name for at, name in enumerate(made.program.fields) if bits >> at & 1}
        name = self._places.name
        parts = [shown(each, at, row, missing, name) for at, each in enumerate(made.definition.arguments)]
        if event.form.kind == "r":
            function = self._places.function_of(made.probe)
            place = f"{name(int(row['ip']))} <- {function}" if self._places.knows_caller else f"{function}%return"
        else:
            place = name(self._places.hit(int(row["ip"]), [each.probe for each in event.probes]))
        seconds = int(row["ts"]) / 1e9
        head = f"{int(row['tid']):>7} [{int(row['cpu']):03}] {seconds:.6f}: {event.form.event}: ({place})"
        return " ".join([head, *parts])
