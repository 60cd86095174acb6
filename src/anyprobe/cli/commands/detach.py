"""``anyprobe detach``: remove what is installed in a process, whoever installed it."""

from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.leftover import RemovalReport


@click.command("detach")
@options.one_target
@options.json
def command(pids: tuple[int, ...], names: tuple[str, ...], as_json: bool) -> None:
    """Remove everything that is installed in a process and in its fork children, whoever installed it."""
    import sys

    from anyprobe.cli import output, targets
    from anyprobe.probes import leftover

    report = leftover.remove(targets.choose_one(pids, names))
    if as_json:
        output.write_json(as_document(report), sys.stdout)
    else:
        render(report, output.console(sys.stdout))


def as_document(report: "RemovalReport") -> dict[str, Any]:
    """Return the JSON document."""
    import dataclasses

    return dataclasses.asdict(report)


def render(report: "RemovalReport", console: "Console") -> None:
    """Print what was removed, and what waits for threads that are still inside."""
    console.print(str(report), soft_wrap=True, markup=False)
