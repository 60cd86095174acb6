"""``anyprobe time``."""

from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.snapshot import Snapshot


@click.command("time")
@options.specs
@options.target
@options.measuring
@options.clock
@click.pass_obj
def command(program: tuple[str, ...], /, specs: tuple[str, ...], pids: Any, names: Any, **settings: Any) -> int:  # noqa: ANN401
    """Measure how long functions take: count, percentiles, histogram.

    \b
    anyprobe time libc:malloc -p 4242 --for 5
    anyprobe time 'libz:*flate' -- gzip -k FILE
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli import measuring, targets

    target = targets.choose(pids, names, program, specs)
    plan = measuring.Plan(
        specs=specs,
        arm=lambda session, wanted: session.time(*wanted),
        render=_render,
        always={"functions": []},
        **settings,
    )
    return measuring.measure(target, plan)


def _render(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print the table; what draws it is imported when the probes have long been armed."""
    from anyprobe.reports import histogram

    histogram.print_timings(snapshot, console, top)
