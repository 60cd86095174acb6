"""``anyprobe merge``."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


@click.command("merge", cls=helping.Command)
@options.archives
@click.option(
    "--by",
    type=click.Choice(["rank", "host"]),
    help="Before the sum that of each rank, by what mpirun or srun has said, or of each host.",
)
@options.showing
def command(archives: tuple[str, ...], by: str | None, **settings: Any) -> int:  # noqa: ANN401
    """Add up results that were kept by -o RUN.aprobe: of processes, of machines, of parts of a test.

    \b
    anyprobe merge host1.aprobe host2.aprobe -o all.aprobe
    anyprobe merge run*.aprobe --json
    mpirun -n 4 anyprobe count a.out:step -o run.%r.aprobe -- ./program
    anyprobe merge --by rank run.*.aprobe
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.archives import showing

    if by is not None:
        return showing.show_by(showing.read_all(archives), by, settings)
    return showing.show(showing.read_sum(archives), settings)
