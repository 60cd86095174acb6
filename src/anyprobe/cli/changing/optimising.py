"""What ``optimise`` does: one step after another while the program runs, and what came of it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TextIO

import click

from anyprobe.cli.programs.targets import on_process, process_spec
from anyprobe.cli.terminal import output
from anyprobe.core.printable import printable
from anyprobe.data.findings.optimisation import Optimisation, Specialised

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.providers.function.optimising.optimiser import Optimiser

_NAMED = 5
"""How many functions that stayed are named."""


@dataclass
class Optimising:
    """One optimisation of one process."""

    measure: str | None
    watch: float
    turns: int
    turn: float
    specialise: bool
    ends: bool
    """Whether the command is over when nothing is kept."""
    quiet: bool
    _optimiser: "Optimiser | None" = None
    _steps: "Iterator[float] | None" = None
    _next: float = 0.0
    _told: bool = False
    enough: bool = field(default=False, init=False)

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Begin to count which functions run."""
        if self._optimiser is not None:
            raise click.UsageError("one process at a time is optimised")
        part = on_process(session).host.arming
        self._optimiser = part.begin_optimising(
            *map(process_spec, specs), measure=self.measure, watch=self.watch, turns=self.turns, turn=self.turn,
            specialise=self.specialise,
        )  # fmt: skip

    def look(self, sessions: "Sequence[Measured]", stream: TextIO, *, final: bool = False) -> int:  # noqa: ARG002
        """Do the next step, if it is time for that."""
        if self._optimiser is None or self._told or (self._steps is not None and time.monotonic() < self._next):
            return 0
        if final:
            if self._steps is not None:
                self._steps.close()  # type: ignore[attr-defined] # it is a generator
            return 0
        self._steps = self._steps or self._optimiser.steps()
        seconds = next(self._steps, None)
        if seconds is not None:
            self._next = time.monotonic() + seconds
            return 0
        self._told, self.enough = True, self.ends and not self.found.kept
        if self.found.kept and not self.quiet:
            output.warn(f"{_gain(self.found)}; it stays until this command ends")
        return 1

    @property
    def found(self) -> Optimisation:
        """What came of it."""
        return Optimisation(reason="it has not begun") if self._optimiser is None else self._optimiser.found

    def document(self) -> dict[str, Any]:
        """Return the members of the document."""
        return self.found.as_json()

    def render(self, snapshot: "Snapshot", console: "Console", top: int) -> None:  # noqa: ARG002 - reports' signature
        """Print what came of it."""
        from anyprobe.reports import heading

        found = self.found
        lines = []
        if found.functions:
            lines.append(
                f"{found.functions:,} functions, {found.code_bytes:,} bytes, moved; {found.calls:,} calls lead there; "
                f"{len(found.stayed):,} functions stayed"
            )
        lines += [_special(each) for each in found.specialised[:_NAMED]]
        lines += [f"  {printable(each.spec)}: {each.reason}: {each.detail}" for each in found.stayed[:_NAMED]]
        if found.before_ns is not None and found.after_ns is not None:
            lines.append(
                f"{printable(found.measured)}: {found.before_ns:,.1f} ns of processor time for each call before, "
                f"{found.after_ns:,.1f} after"
            )
        lines.append(f"{'kept' if found.kept else 'left as it was'}: {_gain(found) or printable(found.reason)}")
        console.print("\n".join(lines), markup=False, soft_wrap=True)
        heading.print_deaths((snapshot.target, *snapshot.others), console)


def _special(each: "Specialised") -> str:
    values = " and ".join(f"{name} = {value - (value >> 63 << 64):,}" for name, value in each.values.items())
    least = "at least " if len(each.values) > 1 else ""
    return (
        f"  {printable(each.function)}: {values} in {least}{100 * each.share:.3g} % of its calls: "
        f"{each.jumps} jumps go one way, {each.results} results are known, {each.dropped} blocks never run"
    )


def _gain(found: Optimisation) -> str:
    if found.interval is None or found.before_ns is None or not found.after_ns:
        return ""
    low, high = found.interval
    return f"{found.reason}: {found.before_ns / found.after_ns:.2f} times as fast ({low:.2f} to {high:.2f} at 95 %)"


def without_sites(snapshot: "Snapshot") -> "Snapshot":
    """Return results without the counters by which was found what runs."""
    return replace(snapshot, sites=(), aggregations=())
