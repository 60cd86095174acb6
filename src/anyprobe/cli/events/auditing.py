"""What ``audit`` does: system calls of programs, by rules, into a file whose lines are chained by hashes."""

import ast
import datetime as dt
import errno
import hashlib
import importlib.resources
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO
from weakref import WeakKeyDictionary

import click

from anyprobe.cli.handlers import expressions
from anyprobe.cli.handlers.handlerplaces import once_each
from anyprobe.cli.handlers.handlertext import PARAMETERS, HandlerText
from anyprobe.cli.handlers.records import TIME, MonotonicTime, Row, rows
from anyprobe.cli.programs.targets import KERNEL, dropped, in_the_kernel, on_process
from anyprobe.cli.terminal import output
from anyprobe.core.clocks import both_clocks
from anyprobe.core.errors import UsageError
from anyprobe.data.archives.chain import BEGIN, END, Chain

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.cli.handlers.expressions import Expression
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.readers.maps import Map
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.session import Session

RING_BYTES = 4 << 20
"""Bytes of each thread's ring for each kind of record: what comes while lines are being written waits there."""
_LOOKS = 1.0
"""Seconds between two looks at what was lost."""
_REGISTERS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
_CALL, _RETURNED = "call ", "returned"
"""How the names of records begin."""
_FRAMES = 16
_TEXT_BYTES = 256
"""Bytes that the texts of one handler may have."""
_RULES = 8
"""Rules that one handler has stack for."""
_MEMBERS = {"event", "call", "args", "entry"}
_OPEN_CALLS = 1 << 14


class Rule(NamedTuple):
    """What is audited: a system call, as which event, and what of its parameters."""

    event: str
    call: str
    number: int
    parameters: "tuple[Expression, ...]"
    at_entry: bool
    """Whether its line is written before the call is made, as it may not return."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a file."""

    path: str
    digest: str
    """The SHA-256 of the file."""
    rules: tuple[Rule, ...]


def shipped() -> list[str]:
    """Return the names of rules that come along."""
    folder = importlib.resources.files("anyprobe.cli").joinpath("rules")
    return sorted(each.name[:-3] for each in folder.iterdir() if each.name.endswith(".py") and each.name[0] != "_")


def load(name: str) -> Rules:
    """Read rules: those that come along under a name, or those of a file."""
    known = shipped()
    if name in known:
        source = importlib.resources.files("anyprobe.cli").joinpath("rules", f"{name}.py").read_text("utf-8")
    else:
        try:
            source = Path(name).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            hint = f"; rules that come along: {', '.join(known)}" if os.sep not in name else ""
            raise click.UsageError(f"rules {name}: {reason}{hint}") from None
    names: dict[str, Any] = {"__name__": "anyprobe_rules"}
    try:
        exec(compile(ast.parse(source, name), name, "exec", dont_inherit=True), names)  # noqa: S102 - the user's own
    except Exception as error:  # noqa: BLE001 - the user's, whatever it is
        raise UsageError(f"rules {name}: {type(error).__name__}: {error}") from None
    given = names.get("RULES")
    if not isinstance(given, list) or not given:
        raise UsageError(f"rules {name}: it has no list RULES of rules, such as {{'event': 'open', 'call': 'openat'}}")
    return Rules(name, hashlib.sha256(source.encode()).hexdigest(), tuple(_rule(name, each) for each in given))


def _rule(name: str, given: object) -> Rule:
    from anyprobe.probes.system_calls import NUMBERS

    where = f"rules {name}: {given!r}"
    if not isinstance(given, dict) or not {"event", "call"} <= set(given) <= _MEMBERS:
        raise UsageError(f"{where}: a rule has 'event' and 'call', and may have 'args' and 'entry'")
    call, event = given["call"], given["event"]
    number = NUMBERS.get(call) if isinstance(call, str) else call
    if not isinstance(number, int) or isinstance(number, bool):
        import difflib

        near = difflib.get_close_matches(str(call), NUMBERS, 3)
        raise UsageError(f"{where}: {call!r} is no known system call{': ' + ', '.join(near) + '?' if near else ''}")
    if not isinstance(event, str) or not event or event in {BEGIN, END, "lost", "process", "kernel", "not audited"}:
        raise UsageError(f"{where}: {event!r} cannot be the name of an event")
    text = given.get("args", "")
    parameters = expressions.parse_all(f"rule {event}", text, may_repeat=True) if text else ()
    for each in parameters:
        for used, line, column in each.names:
            if used in PARAMETERS[len(_REGISTERS) :] or used == "retval":
                raise each.error(line, column, f"{used}: system calls have arg0 to arg5; results are there anyway")
    return Rule(event, str(call), number, parameters, bool(given.get("entry")))


