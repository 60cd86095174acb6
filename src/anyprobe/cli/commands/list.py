"""``anyprobe list``: what could be probed."""

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli import helping, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from anyprobe.data.explanation import ListedSite
    from anyprobe.probes.session import Session


@click.command("list", cls=helping.Command)
@options.optional_specs
@options.one_target
@options.json
@options.strategy
@click.option(
    "--inlined", is_flag=True, help="The instances of functions inlined into others, too, by debug information."
)
def command(
    specs: tuple[str, ...], pids: tuple[int, ...], names: tuple[str, ...], as_json: bool, strategy: str, inlined: bool
) -> None:
    """List what could be probed, with the strategy for each or the reason against it, and types. Changes nothing.

    Without a SPEC, all functions of the executable (a.out:*).
    """
    import sys

    from anyprobe.cli import output, targets

    pid = targets.choose_one(pids, names, specs)
    with ExitStack() as stack:
        session = targets.open_sessions(stack, targets.Target((pid,)), strategy=strategy)[0]
        with output.progress("planning", quiet=False):
            sites = _with_instances(session, specs) if inlined else session.list(*(specs or ("a.out:*",)))
    if as_json:
        output.write_json({"sites": [as_document(site) for site in sites]}, sys.stdout)
    else:
        render(sites, output.console(sys.stdout))


def _with_instances(session: "Session", specs: "Sequence[str]") -> "Sequence[ListedSite]":
    from anyprobe.probes import inlinedsites

    if not specs:
        raise click.UsageError("--inlined needs the names of functions")
    return inlinedsites.listed(session, specs)


def as_document(site: "ListedSite") -> dict[str, Any]:
    """Return the JSON object of one site; exactly one of ``strategy`` and ``refusal`` is null."""
    refusal = None if site.refusal is None else {"reason": site.refusal.reason.value, "detail": site.refusal.detail}
    return {
        "spec": site.spec,
        "module": site.module,
        "function": site.function,
        "offset": site.offset,
        "address": site.address,
        "arguments": None
        if site.arguments is None
        else [{"name": name, "type": kind} for name, kind in site.arguments],
        "result": site.result,
        "strategy": site.strategy,
        "refusal": refusal,
    }


def _prototype(site: "ListedSite") -> str:
    """Return parameters and result in a line, as a handler would declare them."""
    arguments = ", ".join(f"{name}: {kind}" for name, kind in site.arguments or ())
    return f"({arguments})" + (f" -> {site.result}" if site.result is not None else "")


def render(sites: "Sequence[ListedSite]", console: "Console") -> None:
    """Print a line per site, ready for grep, and a summary."""
    from rich.text import Text

    from anyprobe.reports.quantities import counted

    for site in sites:
        refused = site.refusal
        verdict = Text(f"{site.strategy:9}") if refused is None else Text(f"refused: {refused.reason.value}", "yellow")
        prototype = Text("" if site.arguments is None else f"  {_prototype(site)}", "dim")
        console.print(Text(f"{site.address:#14x}  {site.spec}  "), verdict, prototype, soft_wrap=True, sep="")
    strategies = Counter(site.strategy if site.refusal is None else "refused" for site in sites)
    shares = ", ".join(f"{count:,} {strategy}" for strategy, count in strategies.most_common())
    console.print(f"{counted(len(sites), 'site')}: {shares}" if sites else "no sites", style="dim", soft_wrap=True)
