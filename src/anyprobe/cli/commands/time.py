"""``anyprobe time``."""

from typing import Any

import click

from anyprobe.cli import options


@click.command("time")
@options.specs
@options.target
@options.measuring
@click.pass_obj
def command(program: tuple[str, ...], /, specs: tuple[str, ...], pids: Any, names: Any, **settings: Any) -> int:  # noqa: ANN401
    """Measure how long functions take: count, percentiles, histogram.

    \b
    anyprobe time libc:malloc -p 4242 --for 5
    anyprobe time 'libz:*flate' -- gzip -k FILE
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli import measuring, targets
    from anyprobe.reports import histogram

    target = targets.choose(pids, names, program, specs)
    plan = measuring.Plan(
        specs=specs, arm=lambda session, wanted: session.time(*wanted), render=histogram.print_timings, **settings
    )
    return measuring.measure(target, plan)
