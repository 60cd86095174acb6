"""``anyprobe enable``: arm again everything that ``disable`` has disarmed."""

import click

from anyprobe.cli import helping, options


@click.command("enable", cls=helping.Command)
@options.one_target
@options.json
@click.option("--all", "everything", is_flag=True, required=True, help="All sites; there is no other choice yet.")
def command(pids: tuple[int, ...], names: tuple[str, ...], as_json: bool, everything: bool) -> None:
    """Arm again everything that disable has disarmed.

    Sessions go on, and so do the counts that they have; each probe's own state stays what it is.
    """
    from anyprobe.cli import switching

    del everything
    switching.switch(pids, names, on=True, as_json=as_json)
