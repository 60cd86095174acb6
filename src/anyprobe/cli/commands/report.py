"""``anyprobe report``."""

import click

from anyprobe.cli.syntax import helping, options


@click.command("report", cls=helping.Command)
@options.archive
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE.html", help="Write the page there.")
@click.option("--quiet", is_flag=True, help="No warnings; the page has them.")
def command(archive: str, output: str | None, quiet: bool) -> int:
    """Make one HTML page of results that were kept by -o RUN.aprobe, for any browser, without a network.

    Tables to sort and to search, histograms, heat maps over time, the flame graph, warnings, and what was refused.

    \b
    anyprobe time --tree 'a.out:*' -p 4242 --every 1 --for 60 -o run.aprobe
    anyprobe report run.aprobe -o report.html
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.archives import showing

    (run,) = showing.read_all([archive])
    return showing.show(run, {**showing.PLAIN, "format": "report", "output": output, "quiet": quiet})
