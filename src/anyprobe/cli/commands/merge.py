"""``anyprobe merge``."""

from typing import Any

import click

from anyprobe.cli import helping, options


@click.command("merge", cls=helping.Command)
@options.archives
@options.showing
def command(archives: tuple[str, ...], **settings: Any) -> int:  # noqa: ANN401
    """Add up results that were kept by -o RUN.aprobe: of processes, of machines, of parts of a test.

    \b
    anyprobe merge host1.aprobe host2.aprobe -o all.aprobe
    anyprobe merge run*.aprobe --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli import showing
    from anyprobe.data.runs import merged

    return showing.show(merged(showing.read_all(archives)), settings)
