"""What ``break`` does: threads wait where a condition holds, and something is done about it before they go on."""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import click

from anyprobe.cli.handlers.expressions import Expression
from anyprobe.cli.handlers.handlerplaces import Ends, HandlerMaker, once_each, place_in
from anyprobe.cli.handlers.handlertext import HandlerText, check_names
from anyprobe.cli.handlers.knownfunctions import knowledge_of
from anyprobe.cli.programs.targets import on_process, process_spec
from anyprobe.cli.terminal import output
from anyprobe.cli.terminal.streams import Asked
from anyprobe.core.errors import TargetError, UnsupportedTarget
from anyprobe.core.printable import printable
from anyprobe.probes.breaking import Breakpoints, Held

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.cli.handlers.scripts import Script
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.readers.maps import Map
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.providers.function.handlers.callbacks import Hit
    from anyprobe.probes.providers.function.handlers.hit_stacks import Stack
    from anyprobe.probes.session import Session

_TOOLS = {"gdb": "gdb", "core": "gcore"}
"""What is run for an action, both of Debian's package gdb."""
GENERAL = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", *(f"r{number}" for number in range(8, 16)))
_IN_A_ROW = 4
_STACK_BYTES = 256
"""How much of the stack a snapshot has."""


class Do(StrEnum):
    """What is done about a hit."""

    STACK = "stack"
    STOP = "stop"
    CORE = "core"
    GDB = "gdb"
    SNAPSHOT = "snapshot"
    SCRIPT = "script"


