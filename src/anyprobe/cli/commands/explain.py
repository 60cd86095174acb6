"""``anyprobe explain``: what would be done at one site, or why not."""

import dataclasses
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from anyprobe.cli import ExitStatus
from anyprobe.cli.syntax import helping, options
from anyprobe.core.quoting import shown_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from anyprobe.data.findings.explanation import Explanation
    from anyprobe.probes.rehearsal import RehearsedHandler
    from anyprobe.probes.session import Session
    from anyprobe.probes.specs.parts import Spec

MOST_SITES = 60
"""So many sites have a line of their own; the others are summed up."""
MARK_STYLES = {"IA": "bold green", "DCR": "yellow", "JTPR": "red"}


@click.command("explain", cls=helping.Command)
@options.spec
@options.one_target
@click.option(
    "--for",
    "purpose",
    type=click.Choice(("count", "time")),
    default="count",
    show_default=True,
    help="What it would be probed for: time needs both ends of a function's calls.",
)
@click.option(
    "--script",
    "file",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE.py",
    help="Compile the handlers of a script, too, and show the bounds of those that would run in this function.",
)
@options.unsafe
@options.json
@options.strategy
@options.live
@options.returns
def command(
    spec: str,
    pids: tuple[int, ...],
    names: tuple[str, ...],
    purpose: str,
    file: str | None,
    unsafe: bool,
    as_json: bool,
    strategy: str,
    live: bool,
    returns: str,
) -> int:
    """Show the plan or the refusals for one site, liveness and the generated code. Changes nothing.

    The first line says what would be done; with --for time, for all that timing the function needs.
    Where a spec means several sites of a function, the first is shown, and a line with the strategy of each.
    IA is the insertion address, DCR the code that would move, JTPR the part of it that no jump may enter.
    """
    import sys

    from anyprobe.cli.handlers import scripts
    from anyprobe.cli.programs import targets
    from anyprobe.cli.terminal import output
    from anyprobe.probes.providers.kernel.places.specs import is_kernel

    if not pids and not names and is_kernel(spec):
        if file is not None or purpose == "time":
            raise click.UsageError("--script and --for time explain functions of processes, not of the kernel")
        return _explain_kernel(spec, as_json=as_json)
    script = None if file is None else scripts.load(file)
    pid = targets.choose_one(pids, names, (spec,))
    (wanted,) = map(targets.process_spec, targets.read((spec,), in_kernel=False))
    with ExitStack() as stack:
        settings = {"strategy": strategy, "live": live or None, "unsafe": unsafe or None, "returns": returns}
        session = targets.open_sessions(stack, targets.Target((pid,)), **settings)[0]
        with output.progress("planning", quiet=False):
            explanation = explained(session, wanted, timed=purpose == "time")
        there = explanation.disassembly and script is not None
        handlers = scripts.rehearse(script, session, explanation.function_start) if there and script else []
    if as_json:
        from anyprobe.data.findings.documents import EXPLANATION

        document = EXPLANATION.of(explanation)
        if script is not None:
            document["handlers"] = [
                dataclasses.asdict(each) | {"specs": [spec.text for spec in each.specs]} for each in handlers
            ]
        output.write_json(document, sys.stdout)
    else:
        console = output.console(sys.stdout)
        render(explanation, console)
        if script is not None:
            render_handlers(handlers, console)
    return ExitStatus.DONE if explanation.function else ExitStatus.NOT_PERMITTED


def _explain_kernel(spec: str, *, as_json: bool) -> int:
    """Explain a place in the running kernel."""
    import sys

    from anyprobe.cli.programs import targets
    from anyprobe.cli.terminal import output
    from anyprobe.probes.providers.kernel.explaining import explain

    with output.progress("analysing the kernel", quiet=False):
        (wanted,) = map(targets.kernel_spec, targets.read((spec,), in_kernel=True))
        explanation = explain(wanted)
    if as_json:
        from anyprobe.data.findings.documents import EXPLANATION

        output.write_json(EXPLANATION.of(explanation), sys.stdout)
    else:
        render(explanation, output.console(sys.stdout))
    return ExitStatus.DONE


def explained(session: "Session", spec: "Spec", *, timed: bool) -> "Explanation":
    """Return the explanation of a site; of one that is refused before anything is planned, why."""
    from anyprobe.core.errors import SiteRefused
    from anyprobe.data.findings.explanation import Explanation

    try:
        return session.explain(spec, timed=True) if timed else session.explain(spec)
    except SiteRefused as error:
        why = error.refusal
        refused = f"{why.reason.value}: {why.detail}"
        return Explanation(
            spec.text, "", "", why.address, why.address, (), (), (), (), False, (), refused=refused, timed=timed
        )  # fmt: skip


