"""``anyprobe offcpu``."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.session import Session


@click.command("offcpu", cls=helping.Command, starts=True)
@options.processes
@options.hosts
@options.measuring
@options.lines
@click.option("--wakers", is_flag=True, help="And who wakes them, by the kernel: root.")
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    *,
    lines: bool,
    wakers: bool,
    **settings: Any,  # noqa: ANN401
) -> int:
    """Show where threads sleep, for how long and what for, by their stacks.

    What is seen are the calls of the C library that may wait: each by the time that its thread was on no processor.

    \b
    anyprobe offcpu -p 4242 --for 5
    anyprobe offcpu --json -n gunicorn --for 5
    anyprobe offcpu -- ./program
    anyprobe offcpu --wakers -p 4242 --for 5
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.measurement.plan import Window
    from anyprobe.cli.programs import targets
    from anyprobe.data.findings.offcpu import Causes, with_causes
    from anyprobe.probes.stacks.lines import FrameLines
    from anyprobe.probes.waiting.offcpu import place_offcpu
    from anyprobe.probes.waiting.window import SleepWindow
    from anyprobe.reports.waiting import without_places

    target = targets.choose(pids, names, program, (), **targets.selected(settings))
    causes: Causes = {}
    windows: dict[int, SleepWindow] = {}
    processes: list[Session] = []
    measured = Window()
    if wakers:
        target = target._replace(kernel=True, of_chosen=False)
        settings["include_self"] = True  # it may wake a thread, too

    def arm(session: "Measured", _: "Sequence[AnySpec]") -> None:
        if session.pid == targets.KERNEL:
            from anyprobe.probes.waiting.wakers import place_wakers

            place_wakers(targets.in_the_kernel(session), processes)
            return
        processes.append(targets.on_process(session))
        if lines:
            processes[-1].host.symbols.lines = FrameLines()
        place_offcpu(processes[-1], causes, windows)

    def seen(snapshot: "Snapshot") -> "Snapshot":
        if (window := windows.get(snapshot.target.pid)) is not None:
            results = window.results(snapshot, measured.opened, measured.closed)
        else:
            results = tuple(with_causes(each, causes) for each in snapshot.aggregations)
        return replace(without_places(snapshot), aggregations=results)

    settings["returns"] = "exits"  # what a function ends in is known, and has handlers of its own
    plan = measuring.Plan(
        specs=(), arm=arm, render=_render, seen=seen, window=measured, always={"stacks": []}, **settings
    )
    return measuring.measure(target, plan)


def renderer(*, by: str | None, tree: bool) -> "Callable[[Snapshot, Console, int], None]":  # noqa: ARG001
    """Return what prints results."""
    return _render


def _render(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print the tables."""
    from anyprobe.reports import waiting

    waiting.print_offcpu(snapshot, console, top)
    waiting.print_wakers(snapshot, console, top)
