"""``metric`` by handlers: under a condition, apart by keys, and in regions from one place to another."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.handlers.expressions import Expression
from anyprobe.cli.handlers.handlertext import HandlerText, check_names, context_lines, uses_returns
from anyprobe.cli.programs import targets
from anyprobe.data.aggregates.aggregations import Count, Sum
from anyprobe.data.readers.maps import Map
from anyprobe.data.snapshots.cpu_time import CpuTime
from anyprobe.data.snapshots.metrics import LEFT, NESTED, UNBEGUN, Metric
from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.aggregates.results import Key
    from anyprobe.probes.session import Session

_WALL, _CPU = "metric wall", "metric cpu"
_SINCE, _OPEN = "since", "open"
_ROWS, _THREADS = 1 << 12, 1 << 12
_OF_THREADS = frozenset({"pid", "tid", "comm"})
"""Keys that are the same at both ends of a region."""


@dataclass
class Regions:
    """Handlers that measure calls or regions, and what they have measured as timings of functions."""

    metric: Metric
    when: Expression | None = None
    by: tuple[Expression, ...] = ()
    begins: tuple[str, ...] = ()
    """Where regions begin; none where calls of functions are measured."""
    ends: tuple[str, ...] = ()
    _things: dict[str, Any] = field(default_factory=dict)
    _sessions: "dict[int, Session]" = field(default_factory=dict)
    _specs: dict[str, str] = field(default_factory=dict)
    """The specs of functions, by the names that keys have of them."""
    _rows: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Numbers that stand for addresses, which rows of one function would have in common."""
    _gone: set[tuple[int, int]] = field(default_factory=set)
    """Threads that were seen to have ended within a region, with their processes."""

    def __post_init__(self) -> None:
        """Refuse what is not known where a call or a region begins."""
        for option, each in (("--when", self.when), *(("--by", each) for each in self.by)):
            if each is not None and uses_returns([each]):
                raise click.UsageError(f"{option} is asked where a call begins: there is no result and no time yet")
            if option == "--by" and each is not None and self.begins and each.text not in _OF_THREADS:
                raise click.UsageError(f"--by of a region is one of {', '.join(sorted(_OF_THREADS))}")
        labels = ("function", *(each.label for each in self.by))
        self._things = {
            "wall": Sum(_WALL, by=labels, capacity=_ROWS),
            "left": Count(LEFT),
            "nested": Count(NESTED),
            "unbegun": Count(UNBEGUN),
            "since": Map(_SINCE, by=("function", "tid"), capacity=_THREADS),
            "stack_at": Map("stack", by=("function", "tid"), capacity=_THREADS, shown=False),
            "depth": Map("depth", by=("function", "tid"), capacity=_THREADS, shown=False),
        }
        if self.by:
            self._things["open"] = Map(_OPEN, by=(*labels, "tid"), capacity=_THREADS)
        if self.metric.needs_cpu_time:
            self._things["cpu"] = Sum(_CPU, by=labels, capacity=_ROWS)
            self._things["cpu_at"] = Map("cpu", by=("function", "tid"), capacity=_THREADS, shown=False)

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Place the handlers in one session."""
        process = targets.on_process(session)
        self._sessions[process.pid] = process
        if not self.begins:
            for spec in specs:
                self._place_calls(process, spec)
            return
        # the end first: from a place to the same one is from one time that a thread is there to the next one
        for wanted, write in ((self.ends, self._write_end), (self.begins, self._write_begin)):
            for spec in specs:
                if spec.text in wanted:
                    self._place(process, spec, write)

    def _place(self, session: "Session", spec: "AnySpec", write: Any) -> None:  # noqa: ANN401 - one of two methods
        from anyprobe.cli.handlers.handlerplaces import HandlerMaker, once_each, place_in
        from anyprobe.cli.handlers.knownfunctions import knowledge_of

        wanted = self._wanted if write == self._write_begin else self.by
        known = knowledge_of(session, spec, wanted)
        check_names(wanted, known.names, known.reason)
        place = place_in(session, spec, wanted, known.names)
        with once_each(session):
            HandlerMaker(place, wanted, known, lambda text, _, __: write(text), self._things).put(session)

    def _place_calls(self, session: "Session", spec: "AnySpec") -> None:
        from anyprobe.cli.handlers.handlerplaces import Ends, HandlerMaker, HandlerPlace, once_each
        from anyprobe.cli.handlers.knownfunctions import knowledge_of
        from anyprobe.handlers.types.annotations import u64

        process_spec = targets.process_spec(spec)
        if process_spec.is_marker or process_spec.name != "entry":
            raise click.UsageError(f"{spec.text} is no function: with --when and --by calls of functions are measured")
        wanted = self._wanted
        known = knowledge_of(session, spec, wanted)
        check_names(wanted, known.names, known.reason)
        for site in session.resolve(process_spec)[0]:
            name = session.shown("func", site.object.runtime(site.function.start))
            self._specs[name] = site.canonical or str(process_spec)
        place = HandlerPlace(spec, Ends.CALL)
        with once_each(session):
            HandlerMaker(
                place, wanted, known, lambda text, _, __: self._write_return(text), self._things, retval=u64,
                begins=lambda text: self._write_entry(text, known.names),
            ).put(session)  # fmt: skip

    @property
    def _wanted(self) -> tuple[Expression, ...]:
        return (*(() if self.when is None else (self.when,)), *self.by)

    def _write_entry(self, text: HandlerText, parameters: Sequence[str]) -> None:
        """Write what the beginning of a call does."""
        text.add(*context_lines(self._wanted, parameters))
        text.add_condition(self.when)
        if self.metric.counts:
            text.add("    ctx.data.outer = 1")
            return
        text.add(
            "    outer = stack_at.get((ctx.func, ctx.tid), 0)",
            "    if outer == 0 or ctx.regs.rsp >= outer:",
            "        if outer != 0:",
            "            left.add()",
            "        ctx.data.outer = 1",
            "        stack_at[ctx.func, ctx.tid] = ctx.regs.rsp",
            "        since[ctx.func, ctx.tid] = ctx.now",
        )
        text.add(*["        cpu_at[ctx.func, ctx.tid] = ctx.cpu_now"] * self.metric.needs_cpu_time)
        self._write_open(text, "        ", "ctx.func", "since.get((ctx.func, ctx.tid), 0)")

    def _write_return(self, text: HandlerText) -> None:
        """Write what the end of a call does."""
        text.add("    if ctx.data.outer is None:", "        return")
        if self.metric.counts:
            text.add("    if ctx.retval is None:", "        return")
            self._write_value(text, "wall", "0", "ctx.func")
            return
        text.add("    if ctx.retval is None:", "        left.add()")  # it goes on elsewhere, where that is not seen
        text.add("        since[ctx.func, ctx.tid] = 0", "        stack_at[ctx.func, ctx.tid] = 0", "        return")
        self._write_close(text, "ctx.func")

    def _write_begin(self, text: HandlerText) -> None:
        """Write what the beginning of a region does."""
        text.add_condition(self.when)
        text.add(
            "    outer = stack_at.get((0, ctx.tid), 0)",
            "    if outer != 0 and ctx.regs.rsp < outer:",
            "        nested.add()",
            "        depth[0, ctx.tid] = depth.get((0, ctx.tid), 0) + 1",
            "        return",
            "    if outer != 0:",
            "        left.add()",
            "    depth[0, ctx.tid] = 0",
            "    stack_at[0, ctx.tid] = ctx.regs.rsp",
            "    since[0, ctx.tid] = ctx.now",
        )
        text.add(*["    cpu_at[0, ctx.tid] = ctx.cpu_now"] * self.metric.needs_cpu_time)
        self._write_open(text, "    ", "0", "since.get((0, ctx.tid), 0)")

    def _write_end(self, text: HandlerText) -> None:
        """Write what the end of a region does."""
        text.add(
            "    if since.get((0, ctx.tid), 0) == 0:",
            "        unbegun.add()",
            "        return",
            "    inner = depth.get((0, ctx.tid), 0)",
            "    if inner != 0:",
            "        depth[0, ctx.tid] = inner - 1",
            "        return",
        )
        self._write_close(text, "0")

    def _write_close(self, text: HandlerText, function: str) -> None:
        """Write what is counted at an end."""
        text.add("    ended = ctx.now", f"    began = since.get(({function}, ctx.tid), 0)")
        text.add(f"    since[{function}, ctx.tid] = 0", f"    stack_at[{function}, ctx.tid] = 0")
        self._write_value(text, "wall", "ended - began", function)
        if self.metric.needs_cpu_time:
            spent = f"ctx.cpu_now - cpu_at.get(({function}, ctx.tid), 0)"
            self._write_value(text, "cpu", f"min({spent}, ended - began)", function)
        if self.by:
            text.add("    open.delete((", f"        {function},")
            self._write_keys(text)
            text.add("        ctx.tid,", "    ))")

    def _write_value(self, text: HandlerText, name: str, value: str, function: str) -> None:
        text.add(f"    {name}.add({value}, key=(", f"        {function},")
        self._write_keys(text)
        text.add("    ))")

    def _write_open(self, text: HandlerText, indent: str, function: str, value: str) -> None:
        if self.by:
            text.add(f"{indent}open[", f"        {function},")
            self._write_keys(text)
            text.add("        ctx.tid,", f"    ] = {value}")

    def _write_keys(self, text: HandlerText) -> None:
        for each in self.by:
            text.add_expression("    ", each, ",")

    def seen(self, snapshot: Snapshot) -> Snapshot:
        """Return results with the rows in the stead of what handlers have counted."""
        found = {each.name: each.entries for each in snapshot.aggregations}
        running = self._running(snapshot)
        wall, cpu = found.get(_WALL, {}), found.get(_CPU, {})
        functions = [
            self._timing(key, wall.get(key), cpu.get(key), running.get(key, 0))
            for key in dict.fromkeys([*wall, *running])
        ]
        lost = {each.name: {"no room": each.dropped} for each in snapshot.aggregations if each.dropped}
        kept = tuple(each for each in snapshot.aggregations if each.name in {LEFT, NESTED, UNBEGUN})
        return replace(
            snapshot, sites=(), functions=tuple(functions), aggregations=kept, dropped={**snapshot.dropped, **lost}
        )

    def _timing(self, key: "Key", wall: Any, cpu: Any, running: int) -> FunctionTiming:  # noqa: ANN401 - cells
        name = str(key[0])
        module, _, function = name.rpartition(":")
        spec = self._specs.get(name, name)
        if self.begins:
            module, function = "", f"{', '.join(self.begins)} to {', '.join(self.ends)}"
            spec = function
        count, sum_ns = (0, 0.0) if wall is None else (wall.count, float(wall.sum or 0))
        spent = None
        if self.metric.needs_cpu_time:
            spent = CpuTime.of(sum_ns, float((cpu.sum if cpu is not None else 0) or 0), count, 0.0)
        keys = tuple(zip((each.label for each in self.by), key[1:], strict=True))
        row = self._rows.setdefault(key, len(self._rows))
        return FunctionTiming(
            spec=spec, module=module, function=function, count=count, sum_ns=sum_ns, running_ns=float(running),
            address=row, cpu=spent, keys=keys,
        )  # fmt: skip

    def _running(self, snapshot: Snapshot) -> "Counter[Key]":
        """Return for how long calls and regions have been open that are."""
        from anyprobe.probes.clock import own_time_at

        found: Counter[Key] = Counter()
        pid = snapshot.target.pid
        session = self._sessions.get(pid)
        handling = None if session is None else session.host.handlers.used
        if session is None or handling is None or self.metric.counts:
            return found
        maps = {each.name: each.entries for each in handling.maps()}
        alive = set[int]()
        with suppress(OSError):
            alive.update(procfs.read_tasks(pid))
        # results may be shown long after they were read, or after the program's end
        now = own_time_at((session.host.began or 0.0) + snapshot.duration_s)
        since = {(key[0], key[1]): int(value) for key, value in maps.get(_SINCE, {}).items() if value}
        for key, began in maps.get(_OPEN if self.by else _SINCE, {}).items():
            thread = pid, int(key[-1])
            if since.get((key[0], key[-1])) != began:
                continue  # closed, or left and begun anew with another key
            if alive and thread[1] not in alive:
                self._gone.add(thread)
            if thread not in self._gone:
                found[key[:-1]] += max(now - int(began), 0)
        return found