@dataclass
class Audit:
    """The audit of one command: what its handlers emit becomes lines of the file."""

    rules: Rules
    path: str
    program: tuple[str, ...] = ()
    enough: bool = False
    _chain: Chain | None = None
    _known: "WeakKeyDictionary[Measured, set[str]]" = field(default_factory=WeakKeyDictionary)
    """The objects of each session in which system calls were looked for."""
    _open: dict[int, tuple[Rule, dict[str, Any]]] = field(default_factory=dict)
    """The calls that have not returned yet, by thread."""
    _inside: "Map | None" = None
    _counts: Counter[str] = field(default_factory=Counter)
    _lost: "WeakKeyDictionary[Measured, Counter[str]]" = field(default_factory=WeakKeyDictionary)
    _lost_total: int = 0
    _looked: float = 0.0
    _times: MonotonicTime = field(default_factory=MonotonicTime)
    _ahead: int = 0
    """How far the time of day is ahead of the monotonic clock."""

    def begin(self) -> None:
        """Open the file, and write the first line."""
        from anyprobe.exporters.json_document import json_text

        self._chain = Chain(self.path, json_text)
        monotonic, now = both_clocks()
        self._ahead = now - monotonic
        self._add(
            BEGIN,
            time.monotonic_ns(),
            rules=self.rules.path,
            rules_sha256=self.rules.digest,
            command=list(self.program),
            host=socket.gethostname(),
            auditor=os.getpid(),
        )

    def end(self, why: str) -> None:
        """Write the last line, and close the file."""
        assert self._chain is not None
        for tid in list(self._open):
            self._not_returned(tid)
        counts = dict(sorted(self._counts.items()))
        members = {"why": why, "events": sum(counts.values()), "by_event": counts, "lost": self._lost_total}
        self._add(END, time.monotonic_ns(), **members)
        self._chain.close()

    def _add(self, event: str, ts_ns: int, **members: Any) -> int:  # noqa: ANN401 - what JSON has
        assert self._chain is not None
        moment = dt.datetime.fromtimestamp((ts_ns + self._ahead) / 1e9, dt.UTC)
        return self._chain.add(event, {"time": moment.isoformat(timespec="microseconds"), "ts_ns": ts_ns, **members})

    # -- handlers

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:  # noqa: ARG002 - the plan's signature
        """Place the handlers in one session: at the system calls of what is loaded, and of what will be."""
        if session.pid == KERNEL:
            from anyprobe.cli.events.kernel_auditing import place

            self._add("kernel", time.monotonic_ns(), release=os.uname().release)
            for spec, reason in place(in_the_kernel(session), self.rules.rules):
                self._add("not audited", time.monotonic_ns(), pid=0, place=spec, reason=reason)
            return
        process = on_process(session)
        process.handling.ring_bytes = RING_BYTES
        self._known[process] = set()
        self._add("process", time.monotonic_ns(), pid=process.pid, exe=process.snapshot().target.exe)
        process.host.when_mapped(lambda: self._place(process))

    def _place(self, session: "Session") -> None:
        from anyprobe.data.readers.maps import Map
        from anyprobe.probes.system_calls import system_calls

        self._inside = self._inside or Map("inside", by=("tid",), capacity=_OPEN_CALLS, shown=False)
        numbers = {rule.number for rule in self.rules.rules}
        sure: dict[int, list[str]] = {}
        """The instructions that make one call, by its number."""
        unsure: list[str] = []
        """The instructions whose number shows when they run."""
        for each in system_calls(session, known=self._known[session]):
            if len(each.numbers) == 1:
                sure.setdefault(min(each.numbers), []).append(each.spec)
            elif not each.numbers or each.numbers & numbers:
                unsure.append(each.spec)
        refused = len(session.refused)
        rules = list(enumerate(self.rules.rules))
        with once_each(session):
            for index, rule in rules:
                self._put(session, [(index, rule)], sure.get(rule.number, ()), is_sure=True)
            for some in _together(rules):
                self._put(session, some, unsure, is_sure=False)
            self._put_return(session, [spec for number in numbers for spec in sure.get(number, ())], is_sure=True)
            self._put_return(session, unsure, is_sure=False)
        places = {spec: refusal.reason.value for spec, refusal in session.refused[refused:]}
        for spec, reason in places.items():
            self._add("not audited", time.monotonic_ns(), pid=session.pid, place=spec, reason=reason)

    def _put(
        self, session: "Session", rules: Sequence[tuple[int, Rule]], specs: Sequence[str], *, is_sure: bool
    ) -> None:
        from anyprobe.handlers.intrinsics import emit_partial

        if not specs:
            return
        text = HandlerText()
        used = {name for _, rule in rules for each in rule.parameters for name, _, _ in each.names}
        text.add("def handler(ctx):")
        text.add(*(f"    arg{at} = ctx.regs.{name}" for at, name in enumerate(_REGISTERS) if f"arg{at}" in used))
        for index, rule in rules:
            text.add(f"    if ctx.regs.rax == {rule.number}:")
            text.add(*[f"        inside[ctx.tid] = {index + 1}"] * (not is_sure))
            text.add(f"        emit_partial('{_CALL}{index}', tid=ctx.tid, pid=ctx.pid, stack=ctx.ustack({_FRAMES}),")
            for at, each in enumerate(rule.parameters):
                text.add_expression(f"            parameter{at}=", each, ",")
            text.add("        )")
        with text.pointing():
            session.at(*specs)(text.function("handler", {"emit_partial": emit_partial, "inside": self._inside}))

    def _put_return(self, session: "Session", specs: Sequence[str], *, is_sure: bool) -> None:
        from anyprobe.handlers.intrinsics import emit

        if not specs:
            return
        text = HandlerText()
        text.add("def handler(ctx):")
        if not is_sure:
            text.add("    if inside.delete(ctx.tid) is None:", "        return")
        text.add(f"    emit('{_RETURNED}, {is_sure}', tid=ctx.tid, result=i64(ctx.regs.rax))")
        session.after(*specs)(text.function("handler", {"emit": emit, "inside": self._inside}))

    # -- lines

    def look(self, sessions: "Sequence[Measured]", stream: TextIO, *, final: bool = False) -> int:  # noqa: ARG002
        """Write what has come since the last look."""
        found = 0
        for row in rows(sessions, final=final):
            if row.name.startswith(_RETURNED):
                self._returned(row.fields)
            elif row.name.startswith(_CALL):
                self._called(row)
                found += 1
        self._tell_losses(sessions, final=final)
        return found

    def _called(self, row: Row) -> None:
        rule = self.rules.rules[int(row.name.removeprefix(_CALL).partition(".")[0])]
        fields = row.fields
        tid = fields["tid"]
        self._not_returned(tid)
        missing = fields.get("missing", 0)
        values = {name: None if missing >> at & 1 else value for at, (name, value) in enumerate(_own(fields))}
        stack = values["stack"]
        line: dict[str, Any] = {
            "ts_ns": self._times.of(fields[TIME]),
            "pid": fields["pid"],
            "tid": tid,
            "call": rule.call,
            "args": _arguments(rule, values),
            "stack": [] if stack is None else str(stack).split(" < "),
        }
        if rule.at_entry:
            number = self._event(rule, line)
            self._open[tid] = rule, {**line, "of": number}
        else:
            self._open[tid] = rule, line

    def _returned(self, fields: Mapping[str, Any]) -> None:
        """Write the line of a call that has returned; one that had begun before the audit did has none."""
        rule, line = self._open.pop(fields["tid"], (None, {}))
        if rule is None:
            return
        result = fields["result"]
        line["result"] = result
        if -4096 < result < 0:
            line["error"] = errno.errorcode.get(-result, str(-result))
        self._event(rule, line)

    def _not_returned(self, tid: int) -> None:
        """Write the line of a call that will not return any more."""
        rule, line = self._open.pop(tid, (None, {}))
        if rule is not None and "of" not in line:
            self._event(rule, {**line, "result": None})

    def _event(self, rule: Rule, line: dict[str, Any]) -> int:
        self._counts[rule.event] += 1
        return self._add(rule.event, **line)

    def _tell_losses(self, sessions: "Sequence[Measured]", *, final: bool) -> None:
        """Write how many events have no line, as soon as that is known."""
        now = time.monotonic()
        if not final and now - self._looked < _LOOKS:
            return
        self._looked = now
        for session in sessions:
            in_kernel = session.pid == KERNEL
            lost = Counter({f"{name}, {why}": count for name, causes in dropped(session).items()
                            for why, count in causes.items()})  # fmt: skip
            if final:
                why = "hits that the kernel missed" if in_kernel else "hits in signal handlers that interrupted one"
                lost[why] = sum(site.nmissed or 0 for site in session.snapshot().sites)
            for why, count in (lost - self._lost.get(session, Counter())).items():
                self._lost_total += count
                self._add("lost", time.monotonic_ns(), pid=session.pid, count=count, why=why)
            self._lost[session] = lost

    def document(self) -> dict[str, Any]:
        """Return nothing: all is in the file."""
        return {}

    def render(self, snapshot: "Snapshot", console: "Console", top: int) -> None:  # noqa: ARG002 - reports' signature
        """Print what was audited, and what was not."""
        from anyprobe.reports import heading, losses

        losses.print_unhandled(snapshot, console)
        heading.print_deaths((snapshot.target, *snapshot.others), console)
        counts = ", ".join(f"{count:,} {event}" for event, count in self._counts.most_common())
        total, lost = sum(self._counts.values()), self._lost_total
        console.print(f"{total:,} events{': ' * bool(counts)}{counts}", markup=False)
        if lost:
            output.warn(f"{lost:,} records were lost, as the file says")

    @property
    def last_hash(self) -> str:
        """The hash of the file's last line."""
        assert self._chain is not None
        return self._chain.last_hash


