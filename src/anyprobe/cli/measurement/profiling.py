"""The life of ``profile``: sample, wait, show."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

import click

from anyprobe.cli import ExitStatus
from anyprobe.cli.programs import targets
from anyprobe.cli.programs.looking import looked_at
from anyprobe.cli.terminal import output
from anyprobe.cli.terminal.interrupts import Interrupts
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.probes.profiling.profiler import Profiler

if TYPE_CHECKING:
    from anyprobe.data.archives.runs import Run
    from anyprobe.data.snapshots.profile import Profile

MOMENT = 2.0
"""For how long processes are sampled whose hot functions are timed then."""
SECONDS = 5.0
"""For how long a running process is sampled if nothing else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The command line, read."""

    seconds: float | None
    hz: int
    by: str | None
    tree: bool
    python: bool = False
    off: bool = False
    lines: bool = False
    stack_bytes: int | None
    format: str | None
    output: str | None
    quiet: bool
    top: int
    full_names: bool
    at_end: str | None
    exit_status: bool


def hot_specs(target: targets.Target, most: int, *, quiet: bool) -> tuple[str, ...]:
    """Sample running processes for a moment, and return specs of the functions that are hot in them."""
    from anyprobe.probes.profiling.next_command import hot_specs as hot_in

    if target.program:
        raise click.UsageError("--hot is about running processes: a command has done nothing yet when it is started")
    with output.progress("sampling", quiet=quiet), Interrupts() as interrupts, ExitStack() as stack:
        profiler = stack.enter_context(Profiler(target.pids))
        ends = targets.end_descriptors(stack, target.pids)
        _wait(profiler, ends, interrupts, profiler.began + MOMENT)
        found = profiler.result()
    specs: list[str] = []
    for pid in target.pids:
        own = hot_in([each for each in found.stacks if each.pid == pid], most, enough=1.0)
        specs += own if len(target.pids) == 1 else [f"pid{pid}:{spec}:entry" for spec in own]
    if not specs:
        raise UnsupportedTarget(f"--hot: nothing is hot, no sample in {MOMENT:g} s is of a function that can be probed")
    return tuple(specs)


def profile(target: targets.Target, plan: Plan) -> int:
    """Sample, show what was found, and return the exit status."""
    targets.refuse_end(target, plan.at_end)
    with (
        ExitStack() as stack,
        output.results(plan.output, program_owns_output=target.owns_standard_output) as stream,
        Interrupts() as interrupts,
    ):
        looked = looked_at(stack, target, interrupts, plan.at_end)
        started, ends = looked.started, looked.ends
        profiler = stack.enter_context(
            Profiler(looked.pids, hz=plan.hz, by=plan.by, stack_bytes=plan.stack_bytes, off=plan.off)
        )
        if started is not None:
            started.resume()
        seconds = SECONDS if plan.seconds is None and started is None else plan.seconds
        _wait(profiler, ends, interrupts, None if seconds is None else profiler.began + seconds)
        profiler.end()
        own_end = bool(ends) and not interrupts.requested
        found = profiler.result(target.program, lines=plan.lines)
        found = found.of_python() if plan.python else found
        status = looked.settle(plan.at_end, own_end=own_end, quiet=plan.quiet)
        if started is not None:
            found = replace(found, targets=(replace(found.targets[0], exited=started.target_info.exited),))
        show(found, plan, stream)
        if plan.exit_status and status is not None:
            return status
        return ExitStatus.INTERRUPTED if interrupts.by_user else ExitStatus.DONE


def _wait(profiler: Profiler, ends: dict[int, int], interrupts: Interrupts, deadline: float | None) -> None:
    """Take samples until the time is over, a signal comes, or all processes have ended."""
    while ends and not interrupts.requested:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return
        timeout = profiler.interval if left is None else min(left, profiler.interval)
        for ended in interrupts.wait(ends, timeout):
            del ends[ended]
        profiler.look()


def show(found: "Profile", plan: Plan, stream: TextIO, run: "Run | None" = None) -> None:
    """Write the results, as a table or for other tools; ``run``: what else is known of results that are shown again."""
    if plan.format is None and not plan.full_names:
        from anyprobe.reports.names import with_short_frames

        found = with_short_frames(found)
    found = found.with_lines()
    if not plan.quiet and plan.format != "json":
        for warning in found.warnings:
            output.warn(warning)
    if plan.format == "json":
        output.write_json(found.as_json(), stream)
    elif plan.format is not None:
        from anyprobe.exporters.base import exporter_of
        from anyprobe.exporters.profiles import counted_of, measurement_of, what_of

        if plan.format == "archive" and run is None:
            from anyprobe.cli.measurement import keeping

            run = keeping.new_run(what=what_of(found), counted=counted_of(found))
        exporter_of(plan.format).write(measurement_of(found, run), stream)
    else:
        from anyprobe.reports import profile as report

        print_it = report.print_profile_tree if plan.tree else report.print_profile
        print_it(found, output.console(stream), plan.top)
    stream.flush()
