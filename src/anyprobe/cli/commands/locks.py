"""``anyprobe locks``."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from anyprobe.cli.measurement.plan import Plan
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.waiting.described import DescribedLock


@click.command("locks", cls=helping.Command, starts=True)
@click.option(
    "--no-hold", is_flag=True, help="Measure no hold times, and not who holds: a lock that is free costs far less then."
)
@click.option(
    "--described",
    metavar="FILE",
    multiple=True,
    help="And locks of the program's own, whose functions the file names; postgresql is known.",
)
@click.option(
    "--kernel",
    "in_kernel",
    is_flag=True,
    help="The kernel's own locks instead, that all or some processes wait for: root.",
)
@options.processes
@options.hosts
@options.measuring
@options.lines
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    no_hold: bool,
    described: tuple[str, ...],
    in_kernel: bool,
    lines: bool,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Show which locks threads wait for and how long, how long they are held, and by whom while others wait.

    Mutexes, read-write locks, semaphores, condition variables and barriers of the C library, which most languages use,
    and futexes by its function syscall.

    \b
    anyprobe locks -p 4242 --for 5
    anyprobe locks --no-hold -n mariadbd --for 5
    anyprobe locks --json -- ./program
    anyprobe locks --described postgresql -n postgres --for 5
    anyprobe locks --kernel --for 5
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets
    from anyprobe.data.findings.waiting import with_names
    from anyprobe.probes.stacks.lines import FrameLines
    from anyprobe.probes.waiting.locks import place_locks
    from anyprobe.reports.waiting import without_places

    chosen = targets.selected(settings)
    target = targets.choose_session(pids, names, program, in_kernel=in_kernel, **chosen)
    if in_kernel and (no_hold or described or lines):
        option = "--no-hold" if no_hold else "--described" if described else "--lines"
        raise click.UsageError(f"{option} is about locks of programs")
    if in_kernel:
        return measuring.measure(target._replace(of_chosen=True), _of_the_kernel(settings))

    kinds: list[DescribedLock] = []
    if described:
        from anyprobe.probes.waiting.described import names_in, read_locks

        kinds += [each for source in described for each in read_locks(source)]
    named: list[tuple[str, dict[int, str]]] = [(each.name, {}) for each in kinds]

    def arm(session: "Measured", specs: "Sequence[AnySpec]") -> None:  # noqa: ARG001
        process = targets.on_process(session)
        if lines:
            process.host.symbols.lines = FrameLines()
        place_locks(process, holds=not no_hold, described=kinds)
        for (_, texts), kind in zip(named, kinds, strict=True):
            texts.update(texts or names_in(process, kind))

    def seen(snapshot: "Snapshot") -> "Snapshot":
        results = tuple(with_names(each, named) for each in snapshot.aggregations)
        return replace(without_places(snapshot), aggregations=results)

    settings["returns"] = "exits"  # what a function ends in is known, and has handlers of its own
    plan = measuring.Plan(specs=(), arm=arm, render=_render, seen=seen, always={"locks": []}, **settings)
    return measuring.measure(target, plan)


def _of_the_kernel(settings: "dict[str, Any]") -> "Plan":
    """Return the plan for the kernel's own locks."""
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets
    from anyprobe.probes.waiting.kernel_locks import place_kernel_locks, told
    from anyprobe.reports.waiting import without_places
    from anyprobe.target.kernel import symbols

    def arm(session: "Measured", specs: "Sequence[AnySpec]") -> None:  # noqa: ARG001
        place_kernel_locks(targets.in_the_kernel(session))

    def seen(snapshot: "Snapshot") -> "Snapshot":
        results = tuple(told(each, symbols.running()) for each in snapshot.aggregations)
        return replace(without_places(snapshot), aggregations=results)

    return measuring.Plan(specs=(), arm=arm, render=_render, seen=seen, always={"locks": []}, **settings)


def renderer(*, by: str | None, tree: bool) -> "Callable[[Snapshot, Console, int], None]":  # noqa: ARG001
    """Return what prints results."""
    return _render


def _render(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print the tables."""
    from anyprobe.reports import waiting

    waiting.print_locks(snapshot, console, top)
