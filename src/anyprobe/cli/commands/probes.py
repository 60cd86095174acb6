"""``anyprobe probes``: what is installed in a process, whoever installed it."""

from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from anyprobe.data.leftover import Leftover


@click.command("probes")
@options.one_target
@options.json
@click.option("--kprobes", is_flag=True, help="Print the format of the kernel's kprobes list instead of a table.")
def command(pids: tuple[int, ...], names: tuple[str, ...], as_json: bool, kprobes: bool) -> None:
    """Show what is installed in a process, whoever installed it."""
    import sys

    from anyprobe.cli import output, targets
    from anyprobe.probes import leftover

    found = leftover.inspect(targets.choose_one(pids, names))
    if as_json:
        output.write_json([as_document(site) for site in found], sys.stdout)
    elif kprobes:
        for site in found:
            click.echo(kprobes_line(site))
    else:
        render(found, output.console(sys.stdout))


def as_document(site: "Leftover") -> dict[str, Any]:
    """Return the JSON object of one site."""
    return {
        "address": site.address,
        "type": site.type,
        "symbol": site.symbol,
        "offset": site.offset,
        "module": site.module,
        "strategy": site.strategy,
        "flags": list(site.flags),
        "session": site.session,
        "owner": site.owner,
    }


def kprobes_line(site: "Leftover") -> str:
    """Return a site as the kernel's ``kprobes/list`` would show it."""
    flags = "".join(f"[{flag}]" for flag in site.flags)
    return f"{site.address:016x}  {site.type}  {site.symbol}+{site.offset:#x}  {site.module} {flags}".rstrip()


def render(found: "Sequence[Leftover]", console: "Console") -> None:
    """Print a table."""
    from rich.markup import escape
    from rich.table import Table

    if not found:
        console.print("nothing is installed")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("address", "type", "function", "module", "strategy", "flags", "owner"):
        table.add_column(name, no_wrap=name != "function", overflow="fold")
    for site in found:
        place = escape(site.symbol + (f"+{site.offset:#x}" if site.offset else ""))
        flags = escape(" ".join(site.flags))
        table.add_row(
            f"{site.address:#x}", site.type, place, escape(site.module), site.strategy, flags, str(site.owner)
        )
    console.print(table)
