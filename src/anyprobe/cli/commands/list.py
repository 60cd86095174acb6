"""``anyprobe list``: what could be probed."""

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from anyprobe.cli.programs import targets
    from anyprobe.data.findings.explanation import ListedSite
    from anyprobe.probes.session import Session
    from anyprobe.probes.specs.parts import Spec

DETAILED = 3
"""So many of the kernel's different reasons against a site are shown."""
WIDTH = 60
"""Columns that a spec may take in any case before longer ones stand out."""


@click.command("list", cls=helping.Command)
@options.optional_specs
@options.one_target
@options.json
@options.strategy
@options.mechanism
@click.option(
    "--inlined", is_flag=True, help="The instances of functions inlined into others, too, by debug information."
)
@click.option(
    "--top",
    type=options.Whole(0),
    default=0,
    metavar="N",
    help="Show the first N lines only, and sum up the others. Default: all.",
)
def command(
    specs: tuple[str, ...],
    pids: tuple[int, ...],
    names: tuple[str, ...],
    as_json: bool,
    strategy: str,
    mechanism: str | None,
    inlined: bool,
    top: int,
) -> None:
    """List what could be probed, with the strategy for each or the reason against it, and types. Changes nothing.

    Without a SPEC, all functions of the executable (a.out:*). In the kernel all mechanisms that can do it are named.
    A path of a program, in place of -p PID, lists what the program's file has: none of its code runs.

    \b
    anyprobe list 'libc:mem*' -p 4242
    anyprobe list 'usdt:*' ./program
    anyprobe list 'kernel::tcp_*' 'tracepoint:sched:*' 'syscall::*'
    """  # noqa: D301 - click's mark for lines that stay as they are
    import os
    import signal
    import sys

    from anyprobe.cli.programs import targets
    from anyprobe.cli.terminal import output

    specs, program = targets.program_among(specs)
    target = targets.choose_listed(pids, names, specs, program)
    _see_options(target, mechanism, strategy, inlined=inlined)
    if inlined and not specs:
        raise click.UsageError("--inlined needs the names of functions")
    with ExitStack() as stack, output.progress("planning", quiet=False):
        sites: Sequence[ListedSite]
        if target.kernel:
            wanted = map(targets.kernel_spec, targets.read(specs, in_kernel=True))
            sites = targets.open_kernel(stack, target, mechanism).list(*wanted)
        else:
            session = targets.open_sessions(stack, target, strategy=strategy)[0]
            if target.program:  # it is held before its first instruction, and ends there
                stack.callback(os.kill, session.pid, signal.SIGKILL)
            of_process = [*map(targets.process_spec, targets.read(specs or ("a.out:*",), in_kernel=False))]
            sites = _with_instances(session, of_process) if inlined else session.list(*of_process)
    if as_json:
        from anyprobe.data.findings.documents import LISTED

        output.write_json({"sites": list(map(LISTED.of, sites))}, sys.stdout)
    else:
        render(sites, output.console(sys.stdout), top)


def _see_options(target: "targets.Target", mechanism: str | None, strategy: str, *, inlined: bool) -> None:
    if mechanism is not None and not target.kernel:
        raise click.UsageError("--mechanism is about probes in the kernel; --strategy is about those in programs")
    if target.kernel and (inlined or strategy != "auto"):
        raise click.UsageError(f"{'--inlined' if inlined else '--strategy'} is about programs, not about the kernel")


def _with_instances(session: "Session", specs: "Sequence[Spec]") -> "Sequence[ListedSite]":
    from anyprobe.probes import inlined_sites

    return inlined_sites.listed(session, specs)


def _prototype(site: "ListedSite") -> str:
    """Return parameters and result in a line, as a handler would declare them; of a marker also where it is."""
    if site.marker is not None:
        types = ", ".join(f"{each.name}: {each.type or 'not understood'}" for each in site.marker.arguments)
        semaphore = f", semaphore {site.marker.semaphore:#x}" if site.marker.semaphore else ""
        return f"({types}) in {site.function}+{site.offset:#x}{semaphore}"
    arguments = ", ".join(f"{name}: {kind}" for name, kind in site.arguments or ())
    return f"({arguments})" + (f" -> {site.result}" if site.result is not None else "")


def render(sites: "Sequence[ListedSite]", console: "Console", top: int = 0) -> None:
    """Print a line per site, ready for grep, and a summary; ``top`` limits the lines unless 0."""
    from rich.text import Text

    from anyprobe.core.printable import printable
    from anyprobe.reports.quantities import counted

    shown = sites[:top] if top else sites
    names = list(map(printable, _told_apart(shown)))
    verdicts = list(map(_verdict, shown))
    prototypes = [
        "" if site.arguments is None and site.marker is None else printable(_prototype(site)) for site in shown
    ]
    width, least = _width(names), max(map(len, (*verdicts, "reached by"))) if any(prototypes) else 0
    place = max([14, *(len(_address(site)) for site in shown)])
    if shown:
        types = "types" if any(prototypes) else ""
        heading = f"{'address':{place}}  {'spec':{width}}  {'reached by':{least}}  {types}".rstrip()
        console.print(Text(heading, "bold"), soft_wrap=True)
    for site, name, verdict, prototype in zip(shown, names, verdicts, prototypes, strict=True):
        line = Text(f"{_address(site):>{place}}  {name:{width}}  ")
        line.append(f"{verdict:{least}}", "" if site.refusal is None else "yellow")
        line.append(f"  {prototype}" if prototype else "", "dim")
        line.rstrip()
        console.print(line, soft_wrap=True)
    if len(shown) < len(sites):
        console.print(f"… and {len(sites) - len(shown):,} more; --top 0 shows all", style="dim", soft_wrap=True)
    problems = list(dict.fromkeys(site.refusal.detail for site in shown if site.in_kernel and site.refusal))
    for detail in problems[:DETAILED]:
        console.print(Text(f"refused: {printable(detail)}", "yellow"), soft_wrap=True)
    strategies = Counter(site.strategy if site.refusal is None else "refused" for site in sites)
    shares = ", ".join(f"{count:,} {strategy}" for strategy, count in strategies.most_common())
    console.print(f"{counted(len(sites), 'site')}: {shares}" if sites else "no sites", style="dim", soft_wrap=True)


def _address(site: "ListedSite") -> str:
    """Return where it is; of a tracepoint that is not said."""
    return f"{site.address:#x}" if site.address else "-"


def _verdict(site: "ListedSite") -> str:
    if site.refusal is not None:
        return f"refused: {site.refusal.reason.value}"
    return " ".join(site.mechanisms) or site.strategy or ""


def _width(names: "Sequence[str]") -> int:
    """Return how wide the column of names is: as most of them are; the few that are longer stand out."""
    lengths = sorted(map(len, names))
    usual = lengths[len(lengths) * 9 // 10] if lengths else 0
    return min(lengths[-1], max(usual, WIDTH)) if lengths else 0


def _told_apart(sites: "Sequence[ListedSite]") -> list[str]:
    """Return the specs of sites, with the offset where one function has several, as those of its returns."""
    several = Counter(site.spec for site in sites)
    starts = {(site.spec, site.address - site.offset) for site in sites}
    functions = Counter(spec for spec, _ in starts)
    names = []
    for site in sites:
        inside = f" +{site.offset:#x}" if several[site.spec] > 1 and functions[site.spec] == 1 else ""
        names.append(site.spec + inside)
    return names
