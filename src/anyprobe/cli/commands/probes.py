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
@click.option("--sites", is_flag=True, help="The sites that were changed, and how, instead of what is registered.")
def command(pids: tuple[int, ...], names: tuple[str, ...], as_json: bool, sites: bool) -> None:
    """Show what is installed in a process, whoever installed it, as the kernel lists its kprobes.

    Each line has the address, k for a kprobe, r for a return probe or j for a jprobe, the place, the module, and what
    holds of [GONE], [DISABLED] and [OPTIMIZED] (reached by a jump, not by a trap).
    """
    import sys

    from anyprobe.cli import output, targets
    from anyprobe.probes import listing

    chosen = targets.choose_one(pids, names)
    with output.progress("looking", quiet=False):
        found = listing.inspect(chosen)
    shown = found.sites if sites else found.registered
    if as_json:
        output.write_json([as_document(each) for each in shown], sys.stdout)
    elif not shown:
        output.console(sys.stdout).print("nothing is installed")
    elif sites:
        render(shown, output.console(sys.stdout))
    else:
        for each in shown:
            click.echo(str(each))


def as_document(each: "Leftover") -> dict[str, Any]:
    """Return the JSON object of one probe or site."""
    return {
        "address": each.address,
        "type": each.type,
        "symbol": each.symbol,
        "offset": each.offset,
        "module": each.module,
        "strategy": each.strategy,
        "flags": list(each.flags),
        "session": each.session,
        "owner": each.owner,
    }


def render(found: "Sequence[Leftover]", console: "Console") -> None:
    """Print a table of sites."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("address", "bytes", "type", "function", "module", "strategy", "flags", "owner"):
        table.add_column(name, no_wrap=name != "function", overflow="fold")
    for site in found:
        place = escape(site.symbol + (f"+{site.offset:#x}" if site.offset else ""))
        flags = escape(" ".join(site.flags))
        table.add_row(
            f"{site.address:#x}", str(site.size), site.type, place, escape(site.module), site.strategy, flags,
            str(site.owner),
        )  # fmt: skip
    console.print(table)