@dataclass
class Breaking:
    """The breakpoints of one command."""

    do: Do
    most: int = 1
    """How often something is done; then it is over."""
    after: int = 0
    """How many hits of each process go on."""
    when: Expression | None = None
    seconds: float | None = None
    core_file: str = "core"
    as_json: bool = False
    script: "Script | None" = None
    """What runs at each hit, with ``hit`` and ``session``."""
    done: int = 0
    _of: "dict[int, tuple[Session, Breakpoints]]" = field(default_factory=dict)
    _numbers: "Map | None" = None
    _began: float = 0.0

    def __post_init__(self) -> None:
        """See that what is to be run is there."""
        tool = _TOOLS.get(self.do)
        if tool is not None and shutil.which(tool) is None:
            raise UnsupportedTarget(f"--do {self.do} runs {tool}, which is not installed (Debian's package gdb)")

    @property
    def enough(self) -> bool:
        """Whether as much was done as was wanted."""
        return self.done >= self.most

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Place the breakpoints in one session."""
        from anyprobe.data.readers.maps import Map

        self._began = self._began or time.monotonic()
        self._numbers = self._numbers or Map("hits", by=("pid",))
        process = on_process(session)
        breakpoints = Breakpoints(process)
        self._of[process.pid] = process, breakpoints
        written = () if self.when is None else (self.when,)
        known = [knowledge_of(session, spec, written) for spec in specs]
        for each in known:
            check_names(written, each.names, each.reason)
        with once_each(session):
            for spec, each in zip(specs, known, strict=True):
                place = place_in(session, spec, written, each.names)
                if place.ends is Ends.CALL:
                    raise click.UsageError(f"{spec.text}: a condition is about one moment, an entry or a return")
                if not written and not self.after:
                    breakpoints.place(process_spec(spec), None)
                    continue
                placed = partial(_placing, breakpoints)
                HandlerMaker(place, written, each, self._write, {"numbers": self._numbers}, placed=placed).put(session)

    def _write(self, text: HandlerText, shown: Sequence[str], returns: bool) -> None:  # noqa: ARG002 - a Write
        if self.when is not None and not self.after:  # which patches can find out by themselves
            text.add_expression("    return ", self.when, "")
        elif self.when is not None:
            text.add_expression("    if not ", self.when, ":")
            text.add("        return False")
        if self.after:
            text.add("    number_ = numbers.increase((ctx.pid,))", "    if number_ is None:", "        return False")
            text.add(f"    return number_ > {self.after}")

    # -- hits

    def look(self, sessions: "Sequence[Measured]", stream: TextIO, *, final: bool = False) -> int:  # noqa: ARG002
        """Do something about the hits that wait."""
        before = self.done
        for session, breakpoints in list(self._of.values()):
            while not final and not self.enough and (held := breakpoints.take()) is not None:
                try:
                    self._act(session, breakpoints, held, stream)
                except TargetError as error:
                    output.warn(str(error))
                finally:
                    held.let_go()
            if self.enough or Asked.count or final:
                breakpoints.close()
        return self.done - before

    def document(self) -> dict[str, Any]:
        """Return nothing: all is printed already."""
        return {}

    def _act(self, session: "Session", breakpoints: Breakpoints, held: Held, stream: TextIO) -> None:
        row = {
            "ts_ns": time.monotonic_ns(),
            "pid": session.pid,
            "tid": held.hit.tid,
            "spec": _spec_at(session, held.hit.ip),
            "pc": held.hit.ip,
            "stack": _frames(held.hit.stack),
        }
        if self.do is Do.SCRIPT:
            self._show(row, stream)
            assert self.script is not None
            self.script.run_with({"hit": held.hit, "session": session})
        elif self.do in {Do.STACK, Do.SNAPSHOT}:
            others = breakpoints.stacks(held)[1:]
            row["threads"] = [{"tid": each.tid, "stack": _frames(each.stack)} for each in others]
            if self.do is Do.SNAPSHOT:
                row |= _memory(held.hit)
            self._show(row, stream)
        else:
            with breakpoints.program_stopped(held):
                self._show(row, stream)
                self._serve(session.pid, held.hit.tid, breakpoints)
        self.done += 1

    def _serve(self, pid: int, tid: int, breakpoints: Breakpoints) -> None:
        """Do what is wanted while the program is stopped."""
        match self.do:
            case Do.GDB:
                chosen = f"python [t.switch() for t in gdb.selected_inferior().threads() if t.ptid[1] == {tid}]"
                with _interrupts_are_for_others():
                    subprocess.run(["gdb", "-q", "-p", str(pid), "-ex", chosen, "-ex", "frame"], check=False)
            case Do.CORE:
                name = f"{self.core_file}.{self.done + 1}" if self.most > 1 else self.core_file
                made = subprocess.run(
                    ["gcore", "-o", name, str(pid)],
                    check=False,
                    capture_output=True,
                    text=True,
                    stdin=subprocess.DEVNULL,
                )
                if made.returncode:
                    raise TargetError(f"gcore has failed: {printable((made.stderr or made.stdout).strip()[-300:])}")
                output.warn(f"wrote {name}.{pid}")
            case _:
                output.warn(f"process {pid} is stopped; kill -CONT {pid}, a debugger's end, or Ctrl-C has it go on")
                breakpoints.wait_stopped(lambda: bool(Asked.count) or self._is_late)
        if Asked.count or self._is_late:
            breakpoints.close()

    @property
    def _is_late(self) -> bool:
        return self.seconds is not None and time.monotonic() - self._began >= self.seconds

    def _show(self, row: dict[str, Any], stream: TextIO) -> None:
        stream.write((_json(row) if self.as_json else "\n".join(self._lines(row))) + "\n")
        stream.flush()

    def _lines(self, row: dict[str, Any]) -> Iterator[str]:
        yield f"{time.monotonic() - self._began:12.6f} {row['pid']}/{row['tid']} at {printable(row['spec'])}"
        yield from _indented(row["stack"])
        if "registers" in row:
            names = [f"{name:>4} {value:#018x}" for name, value in row["registers"].items()]
            yield from (f"    {'  '.join(names[at : at + _IN_A_ROW])}" for at in range(0, len(names), _IN_A_ROW))
            yield from _dumped(row["registers"]["rsp"], bytes.fromhex(row["memory"]))
        for thread in row.get("threads", ()):
            yield f"  thread {thread['tid']}"
            yield from _indented(thread["stack"])

    def render(self, snapshot: "Snapshot", console: "Console", top: int) -> None:  # noqa: ARG002 - reports' signature
        """Print what could not be placed, and what conditions could not do."""
        from anyprobe.reports import heading, losses

        losses.print_losses(snapshot, console)
        losses.print_unhandled(snapshot, console)
        heading.print_deaths((snapshot.target, *snapshot.others), console)
        heading.print_refusals(snapshot, console)


def _placing(breakpoints: Breakpoints, spec: "AnySpec") -> Callable[[Callable[..., Any]], None]:
    """Return what places a condition under which hits wait."""
    return lambda condition: breakpoints.place(process_spec(spec), condition)


def _indented(frames: Sequence[str]) -> Iterator[str]:
    return (f"    #{number} {printable(each)}" for number, each in enumerate(frames))


def _frames(stack: "Stack") -> list[str]:
    return str(stack).split(" < ")


def _memory(hit: "Hit") -> dict[str, Any]:
    """Return the registers of a thread that waits, and what is on its stack."""
    registers = {name: getattr(hit.regs, name) for name in (*GENERAL, "rsp")} | {"rip": hit.ip}
    return {"registers": registers, "memory": hit.read(registers["rsp"], _STACK_BYTES).hex()}


def _dumped(address: int, content: bytes) -> Iterator[str]:
    """Yield memory as words of eight bytes, four in a line."""
    words = [content[at : at + 8] for at in range(0, len(content), 8)]
    for at in range(0, len(words), 4):
        line = "  ".join(f"{int.from_bytes(each, 'little'):016x}" for each in words[at : at + 4])
        yield f"    {address + 8 * at:#x}: {line}"


def _json(row: dict[str, Any]) -> str:
    from anyprobe.exporters.json_document import json_text

    return json_text(row)


def _spec_at(session: "Session", address: int) -> str:
    places = (place for probe in session.probes for place in probe.places)
    return next((place.site.canonical for place in places if place.address == address), f"{address:#x}")


@contextmanager
def _interrupts_are_for_others() -> Iterator[None]:
    """Have Ctrl-C be meant for the debugger that has the terminal within a ``with`` block."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