def _together(rules: Sequence[tuple[int, Rule]]) -> list[list[tuple[int, Rule]]]:
    """Return rules in as few groups as one handler has room for the texts of."""
    found: list[list[tuple[int, Rule]]] = []
    room = 0
    for index, rule in sorted(rules, key=lambda each: _text_bytes(each[1])):
        wanted = _text_bytes(rule)
        if not found or wanted > room or len(found[-1]) == _RULES:
            found.append([])
            room = _TEXT_BYTES
        found[-1].append((index, rule))
        room -= wanted
    return found


def _text_bytes(rule: Rule) -> int:
    """Return how many bytes the texts of a rule may have."""
    calls = [
        node
        for each in rule.parameters
        for node in ast.walk(ast.parse(f"({each.text})", mode="eval"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"cstr", "buf"}
    ]
    lasts = [node.args[-1] if len(node.args) > 1 else None for node in calls]
    return sum(each.value if isinstance(each, ast.Constant) and isinstance(each.value, int) else 128 for each in lasts)


def _own(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what a record was given, in the order of the bits of ``missing``."""
    return [(name, value) for name, value in fields.items() if name not in {TIME, "missing"}]


def _arguments(rule: Rule, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters by name: several of one name are a list, up to the first that there is not."""
    found: dict[str, Any] = {}
    for at, each in enumerate(rule.parameters):
        value = values.get(f"parameter{at}")  # the kernel may accept fewer
        if each.label == "address":
            value = address(value)
        several = sum(other.label == each.label for other in rule.parameters) > 1
        if not several:
            found[each.label] = value
            continue
        known = found.setdefault(each.label, [])
        if len(known) == sum(other.label == each.label for other in rule.parameters[:at]) and value is not None:
            known.append(value)
    return found


def address(content: Any) -> str | None:  # noqa: ANN401 - text or bytes of a record
    """Return what a ``struct sockaddr`` says."""
    if content is None:
        return None
    raw = content if isinstance(content, bytes) else content.encode("latin-1", "replace")
    if len(raw) < 2:
        return raw.hex()
    family = struct.unpack_from("<H", raw)[0]
    if family == socket.AF_INET and len(raw) >= 8:
        return f"{socket.inet_ntop(socket.AF_INET, raw[4:8])}:{struct.unpack_from('>H', raw, 2)[0]}"
    if family == socket.AF_INET6 and len(raw) >= 24:
        return f"[{socket.inet_ntop(socket.AF_INET6, raw[8:24])}]:{struct.unpack_from('>H', raw, 2)[0]}"
    if family == socket.AF_UNIX:
        path = raw[2:]
        abstract = path[:1] == b"\0" and len(path) > 1
        return "@" * abstract + path[abstract:].split(b"\0")[0].decode(errors="backslashreplace")
    return f"family {family}: {raw[2:].hex()}"


def check(path: str, head: str | None) -> int:
    """Verify a file, say what is wrong, and return the exit status."""
    from anyprobe.data.archives.chain import verify

    try:
        found = verify(path, head)
    except OSError as error:
        raise click.FileError(path, error.strerror) from error
    for fault in found.faults:
        output.say(f"{path}:{fault.line}: {fault.what}")
    if found.is_torn:
        output.say(f"{path}:{found.lines + 1}: the line is torn: the auditor was killed, or the file was cut")
    elif found.open_since is not None and not found.faults:
        output.say(
            f"{path}:{found.lines}: the audit that begins in line {found.open_since} has no last line: it goes on, "
            "the auditor was killed, or the file was cut"
        )
    if not found.has_head:
        output.say(f"{path}: no line has the hash {head}")
    lost = f"; {found.lost:,} were lost while they were audited" if found.lost else ""
    whole = "all" if found.is_whole else "the first"
    output.say(f"{path}: {whole} {found.lines:,} lines follow each other: {found.events:,} events{lost}")
    if found.lines:
        output.say(f"the last of these has the hash {found.last_hash}")
    return 0 if found.is_whole else 1