def render_handlers(handlers: "Sequence[RehearsedHandler]", console: "Console") -> None:
    """Print what is proven of handlers."""
    from anyprobe.reports.plain import escape

    console.print("\n[bold]handlers[/bold]")
    for each in handlers:
        what = f"{each.name} ({each.file}:{each.line}), {each.place} of {', '.join(spec.text for spec in each.specs)}"
        bound = f"at most {each.steps:,} operations and {each.stack:,} bytes of stack; {each.size:,} bytes of code"
        console.print(f"  {escape(what)}\n    {bound}", soft_wrap=True)
        console.print(f"    is given {', '.join(each.inputs) or 'nothing'}", style="dim", soft_wrap=True)
    if not handlers:
        console.print("  none of the script's would run in this function")


def render(explanation: "Explanation", console: "Console") -> None:
    """Print an explanation."""
    from anyprobe.reports.plain import escape

    style = None if explanation.strategy else "red"
    console.print(escape(explanation.summary), style=style, soft_wrap=True)
    if not explanation.function:  # nothing is known of it but where it is
        console.print(f"{escape(explanation.spec)} at {explanation.address:#x}", soft_wrap=True)
        return
    offset = explanation.address - explanation.function_start
    function, module = explanation.function, explanation.module
    # a function without a name is called after its module: once is enough
    place = function if function.startswith(f"{module}+0x") else f"{shown_module(module)}:{function}"
    place += f"+{offset:#x}" if offset else ""
    console.print(
        f"[bold]{escape(place)}[/bold] at {explanation.address:#x} ({escape(explanation.spec)})", soft_wrap=True
    )
    _print_disassembly(explanation, console)
    _print_liveness(explanation, console)
    console.print("\n[bold]strategies[/bold]")
    for strategy, verdict in explanation.verdicts:
        style = {"chosen": "green", "possible": ""}.get(str(verdict), "yellow")
        console.print(f"  {strategy:10} {escape(str(verdict))}", style=style or None, soft_wrap=True)
    if explanation.patch:
        console.print("\n[bold]patch[/bold]")
        for address, code, text in explanation.patch:
            console.print(f"  {address:#14x}  {code.hex(' '):<32}  {escape(text)}", soft_wrap=True)
    if len(explanation.sites) > 1:
        _print_sites(explanation, console)
    for note in explanation.notes:
        console.print(f"note: {escape(note)}", style="dim", soft_wrap=True)


def _print_sites(explanation: "Explanation", console: "Console") -> None:
    """Print a line for each site of the function that the spec means, this one among them; of very many, the first."""
    from anyprobe.reports.plain import escape

    console.print(f"\n[bold]all {len(explanation.sites):,} sites in this function, planned together[/bold]")
    for address, verdict in explanation.sites[:MOST_SITES]:
        place = f"{explanation.function}{address - explanation.function_start:+#x}"
        style = "yellow" if ": " in verdict else None
        console.print(f"  {address:#14x}  {escape(place)}  {escape(verdict)}", style=style, soft_wrap=True)
    rest = Counter(verdict.partition(": ")[0] for _, verdict in explanation.sites[MOST_SITES:])
    if rest:
        shares = ", ".join(f"{count:,} {verdict}" for verdict, count in rest.most_common())
        console.print(f"  … and {rest.total():,} more, which `anyprobe list` shows: {shares}", soft_wrap=True)


def _print_disassembly(explanation: "Explanation", console: "Console") -> None:
    from rich.text import Text

    console.print("\n[bold]code[/bold]")
    for line in explanation.disassembly:
        row = Text(f"  {line.address:#14x}  {line.bytes.hex(' '):<32}  {line.text:<44} ")
        for mark in line.marks:
            row.append(f" {mark}", MARK_STYLES.get(mark))
        row.rstrip()
        console.print(row, soft_wrap=True)


def _print_liveness(explanation: "Explanation", console: "Console") -> None:
    console.print("\n[bold]live at the site[/bold]")
    console.print(f"  registers  {' '.join(explanation.live_registers) or 'none'}", soft_wrap=True)
    console.print(f"  dead       {' '.join(explanation.dead_registers) or 'none'}", soft_wrap=True)
    console.print(f"  flags      {'live' if explanation.flags_live else 'dead'}")
    console.print(f"  vectors    dead: {' '.join(_runs(explanation.dead_vectors)) or 'none'}", soft_wrap=True)
    if explanation.stack:
        console.print(f"  stack      a hit takes up to {explanation.stack:,} bytes below rsp", soft_wrap=True)


def _runs(names: "Sequence[str]") -> "Iterator[str]":
    """Yield names, of those that differ in ascending numbers the first and the last."""
    numbered = [(name.rstrip("0123456789"), int(name[len(name.rstrip("0123456789")) :] or -1)) for name in names]
    begin = 0
    for place, (kind, number) in enumerate(numbered):
        if place + 1 == len(names) or numbered[place + 1] != (kind, number + 1):
            yield names[begin] if begin == place else f"{names[begin]}-{names[place]}"
            begin = place + 1
