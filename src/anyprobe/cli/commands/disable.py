"""``anyprobe disable``: disarm everything that any session has installed in a process, until ``enable``."""

import click

from anyprobe.cli import helping, options


@click.command("disable", cls=helping.Command)
@options.one_target
@options.json
@click.option("--all", "everything", is_flag=True, required=True, help="All sites; there is no other choice yet.")
def command(pids: tuple[int, ...], names: tuple[str, ...], as_json: bool, everything: bool) -> None:
    """Disarm everything that any session has installed in a process, until enable.

    Sessions go on, and so do the counts that they have; each probe's own state stays what it is.
    """
    from anyprobe.cli import switching

    del everything
    switching.switch(pids, names, on=False, as_json=as_json)
