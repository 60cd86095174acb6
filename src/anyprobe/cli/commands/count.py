"""``anyprobe count``."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from anyprobe.data.snapshots.snapshot import Snapshot


@click.command("count", cls=helping.Command, starts=True)
@options.specs
@options.when
@options.pending
@options.follow
@options.children
@options.by
@options.target
@options.appearing
@options.hosts
@options.measuring
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    when: str | None,
    pending: bool | None,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Count the hits of probes in running processes, in a command after --, or in the kernel.

    \b
    anyprobe count 'libc:*' -p 4242 --for 5
    anyprobe count libc:malloc libc:free -- ls -l
    anyprobe count 'a.out:*%return' -n redis-server --json
    anyprobe count libc:read --when 'retval < 0' -p 4242 --for 5
    anyprobe count libc:malloc --by pid --follow -n postgres --for 10
    anyprobe count kernel::vfs_read:return 'tracepoint:sched:*' syscall::openat --for 5
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets

    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    arm: Callable[[targets.Measured, Sequence[targets.AnySpec]], object] = partial(targets.count, pending=pending)
    seen: Callable[[Snapshot], Snapshot] | None = None
    if when is not None:
        from anyprobe.cli.handlers import conditional

        targets.check_pending(target, pending)
        only = conditional.Counts.of(when, pending=pending)
        arm, seen = only.arm, only.seen
    render = renderer(by=settings["by"])
    plan = measuring.Plan(specs=target.read(specs), arm=arm, render=render, seen=seen, pending=pending, **settings)
    return measuring.measure(target, plan)


def renderer(*, by: str | None, tree: bool = False) -> "Callable[[Snapshot, Console, int], None]":  # noqa: ARG001
    """Return what prints results: of processes that are told apart, or of all together."""
    return _by_pid if by else _render


def _by_pid(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print the table of ``--by pid``."""
    from anyprobe.reports import processes

    processes.print_by_process(snapshot, console, top)


def _render(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print the table; what draws it is imported when the probes have long been armed."""
    from anyprobe.reports import table

    table.print_counts(snapshot, console, top)
