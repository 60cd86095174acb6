"""``anyprobe show``."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


@click.command("show", cls=helping.Command)
@options.archive
@options.heat
@options.showing
def command(archive: str, heat: bool, **settings: Any) -> int:  # noqa: ANN401
    """Show results that were kept by -o RUN.aprobe, as the command would have that has measured them.

    \b
    anyprobe time 'libssl:*' -p 4242 --every 1 --for 60 -o run.aprobe
    anyprobe show run.aprobe
    anyprobe show run.aprobe --heat
    anyprobe show run.aprobe --json
    anyprobe show run.aprobe --format flame -o flame.html
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.archives import showing

    (run,) = showing.read_all([archive])
    return showing.show(run, settings, heat=heat)
