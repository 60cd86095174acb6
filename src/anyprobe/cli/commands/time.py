"""``anyprobe time``."""

from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from anyprobe.data.snapshots.snapshot import Snapshot


_CALLER = "func(caller)"


@click.command("time", cls=helping.Command, starts=True)
@options.optional_specs
@options.hot
@options.when
@options.pending
@options.processes
@options.hosts
@options.measuring
@options.heat
@options.clock
@options.timed_by
@click.option(
    "--self",
    "self_time",
    is_flag=True,
    help="Show self times, too: without what other functions take that are timed. Recursion counts once in the total.",
)
@click.option(
    "--cpu",
    is_flag=True,
    help="Show how much of the time calls were on a processor, and how much not: asleep, or waiting for one. With "
    "--self, --tree or --by this is --clock cpu, and what functions had off processors besides.",
)
@options.tree
@options.raw
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    hot: int | None,
    when: str | None,
    cpu: bool,
    pending: bool | None,
    heat: bool,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Measure how long functions take: count, percentiles, histogram.

    \b
    anyprobe time libc:malloc -p 4242 --for 5
    anyprobe time 'libz:*flate' -- gzip -k FILE
    anyprobe time --self 'a.out:*' -p 4242 --for 5
    anyprobe time --tree 'a.out:*' -- ./program
    anyprobe time --cpu standard_ExecutorRun -p 4242 --for 5
    anyprobe time --hot 5 -p 4242 --for 5
    anyprobe time libc:write --when 'arg2 > 4096' -p 4242
    anyprobe time kernel::vfs_fsync_range --for 10
    anyprobe time standard_ExecutorRun --by pid -p 4242
    anyprobe time --self 'a.out:*' --by tid -p 4242 --every 1
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.handlers import conditional
    from anyprobe.cli.measurement import cpu_times, measuring
    from anyprobe.cli.programs import targets

    if hot is not None:
        from anyprobe.cli.measurement import profiling

        target = targets.choose(pids, names, program)
        specs = (*specs, *profiling.hot_specs(target, hot, quiet=settings["quiet"]))
        settings["self_time"] |= when is None
    elif not specs:
        raise click.MissingParameter(ctx=click.get_current_context(), param_hint="'SPEC...'", param_type="argument")
    if settings["format"] is not None:
        from anyprobe.exporters.base import Needs, exporter_of

        settings["tree"] |= exporter_of(settings["format"]).needs is Needs.TREE
    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    if when is not None:
        if settings["self_time"] or settings["tree"] or settings["by"] == _CALLER:
            raise click.UsageError("--self and --tree are about all calls of a function; --when times some of them")
        if settings["by"] is not None:
            what = "threads" if settings["by"] == "tid" else "processes"
            raise click.UsageError(f"--when times calls by handlers, which do not tell {what} apart as --by does")
        targets.check_pending(target, pending)
    if cpu:
        if when is not None:
            raise click.UsageError("--cpu is of all calls of a function, without --when")
        if settings["self_time"] or settings["tree"] or settings["by"] is not None:  # which handlers do not know
            if settings["clock"] not in {None, "auto", "cpu"}:
                raise click.UsageError(f"--cpu with --self, --tree and --by is --clock cpu, not {settings['clock']}")
            settings |= {"clock": "cpu", "self_time": True}
            cpu = False
        else:
            targets.check_pending(target, pending)
    render = renderer(by=settings["by"], tree=settings["tree"])
    if settings["by"] == _CALLER:
        settings |= {"by": None, "tree": True}
    if heat:
        from anyprobe.cli.measurement import heating

        heating.refuse(every=settings["every"], form=settings["format"])
        render = heating.Heated(render)
    only: conditional.Times | cpu_times.CpuTimes
    only = cpu_times.CpuTimes() if cpu else conditional.Times.of(when, pending=pending)
    plan = measuring.Plan(
        specs=target.read(specs),
        arm=only.arm,
        seen=only.seen,
        render=render,
        always={"functions": []},
        pending=pending,
        **settings,
    )
    return measuring.measure(target, plan)


def renderer(*, by: str | None, tree: bool) -> "Callable[[Snapshot, Console, int], None]":
    """Return what prints results: of processes, threads or callers that are told apart, or of all together."""
    if by == _CALLER:
        return _by_caller_and_tree if tree else _by_caller
    return {"pid": _by_pid, "tid": _by_tid}.get(by or "", _tree if tree else _render)


def _render(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print the table; what draws it is imported when the probes have long been armed."""
    from anyprobe.reports import histogram

    histogram.print_timings(snapshot, console, top)


def _by_pid(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print the table with a row for each process and function, and the tree of each where there is one."""
    from anyprobe.reports import processes

    processes.print_timings_by_process(snapshot, console, top)
    processes.print_trees(snapshot, console, top)


def _by_tid(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print the table with a row for each thread and function, and the tree of all of them where there is one."""
    from anyprobe.reports import calltree, threads

    threads.print_timings_by_thread(snapshot, console, top)
    if snapshot.tree:
        calltree.print_branches(snapshot, console, top)


def _tree(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print the tree of calls."""
    from anyprobe.reports import calltree

    calltree.print_tree(snapshot, console, top)


def _by_caller(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print who has called each function."""
    from anyprobe.reports import calltree

    calltree.print_by_caller(snapshot, console, top)


def _by_caller_and_tree(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print who has called each function, and the tree of calls."""
    from anyprobe.reports import calltree

    calltree.print_by_caller(snapshot, console, top)
    calltree.print_branches(snapshot, console, top)
