"""``anyprobe diff``."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


@click.command("diff", cls=helping.Command)
@click.argument("before", metavar="BEFORE.aprobe", type=click.Path(dir_okay=False))
@click.argument("after", metavar="AFTER.aprobe", type=click.Path(dir_okay=False))
@options.comparing
def command(before: str, after: str, **settings: Any) -> int:  # noqa: ANN401
    """Show what has changed from one run to another: mean and percentiles of calls, rates, shares of samples.

    Rows are in the order of how much they matter: how much time of each second functions take more, or less. --format
    flame shows trees with their changes as colours, folded writes both numbers for difffolded's readers.

    \b
    anyprobe diff before.aprobe after.aprobe
    anyprobe diff before.aprobe after.aprobe --format flame -o change.html
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.archives import comparing

    return comparing.compare((before, after), settings)
