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
@click.option(
    "--kernel",
    "in_kernel",
    is_flag=True,
    help="SPECs are functions or modules of the kernel: vfs_read, ext4:*, kvm. Blocks need the driver (anyprobe driver "
    "load); without it, functions alone.",
)
@options.pending
@options.processes
@options.hosts
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
    in_kernel: bool,
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
    anyprobe cover --kernel 'ext4:*' vfs_read --for 60
    anyprobe cover merge run1.json run2.json --format html -o coverage.html
    anyprobe cover diff without.json with.json
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets

    edges = edges or settings["format"] == "fdata"
    counts = counts or settings["format"] == "llvm-sample"
    if lazy and (counts or edges):
        raise click.UsageError("--lazy is for flags: without --counts, --edges and formats that count")
    way = specs[0] if specs and specs[0] in {"merge", "diff"} else None
    if way is not None:
        if program or pids or names or in_kernel:
            raise click.UsageError(f"anyprobe cover {way} is of documents, not of programs")
        from anyprobe.cli.archives import covered

        targets.selected(settings)
        render = _render_difference if way == "diff" else partial(_render, annotate=annotate)
        read = measuring.Plan(
            specs=(), arm=partial(_arm, counts=counts, edges=edges, lazy=lazy), render=render, covers=True, **settings
        )
        return _enough(covered.combine(way, specs[1:], read), fail_under, read)
    if in_kernel and not specs:
        raise click.UsageError("--kernel needs functions or modules: vfs_read, 'ext4:*'")
    specs = tuple(_in_kernel(each) if in_kernel else _of_either(each) for each in specs or ("a.out",))
    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    targets.check_pending(target, settings["pending"])
    wrong = next((name for name, given in {"--lazy": lazy, "--edges": edges}.items() if given), None)
    if target.kernel and wrong is not None:
        raise click.UsageError(f"{wrong} is for programs: in the kernel blocks are counted")
    plan = measuring.Plan(
        specs=target.read(specs),
        arm=partial(_arm, counts=counts, edges=edges, lazy=lazy),
        render=partial(_render, annotate=annotate),
        seen=_without_sites,
        covers=True,
        always={"modules": [], "files": []},
        **settings,
    )
    status = measuring.measure(target, plan)
    _say_if_empty(plan)
    return status or _enough(plan.shown, fail_under, plan)


def _say_if_empty(plan: "Plan") -> None:
    """Say of a format that has nothing but lines that none are known, and why."""
    modules = [module for each in plan.shown for module in (each.coverage.modules if each.coverage else ())]
    if plan.format in {"lcov", "cobertura"} and modules and not any(each.files for each in modules):
        plan.warn(
            f"--format {plan.format} is of lines, and none are known: {modules[0].name}: {modules[0].without_lines}"
        )


def _of_either(spec: str) -> str:
    """Return the spec of the blocks in a program, or of functions of the kernel, which begin with ``kernel:``."""
    from anyprobe.probes.coverage.covering import blocks_of

    return spec if spec.startswith("kernel:") else blocks_of(spec)


def _in_kernel(spec: str) -> str:
    """Return the spec of functions of the kernel that a short one means: ``vfs_read``, ``ext4:*``, ``kvm``."""
    from anyprobe.probes.providers.kernel.places.specs import is_kernel
    from anyprobe.target.kernel import loaded_modules

    if is_kernel(spec):
        return spec
    if ":" in spec:
        return f"kernel:{spec}"
    return f"kernel:{spec}:*" if spec in {"vmlinux", *loaded_modules.loaded()} else f"kernel::{spec}"


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

    if session.pid == targets.KERNEL:
        targets.in_the_kernel(session).cover(*map(targets.kernel_spec, specs))
        return
    targets.on_process(session).cover(*map(targets.process_spec, specs), counts=counts, edges=edges, lazy=lazy)


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
