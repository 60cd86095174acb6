"""``anyprobe detach``: remove what any session has installed in a process."""

from typing import TYPE_CHECKING

import click

from anyprobe.cli import ExitStatus
from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from anyprobe.data.findings.leftover import RemovalReport


@click.command("detach", cls=helping.Command)
@options.target
@options.json
def command(pids: tuple[int, ...], names: tuple[str, ...], as_json: bool) -> int:
    """Remove everything that any session has installed in processes and in their fork children."""
    import sys

    from anyprobe.cli.programs import targets
    from anyprobe.cli.terminal import output

    chosen = targets.choose_running(pids, names)
    with output.progress("removing", quiet=False):
        report = removed(chosen)
    if as_json:
        output.write_json(report, sys.stdout)
    else:
        render(report, output.console(sys.stdout))
    return ExitStatus.NOT_PERMITTED if report.failed else ExitStatus.DONE


def removed(pids: "Sequence[int]") -> "RemovalReport":
    """Clean processes; of several, those that can be."""
    from anyprobe.core.errors import TargetError
    from anyprobe.data.findings.leftover import RemovalReport
    from anyprobe.probes.providers.function.outside import leftover

    report = RemovalReport((), 0)
    for pid in pids:
        try:
            report = report.merged(leftover.remove(pid))
        except TargetError as error:
            if len(pids) == 1:
                raise
            report = report.merged(RemovalReport((), 0, failed=(f"process {pid}: {error}",)))
    return report


def render(report: "RemovalReport", console: "Console") -> None:
    """Print what was removed, and what waits for threads that are still inside."""
    console.print(str(report), soft_wrap=True, markup=False)
