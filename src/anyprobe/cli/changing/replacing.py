"""What ``replace`` does: functions of processes are replaced together, and what has been called instead is shown."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import click

from anyprobe.cli.programs.targets import on_process, process_spec
from anyprobe.cli.terminal import output
from anyprobe.core.printable import printable
from anyprobe.probes.providers.function.replacing.shared_object import SharedObject
from anyprobe.probes.specs.parts import Spec

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.cli.programs.targets import AnySpec, Measured, Target
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.providers.function.replacing.replacement import Replacement

_SOURCE = ".c"


def read(texts: Sequence[str], target: "Target") -> "list[AnySpec | SharedObject]":
    """Return the functions that some texts name: of files, where there is one of that name, or of the program."""
    found: list[AnySpec | SharedObject] = []
    for text in texts:
        path, _, function = text.rpartition(":")
        if path.endswith(_SOURCE) and os.path.isfile(path):
            found.append(SharedObject.of_file(path, function))
        elif os.path.isfile(path) or "/" in path:
            found.append(SharedObject(path, function))
        else:
            found += target.read((text,))
    return found


@dataclass
class Replacing:
    """The functions that one command replaces."""

    instead: "Sequence[AnySpec | SharedObject]"
    when_quiet: bool
    outside: "Sequence[AnySpec]"
    timeout: float
    quiet: bool
    _made: "list[Replacement]" = field(default_factory=list)
    enough: bool = field(default=False, init=False)

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Replace the functions of one process."""
        pairs: dict[str | Spec, str | Spec | SharedObject] = {
            process_spec(spec): by if isinstance(by, SharedObject) else process_spec(by)
            for spec, by in zip(specs, self.instead, strict=True)
        }
        if len(pairs) < len(specs):
            raise click.UsageError("a function is named twice, and can be replaced by one other")
        made = on_process(session).replace(
            pairs,
            when_quiet=self.when_quiet,
            outside=[process_spec(each) for each in self.outside],
            timeout=self.timeout,
        )
        self._made.append(made)
        if not self.quiet:
            count = sum(len(pair.replaced) for pair in made.pairs)
            what = f"{count:,} function{'s' * (count != 1)} of process {session.pid}"
            output.warn(f"{what} replaced until this command ends")

    def look(self, sessions: "Sequence[Measured]", stream: TextIO, *, final: bool = False) -> int:  # noqa: ARG002
        """Emit nothing: what is shown is shown at the end."""
        return 0

    def document(self) -> dict[str, Any]:
        """Return the members of the document."""
        return {
            "replaced": [
                {"spec": site.canonical, "by": pair.by.name, "loaded": pair.by.from_file or None}
                for made in self._made
                for pair in made.pairs
                for site in pair.replaced
            ]
        }

    def render(self, snapshot: "Snapshot", console: "Console", top: int) -> None:  # noqa: ARG002 - reports' signature
        """Print how often each was called, and what could not be placed."""
        from anyprobe.reports import heading

        sites = {site.spec: site for site in snapshot.sites}
        rows = [("calls", "function", "instead")]
        missed = 0
        for each in self.document()["replaced"]:
            site = sites.get(each["spec"])
            calls = 0 if site is None else site.hits
            missed += 0 if site is None else site.nmissed
            function = each["spec"].removeprefix("pid:").removesuffix(":entry")
            rows.append((f"{calls:,}", function, each["by"].removeprefix("pid:")))
        widths = [max(len(row[number]) for row in rows) for number in (0, 1)]
        lines = [f"{calls:>{widths[0]}}  {printable(name):<{widths[1]}}  {printable(by)}" for calls, name, by in rows]
        if missed:
            lines.append(
                f"{missed:,} calls reached the old function: signal handlers made them on the way to the new one"
            )
        console.print("\n".join(lines), markup=False, soft_wrap=True)
        heading.print_deaths((snapshot.target, *snapshot.others), console)
        heading.print_refusals(snapshot, console)
