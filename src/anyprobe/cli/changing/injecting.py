"""What ``inject`` does: chosen calls return something else than they would, or wait, and each is listed."""

import errno
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from weakref import WeakKeyDictionary

import click

from anyprobe.cli.handlers.expressions import Expression
from anyprobe.cli.handlers.handlerplaces import Ends, HandlerMaker, once_each, place_in
from anyprobe.cli.handlers.handlertext import HandlerText, check_names
from anyprobe.cli.handlers.knownfunctions import knowledge_of
from anyprobe.cli.handlers.records import TIME, MonotonicTime, rows
from anyprobe.cli.programs.targets import on_process, process_spec
from anyprobe.cli.terminal import output
from anyprobe.handlers.types.annotations import u64

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.readers.maps import Map
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.session import Session

RECORD = "injected"
_FUNCTIONS = 1 << 14
"""Functions, in all processes together, whose calls are numbered."""
_BITS = 53
"""Bits of a mixed number that decide, as many as the fraction of a float has."""
_RING_BYTES = 4 << 20
"""Bytes of each thread's ring, in which injections wait to be listed."""
_FRAMES = 12
"""Addresses of the stack that is kept of each fault."""
_AT_ONCE, _MOST_REPLAYED = 64, 2048
_MOST_LINES = 1_000_000
"""Injections that a document lists."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which calls: every n-th, the n-th alone, or some with a probability that a seed decides. Calls count from 1."""

    every: int | None = None
    nth: int | None = None
    probability: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse more than one."""
        given = {"--every": self.every, "--nth": self.nth, "--probability": self.probability}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise click.UsageError(f"{names[0]} and {names[1]} both say which calls: one of them")
        if self.seed and self.probability is None:
            raise click.UsageError("--seed is about --probability")

    def lines(self) -> list[str]:
        """Return the lines that work out, in a handler, whether the call with a number is chosen."""
        if self.nth is not None:
            return [f"    is_chosen_ = number_ == {self.nth}"]
        if self.probability is None:
            return [f"    is_chosen_ = number_ % {self.every or 1} == 0"]
        below = round(self.probability * (1 << _BITS))
        # splitmix64: a number for each call that depends on its own number and the seed alone
        return [
            f"    mixed_ = u64({_mixed_seed(self.seed)}) + number_ * u64(0x9E3779B97F4A7C15)",
            "    mixed_ = (mixed_ ^ (mixed_ >> 30)) * u64(0xBF58476D1CE4E5B9)",
            "    mixed_ = (mixed_ ^ (mixed_ >> 27)) * u64(0x94D049BB133111EB)",
            f"    is_chosen_ = ((mixed_ ^ (mixed_ >> 31)) >> {64 - _BITS}) < u64({below})",
        ]


def _mixed_seed(seed: int) -> int:
    return seed * 0xD1342543DE82EF95 & (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Fault:
    """What a chosen call does: it waits, and then returns without having run, or runs."""

    returned: int | None = None
    errno: int | None = None
    delay: float | None = None

    def __post_init__(self) -> None:
        """Refuse what says too little."""
        if self.returned is None and self.errno is not None:
            raise click.UsageError("--errno needs --return: -1 as a rule, 0 where an address is returned")
        if self.returned is None and self.delay is None:
            raise click.UsageError("what is to be injected? --return V, --return V --errno E, --delay SECONDS")

    @property
    def line(self) -> str:
        """The line of a handler that ends a call."""
        given = "" if self.errno is None else f", errno={self.errno}"
        kind = "i64" if (self.returned or 0) < 1 << 63 else "u64"
        return f"    ctx.skip({kind}({self.returned}){given})"

    @property
    def shown(self) -> str:
        """What is done, for people."""
        parts = [] if self.delay is None else [f"waited {self.delay:g} s"]
        if self.returned is not None:
            name = f", errno {errno.errorcode.get(self.errno, self.errno)}" if self.errno is not None else ""
            parts.append(f"returned {self.returned}{name}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Replay:
    """The faults that a report lists: by program, function and process the numbers of calls."""

    chosen: dict[tuple[int, str], dict[int, list[int]]]
    count: int
    when: str | None
    stack: str | None
    """What decided which calls have numbers."""
    fault: Fault

    @property
    def specs(self) -> list[str]:
        """The functions, as specs."""
        return sorted({spec for _, spec in self.chosen})

    def lines(self, program: int, spec: str) -> list[str]:
        """Return the lines that work out, in a handler, whether the call with a number is chosen."""
        lines = ["    is_chosen_ = False"]
        for process, numbers in self.chosen.get((program, spec), {}).items():
            for at in range(0, len(numbers), _AT_ONCE):
                some = ", ".join(map(str, numbers[at : at + _AT_ONCE]))
                lines += [f"    if process_ == {process} and number_ in ({some},):", "        is_chosen_ = True"]
        return lines


def replay_of(path: str) -> Replay:
    """Read the report of an earlier command, its JSON document."""
    from anyprobe.core.quoting import quoted
    from anyprobe.probes.specs.naming import as_spec

    try:
        document = json.loads(Path(path).read_text("utf-8"))
        listed, made, given = document["injected"], document["injections"], document["given"]
        chosen: dict[tuple[int, str], dict[int, list[int]]] = {}
        faults = {Fault(each["returned"], _number(each["errno"]), each["delay_s"]) for each in listed}
        for each in listed:
            module, _, function = each["function"].partition(":")
            at = each["program"], f"{quoted(module)}:{as_spec(function)}"
            chosen.setdefault(at, {}).setdefault(each["process"], []).append(each["n"])
    except OSError as error:
        raise click.FileError(path, error.strerror) from error
    except (ValueError, LookupError, TypeError, AttributeError):
        raise click.UsageError(f"{path} is no JSON document of anyprobe inject") from None
    if not listed or made != len(listed) or len(listed) > _MOST_REPLAYED:
        why = (
            "no fault"
            if not listed
            else f"{made:,} faults, of which {min(len(listed), _MOST_REPLAYED):,} can be repeated"
        )
        raise click.UsageError(f"{path}: it lists {why}")
    if len(faults) > 1:
        raise click.UsageError(f"{path}: its faults differ in what is returned; one command injects one kind")
    return Replay(chosen, len(listed), given["when"], given["stack"], *faults)


def _number(name: str | int | None) -> int | None:
    return name if name is None or isinstance(name, int) else number_of_errno(name)


@dataclass
class Injection:
    """The faults of one command, and the list of those that were injected."""

    fault: Fault | None
    """None: nothing is injected, and call sites are listed."""
    choice: Choice
    when: Expression | None = None
    as_json: bool = False
    within: "Sequence[AnySpec]" = ()
    """Functions of which one has to be on the stack."""
    replay: "Replay | None" = None
    frames: int = 1
    """Callers by which call sites differ."""
    _numbers: "Map | None" = None
    _waited: "Map | None" = None
    _order: "Map | None" = None
    """The order in which processes made their first call, by process; that of process 0 is the last number."""
    _inside: "Map | None" = None
    """Where the stack was, by thread and what the word there is, when one of the functions of ``within`` began."""
    _sites: "Map | None" = None
    _programs: "WeakKeyDictionary[Measured, int]" = field(default_factory=WeakKeyDictionary)
    """The programs in the order in which they were begun to be measured."""
    _began: int = 0
    _count: int = 0
    _unlisted: int = 0
    """Injections for which there was no room in the list."""
    _listed: list[dict[str, Any]] = field(default_factory=list)
    _times: MonotonicTime = field(default_factory=MonotonicTime)
    enough: bool = False

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Place the handlers of all specs in one session."""
        from anyprobe.data.readers.maps import Map
        from anyprobe.handlers.intrinsics import emit

        self._began = self._began or time.monotonic_ns()
        on_process(session).handling.ring_bytes = _RING_BYTES
        self._numbers = self._numbers or Map("calls", by=("function", "pid"), capacity=_FUNCTIONS)
        self._waited = self._waited or Map("waited", by=("tid",), capacity=_FUNCTIONS)
        self._order = self._order or Map("order of processes", by=("pid",), capacity=_FUNCTIONS)
        self._inside = self._inside or Map("inside", by=("tid", "what"), capacity=_FUNCTIONS)
        self._sites = self._sites or Map("call sites", by=("stack",), capacity=_FUNCTIONS)
        program = self._programs.setdefault(session, len(self._programs) + 1)
        written = () if self.when is None else (self.when,)
        known = [knowledge_of(session, spec, written) for spec in specs]
        for each in known:
            check_names(written, each.names, each.reason)
        things = {"numbers": self._numbers, "waited": self._waited, "order": self._order, "inside": self._inside,
                  "sites": self._sites, "emit": emit}  # fmt: skip
        with once_each(session):
            if self.within:
                self._place_around(on_process(session))
            for spec, each in zip(specs, known, strict=True):
                place = place_in(session, spec, written, each.names)
                if place.ends is not Ends.ENTRY:
                    raise click.UsageError(f"{spec.text}: faults are decided on where a function is entered alone")
                maker = HandlerMaker(place, written, each, partial(self._write, program, spec.text), things)
                if self.fault is None or self.fault.delay is None:
                    maker.put(session)
                    continue
                maker._replace(placed=partial(_delaying, session, self.fault.delay)).put(session)
                if self.fault.returned is not None:
                    maker._replace(expressions=(), write=self._write_after_delay).put(session)

    def _place_around(self, session: "Session") -> None:
        """Place what knows in which threads one of the functions is on the stack, by where its return address is.

        The address is kept, too: of a function that was left by an exception or ``longjmp`` other calls write over it.
        """
        inside: Any = self._inside

        @session.call(*(process_spec(each).text for each in self.within))
        def begins(ctx: Any) -> None:  # noqa: ANN401 - typed by the handlers' compiler
            outer = inside.get((ctx.tid, 0), 0)
            if outer == 0 or ctx.regs.rsp >= outer:
                inside[ctx.tid, 0] = ctx.regs.rsp
                inside[ctx.tid, 1] = u64(ctx.caller)
                ctx.data.own = ctx.regs.rsp

        @begins.ret
        def ends(ctx: Any) -> None:  # noqa: ANN401
            if ctx.data.own is not None:
                inside[ctx.tid, 0] = 0

    def _write(self, program: int, spec: str, text: HandlerText, shown: Sequence[str], returns: bool) -> None:  # noqa: ARG002
        delays = self.fault is not None and self.fault.delay is not None
        leave = f"        return{' False' * delays}"
        if self.when is not None:
            text.add_expression("    if not ", self.when, ":")
            text.add(leave)
        if self.within:
            text.add("    outer_ = inside.get((ctx.tid, 0), 0)", "    if outer_ == 0 or ctx.regs.rsp > outer_:", leave)
            text.add("    back_ = ptr[u64](outer_)[0]", "    if back_ is None:", leave)
            text.add("    if back_ != inside.get((ctx.tid, 1), 0):", leave)
        text.add("    number_ = numbers.increase((ctx.func, ctx.pid))", "    if number_ is None:", leave)
        text.add("    if number_ == 1 and order.get((ctx.pid,)) is None:")
        text.add("        order[(ctx.pid,)] = order.increase((0,))")
        if self.fault is None:
            text.add(f"    seen_ = sites.increase((ctx.ustack({self.frames + 1}),))")
            text.add("    is_chosen_ = seen_ == 1")
        elif self.replay is None:
            text.add(*self.choice.lines())
        else:
            text.add("    process_ = order.get((ctx.pid,), 0)", *self.replay.lines(program, spec))
        text.add("    if not is_chosen_:", leave)
        text.add(f'    emit("{RECORD}", n=number_, tid=ctx.tid, pid=ctx.pid, function=ctx.func,')
        text.add(f"        program={program}, process=order.get((ctx.pid,), 0), stack=ctx.ustack({_FRAMES}))")
        if delays:
            text.add("    waited[ctx.tid] = number_", "    return True")
        elif self.fault is not None:
            text.add(self.fault.line)

    def _write_after_delay(self, text: HandlerText, shown: Sequence[str], returns: bool) -> None:  # noqa: ARG002
        assert self.fault is not None
        text.add("    if waited.delete(ctx.tid) is None:", "        return", self.fault.line)

    # -- what was injected

    def look(self, sessions: "Sequence[Measured]", stream: TextIO, *, final: bool = False) -> int:
        """List what was injected since the last look: as lines, or for the document."""
        found = 0
        for row in rows(sessions, final=final):
            if row.name != RECORD:
                continue
            found += 1
            if self.as_json and len(self._listed) < _MOST_LINES:
                self._listed.append(self._listing(row.fields))
            elif not self.as_json:
                stream.write(self._line(row.fields) + "\n")
        self._count += found
        if final:
            lost = (on_process(each).handling.dropped().get(RECORD, {}) for each in sessions)
            self._unlisted = sum(count for causes in lost for count in causes.values())
        if found:
            stream.flush()
        return found

    def _listing(self, fields: dict[str, Any]) -> dict[str, Any]:
        stack = str(fields["stack"]).split(" < ")
        call = {
            "n": fields["n"],
            "ts_ns": self._times.of(fields[TIME]),
            "pid": fields["pid"],
            "tid": fields["tid"],
            "function": str(fields["function"]),
            "program": fields["program"],
            "process": fields["process"],
            "site": " < ".join(stack[1 : self.frames + 1]),
            "stack": stack,
        }
        if self.fault is None:
            return call
        error = errno.errorcode.get(self.fault.errno or 0, self.fault.errno)
        return {**call, "returned": self.fault.returned, "errno": error, "delay_s": self.fault.delay}

    def _line(self, fields: dict[str, Any]) -> str:
        seconds = (self._times.of(fields[TIME]) - self._began) / 1e9
        where = f"{fields['pid']}/{fields['tid']}"
        stack = str(fields["stack"]).split(" < ")
        done = f"from {' < '.join(stack[1 : self.frames + 1])}" if self.fault is None else self.fault.shown
        return f"{seconds:12.6f} {where:>15} {fields['function']} call {fields['n']:,}: {done}"

    @property
    def calls(self) -> int:
        """How many calls were numbered: all for which --when holds."""
        return 0 if self._numbers is None else sum(int(value) for value in self._numbers.items().values())

    def document(self) -> dict[str, Any]:
        """Return the list, and of how many calls."""
        stack = ",".join(each.text for each in self.within) or None
        given = {"calls": self.calls, "given": {"when": self.when.whole if self.when else None, "stack": stack}}
        if self.fault is None:
            return {"injected": [], "injections": 0, **given, "call_sites": self._call_sites()}
        return {"injected": self._listed, "injections": self._count + self._unlisted, **given}

    def _call_sites(self) -> list[dict[str, Any]]:
        """Return each call site with the number of its first call, and how many there were."""
        assert self._sites is not None
        counts = {str(key[0]): int(value) for key, value in self._sites.items().items()}
        found: dict[str, dict[str, Any]] = {}
        for each in self._listed:
            whole = " < ".join(each["stack"][: self.frames + 1])
            found.setdefault(whole, {"site": each["site"], "function": each["function"], "first": each["n"],
                                     "calls": counts.get(whole, 1), "stack": each["stack"]})  # fmt: skip
        return list(found.values())

    def render(self, snapshot: "Snapshot", console: "Console", top: int) -> None:  # noqa: ARG002 - reports' signature
        """Print how many of the calls had a fault injected, and what could not be done."""
        from anyprobe.reports import heading, losses

        losses.print_losses(snapshot, console)
        losses.print_unhandled(snapshot, console)
        heading.print_deaths((snapshot.target, *snapshot.others), console)
        heading.print_refusals(snapshot, console)
        made = self._count + self._unlisted
        unlisted = f"; {self._unlisted:,} came faster than they could be listed" * bool(self._unlisted)
        if self.fault is None:
            console.print(f"{made:,} call sites made {self.calls:,} calls{unlisted}", markup=False)
            return
        console.print(f"{made:,} of {self.calls:,} calls: {self.fault.shown}{unlisted}", markup=False)
        if self.replay is not None and made != self.replay.count:
            output.warn(f"{made:,} of the {self.replay.count:,} faults of the report came again: the program has made "
                        "other calls than then")  # fmt: skip


