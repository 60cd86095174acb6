"""What the keys of ``top`` do besides showing: probes for each function, switched one by one, and archives."""

import io
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.measurement import keeping
from anyprobe.cli.programs import targets
from anyprobe.cli.terminal import output, streams
from anyprobe.core.errors import AnyprobeError, InternalError, SpecError, UsageError
from anyprobe.data.archives.runs import Run, write
from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot
from anyprobe.reports.live import is_armed
from anyprobe.reports.quantities import counted

if TYPE_CHECKING:
    from anyprobe.cli.measurement.plan import Meanwhile
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.cli.top.screen import TopScreen
    from anyprobe.probes.session import Session
    from anyprobe.probes.specs.parts import Spec

KEPT = 600
"""Intervals that are kept for heat maps and archives."""
MOST_ALONE = 1000
"""Functions of a spec up to which each has a probe of its own: those of more are armed and disarmed together."""


def arm(session: "Measured", specs: "Sequence[AnySpec]") -> None:
    """Time functions by a probe for each, so that each can be disarmed alone."""
    process = targets.on_process(session, "the screen of top")
    process.time(*(each for spec in specs for each in _apart(process, targets.process_spec(spec))))


def _apart(session: "Session", spec: "Spec") -> "list[str | Spec]":
    """Return specs of single functions that together mean what a spec does; itself where that cannot be had."""
    try:
        sites, refused = session.resolve(spec)
    except SpecError:  # it may be about a library that is loaded later: timing it says so
        return [spec]
    names = list(dict.fromkeys(each.canonical for each in sites))
    return [spec] if refused or not 0 < len(names) <= MOST_ALONE else list(names)


class Terminal(io.FileIO):
    """A terminal that may go away: then what is written is thrown away, and the screen ends."""

    is_gone = False

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer
        """Write some bytes, as any raw file does."""
        try:
            return super().write(data) or 0
        except OSError:
            self.is_gone = True
            return len(data)


@dataclass
class Top:
    """The front of ``top``: results that a screen shows, and what its keys ask of the sessions."""

    every: float
    run: Run
    """How this is measured, for archives."""
    together: Snapshot | None = None
    """The results so far."""
    series: list[Snapshot] = field(default_factory=list)
    """What was added in each interval, of the last ones."""
    said: list[str] = field(default_factory=list)
    """Warnings that the screen has kept from the terminal."""
    is_open: bool = False
    terminal: Terminal | None = None
    owns_terminal: bool = True
    has_led: bool = False

    @property
    def last(self) -> Snapshot | None:
        """What was added in the last interval."""
        return self.series[-1] if self.series else None

    def take(self, together: Snapshot, last: Snapshot | None) -> None:
        """Take note of results."""
        self.together = together
        if last is not None:
            self.series[:] = [*self.series[1 - KEPT :], last]

    def warn(self, message: str) -> None:
        """Print a warning, or keep it until the terminal is free again."""
        if self.is_open:
            self.said.append(message)
        else:
            output.warn(message)

    def lead(self, meanwhile: "Meanwhile") -> None:
        """Show the screen until the user leaves it, or it is over."""
        from anyprobe.cli.top.screen import TopScreen

        screen = TopScreen(self, meanwhile)
        self.is_open = self.has_led = True
        try:
            self.show(screen)
        finally:
            self.is_open = False
            for message in self.said:
                output.warn(message)
        if screen.failure is not None:
            raise screen.failure
        if screen.return_code:
            raise InternalError("the screen has ended by itself; what it printed says why")

    def show(self, screen: "TopScreen") -> None:
        """Run the screen on the terminal."""
        standard = sys.__stdout__, sys.__stderr__
        self.terminal = Terminal(2, "w", closefd=False)
        buffer = io.BufferedWriter(self.terminal)
        with io.TextIOWrapper(buffer, encoding=sys.stderr.encoding, errors=streams.REPLACING) as terminal:
            sys.__stdout__ = sys.__stderr__ = terminal  # type: ignore[misc] # textual's; ``streams`` took theirs
            try:
                screen.run()
            finally:
                sys.__stdout__, sys.__stderr__ = standard  # type: ignore[misc]

    def switch(self, meanwhile: "Meanwhile", wanted: FunctionTiming) -> str:
        """Disarm a function, or arm it again, in all processes; return what is to be said of it."""
        arms = not is_armed(wanted)
        count = 0
        try:
            for session in meanwhile.sessions.processes:
                probes = [
                    each for each in session.probes if any(one.site.canonical == wanted.spec for one in each.all_places)
                ]
                if probes:
                    (session.enable if arms else session.remove)(*probes)
                count += sum(len({one.site.address for one in each.all_places}) for each in probes)
        except AnyprobeError as error:
            return str(error)
        what = f"{wanted.function}: " if count < 2 else f"{wanted.spec} and what was asked for with it: "
        return f"{what}{'armed' if arms else 'disarmed'}"

    def save(self, meanwhile: "Meanwhile") -> str:
        """Write an archive with what there is; return what is to be said of it."""
        if self.together is None:
            return "nothing to save yet"
        path = f"top-{self.together.target.pid}-{time.strftime('%H%M%S')}.aprobe"
        builds = keeping.builds_of(meanwhile.sessions.processes)
        info = replace(self.run.info, written=round(time.time(), 3))
        run = Run(info, (self.together,), tuple(each.nonzero()[0] for each in self.series), builds=builds)
        try:
            with open(path, "xb") as file:
                write(file, run)
        except OSError as error:
            return f"{path}: {error.strerror}"
        return f"saved {os.path.abspath(path)}: all results, and the last {counted(len(self.series), 'interval')}"


def top(every: float) -> Top:
    """Return the front of the command that runs now, with its screen imported: no program is probed meanwhile."""
    try:
        from anyprobe.cli.top import screen as _  # noqa: F401 - it takes a third of a second
    except ImportError:
        raise UsageError("the screen needs textual: pip install 'anyprobe[top]'") from None
    return Top(every, keeping.new_run())


def require_terminal(instead: str) -> None:
    """Raise ``click.UsageError`` where there is no terminal for a screen; ``instead``: a command that needs none."""
    if not (os.isatty(0) and os.isatty(2)):
        raise click.UsageError(f"the screen needs a terminal at standard input and error; without one: {instead}")
    if os.environ.get("TERM", "dumb") in {"", "dumb", "unknown"}:
        raise click.UsageError(f"TERM names no terminal that a screen could be drawn on; without one: {instead}")
