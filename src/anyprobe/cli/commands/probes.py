"""``anyprobe probes``: what all sessions have installed in a process."""

import os
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from anyprobe.data.findings.leftover import Leftover


@click.command("probes", cls=helping.Command)
@options.one_target
@options.json
@click.option("--sites", is_flag=True, help="The sites that were changed, and how, instead of what is registered.")
@options.on_kernel
def command(pids: tuple[int, ...], names: tuple[str, ...], as_json: bool, sites: bool, kernel: bool) -> int:
    """Show what all sessions have installed in a process, as the kernel lists its kprobes.

    With --kernel: the kernel's own list, with who has set each kprobe and what was missed there, then the programs of
    BPF with what they are attached to and who holds them, and the events of tracefs.

    Without a process: which processes have probes.

    Each line has the address, k for a kprobe, r for a return probe or j for a jprobe, the place, the module, and what
    holds of [GONE], [DISABLED] and [OPTIMIZED] (reached by a jump, not by a trap).
    """
    import sys

    from anyprobe.cli.programs import targets
    from anyprobe.cli.terminal import output
    from anyprobe.probes.providers.function.outside import listing

    if kernel:
        from anyprobe.cli.kernel import probes as kernel_probes
        from anyprobe.cli.kernel import switching

        switching.check_alone(pids, names)
        return kernel_probes.show(as_json=as_json)
    if not pids and not names:
        show_processes(as_json=as_json)
        return 0
    chosen = targets.choose_one(pids, names)
    with output.progress("looking", quiet=False):
        found = listing.inspect(chosen)
    shown = found.sites if sites else found.registered
    if as_json:
        from anyprobe.data.findings.documents import LEFTOVER

        output.write_json(list(map(LEFTOVER.of, shown)), sys.stdout)
    elif not shown:
        output.console(sys.stdout).print("nothing is installed")
    elif sites:
        render(shown, output.console(sys.stdout))
    else:
        for each in shown:
            output.say(str(each))
    return 0


def show_processes(*, as_json: bool) -> None:
    """Show which processes have probes, of those that one may look at."""
    import sys

    from anyprobe.cli.terminal import output
    from anyprobe.core.errors import TargetError
    from anyprobe.probes.providers.function.outside import listing

    found: list[dict[str, Any]] = []
    with output.progress("looking", quiet=False):
        for pid in listing.probed_processes():
            try:
                installed = listing.inspect(pid)
            except TargetError:  # it has ended, or may not be looked at closely
                continue
            if not installed.registered and not installed.sites:
                continue  # the memory is a controller's
            owners = sorted({each.owner for each in (*installed.registered, *installed.sites)})
            count = len(installed.registered)
            found.append({"pid": pid, "exe": _executable(pid), "probes": count, "owners": owners})
    if as_json:
        output.write_json(found, sys.stdout)
        return
    console = output.console(sys.stdout)
    if not found:
        console.print("no process that you may look at has probes")
        return
    _print_processes(found, console)


def _executable(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _print_processes(found: "Sequence[dict[str, Any]]", console: "Console") -> None:
    from rich.table import Table

    from anyprobe.reports.plain import escape

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("pid", "probes", "owner"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("program", overflow="fold")
    for each in found:
        owners = ", ".join(map(str, each["owners"]))
        table.add_row(str(each["pid"]), f"{each['probes']:,}", owners, escape(each["exe"]))
    console.print(table)
    console.print(f"anyprobe probes -p {found[0]['pid']} lists them", style="dim", soft_wrap=True)


def render(found: "Sequence[Leftover]", console: "Console") -> None:
    """Print a table of sites."""
    from rich.table import Table

    from anyprobe.reports.plain import escape

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