def _delaying(session: "Measured", seconds: float, spec: "AnySpec") -> "Callable[[Callable[..., Any]], object]":
    """Return what places a condition under which calls wait."""
    callbacks = on_process(session).host.handlers.callbacks
    return lambda condition: callbacks.place_delay([process_spec(spec)], seconds, condition)


def refuse_besides(option: str, others: Mapping[str, object], choice: Choice) -> None:
    """Complain about options that mean nothing together with one."""
    chosen = {"--every": choice.every, "--nth": choice.nth, "--probability": choice.probability}
    given = [name for name, value in {**others, **chosen}.items() if value not in (None, False, ())]
    if given:
        raise click.UsageError(f"{option} says itself what is injected where; not with {given[0]}")


def number_of_errno(text: str) -> int:
    """Read an error's name or number."""
    found = {name: number for number, name in errno.errorcode.items()}.get(text.upper())
    if found is None and text.isdecimal() and 0 < int(text) < 4096:
        found = int(text)
    if found is None:
        import difflib

        near = difflib.get_close_matches(text.upper(), errno.errorcode.values(), 3)
        hint = f": {', '.join(near)}?" if near else ", such as ENOMEM or 12"
        raise click.BadParameter(f"{text!r} is no error's name or number{hint}", param_hint="--errno")
    return found
