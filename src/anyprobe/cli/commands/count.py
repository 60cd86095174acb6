"""``anyprobe count``."""

from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.snapshot import Snapshot


@click.command("count")
@options.specs
@options.target
@options.measuring
@click.pass_obj
def command(program: tuple[str, ...], /, specs: tuple[str, ...], pids: Any, names: Any, **settings: Any) -> int:  # noqa: ANN401
    """Count the hits of probes in running processes, or in a command after --.

    \b
    anyprobe count 'libc:*' -p 4242 --for 5
    anyprobe count libc:malloc libc:free -- ls -l
    anyprobe count 'a.out:*%return' -n redis-server --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli import measuring, targets

    target = targets.choose(pids, names, program, specs)
    plan = measuring.Plan(specs=specs, arm=lambda session, wanted: session.count(*wanted), render=_render, **settings)
    return measuring.measure(target, plan)


def _render(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print the table; what draws it is imported when the probes have long been armed."""
    from anyprobe.reports import table

    table.print_counts(snapshot, console, top)
