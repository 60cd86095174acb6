"""``anyprobe cover``."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from anyprobe.cli.measurement.plan import Plan
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.snapshots.snapshot import Snapshot


@click.command("cover", cls=helping.Command, starts=True)
@options.optional_specs
@click.option(
    "--annotate",
    metavar="FILES",
    help="Print the source of the files that match a glob; before each line + is run, or how often with --counts, "
    "##### not run, ? not known.",
)
@click.option(
    "--counts", is_flag=True, help="Count how often each block runs; then no probe is taken out once it was hit."
)
@click.option(
    "--edges", is_flag=True, help="Count how often control goes from each block to each other, too; means --counts."
)
@click.option(
    "--lazy",
    is_flag=True,
    help="Place the probes of a function when it is entered first, for which the thread waits some milliseconds. "
    "Not with --counts, and of no use where fork children work.",
)
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Exit with 1 where less of the lines has run (of the blocks, where no lines are known).",
)
@options.pending
@options.processes
@options.measuring
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    annotate: str | None,
    counts: bool,
    edges: bool,
    lazy: bool,
    fail_under: float | None,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Show which blocks, functions and source lines have run, of modules or functions; without any, of the program.

    \b
    anyprobe cover -- ./program
    anyprobe cover libssl a.out -p 4242 --for 60
    anyprobe cover 'a.out:parse_*' --annotate parse.c -- ./program
    anyprobe cover --format html -o coverage.html -- ./program
    anyprobe cover --format lcov -o coverage.info -p 4242 --for 60
    anyprobe cover --format fdata -o prof.fdata -p 4242 --for 60
    anyprobe cover merge run1.json run2.json --format html -o coverage.html
    anyprobe cover diff without.json with.json
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets
    from anyprobe.probes.coverage.covering import blocks_of

    edges = edges or settings["format"] == "fdata"
    counts = counts or settings["format"] == "llvm-sample"
    if lazy and (counts or edges):
        raise click.UsageError("--lazy is for flags: without --counts, --edges and formats that count")
    way = specs[0] if specs and specs[0] in {"merge", "diff"} else None
    if way is not None:
        if program or pids or names:
            raise click.UsageError(f"anyprobe cover {way} is of documents, not of programs")
        from anyprobe.cli.archives import covered

        targets.selected(settings)
        render = _render_difference if way == "diff" else partial(_render, annotate=annotate)
        read = measuring.Plan(
            specs=(), arm=partial(_arm, counts=counts, edges=edges, lazy=lazy), render=render, covers=True, **settings
        )
        return _enough(covered.combine(way, specs[1:], read), fail_under, read)
    specs = tuple(map(blocks_of, specs or ("a.out",)))
    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    if target.kernel:
        raise click.UsageError(
            "coverage is of programs; anyprobe count kernel::FUNCTION%block counts blocks of the kernel"
        )
    plan = measuring.Plan(
        specs=target.read(specs),
        arm=partial(_arm, counts=counts, edges=edges, lazy=lazy),
        render=partial(_render, annotate=annotate),
        seen=_without_sites,
        covers=True,
        always={"modules": [], "files": []},
        **settings,
    )
    return measuring.measure(target, plan) or _enough(plan.shown, fail_under, plan)


def _enough(shown: "Sequence[Snapshot]", least: float | None, plan: "Plan") -> int:
    """Return the exit status for how much has run, of which ``least`` per cent are wanted."""
    from anyprobe.cli import ExitStatus

    if least is None or _share(shown) * 100 >= least:
        return ExitStatus.DONE
    plan.warn(f"{_share(shown):.1%} covered; --fail-under asks for {least:g} %")
    return ExitStatus.NOT_PERMITTED


def _render_difference(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print what has run in addition."""
    from anyprobe.reports import coverage

    coverage.print_difference(snapshot, console, top)


def _arm(session: "Measured", specs: "Sequence[AnySpec]", *, counts: bool, edges: bool, lazy: bool) -> None:
    from anyprobe.cli.programs import targets

    targets.on_process(session).cover(*specs, counts=counts, edges=edges, lazy=lazy)  # type: ignore[arg-type]  # none is in the kernel


def _without_sites(snapshot: "Snapshot") -> "Snapshot":
    """Return the results without a row for each block, which are the coverage's."""
    return replace(snapshot, sites=())


def _share(shown: "Sequence[Snapshot]") -> float:
    from anyprobe.data.findings.coverage import Tally

    modules = [module for each in shown for module in (each.coverage.modules if each.coverage else ())]
    lines = sum((each.lines for each in modules), Tally())
    return (lines if lines.total else sum((each.blocks for each in modules), Tally())).share or 0.0


def renderer(*, by: str | None, tree: bool) -> "Callable[[Snapshot, Console, int], None]":  # noqa: ARG001
    """Return what prints results."""
    return partial(_render, annotate=None)


def _render(snapshot: "Snapshot", console: "Console", top: int, *, annotate: str | None) -> None:
    """Print the tables, or source; of an interval, what has run in it for the first time."""
    from anyprobe.reports import coverage

    if snapshot.interval is not None:
        coverage.print_difference(snapshot, console, top)
        return
    coverage.print_coverage(snapshot, console, top)
    if annotate is not None:
        from anyprobe.exporters.covered_source import source_of

        if not coverage.print_source(snapshot, console, annotate, source_of):
            console.print(f"no file with code matches {annotate!r}", markup=False)
