"""``anyprobe hist``."""

from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from anyprobe.data.snapshots.snapshot import Snapshot


@click.command("hist", cls=helping.Command, starts=True)
@options.specs
@click.option("--of", metavar="EXPR", help="The value: arg0, retval, latency_ns, arg2 - arg1, ...")
@click.option("--by", metavar="EXPR,...", help="A key: tid, cstr(arg0, 64), (arg1 & 3, cpu), ...")
@click.option(
    "--as",
    "kind",
    default=None,
    metavar="KIND",
    help="hist (the default), quantize, lquantize:LOW:HIGH:STEP, sum, min, max, avg, stddev, or count, without --of.",
)
@click.option("--capacity", type=options.Whole(1), metavar="N", help="Keys that there is room for.")
@options.when
@options.pending
@options.processes
@options.hosts
@options.measuring
@options.heat
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    of: str | None,
    by: str | None,
    kind: str | None,
    capacity: int | None,
    when: str | None,
    heat: bool,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Show how a value is distributed, for each key: parameters, results, latencies, whatever a handler can compute.

    EXPR is in the language of handlers. arg0, arg1, ... are parameters as whole numbers without a sign (i32(arg0) is an
    int), retval is what was returned, latency_ns how long that took.

    \b
    anyprobe hist libc:malloc --of arg0 -p 4242 --for 5
    anyprobe hist libc:read --of latency_ns --by 'i32(arg0)' -p 4242
    anyprobe hist 'libc:open*' --by 'cstr(arg0, 64)' --as count -- ls -l
    anyprobe hist kernel::vfs_read --of count --by comm --for 5
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.handlers import aggregating, expressions
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets

    kind, numbers = aggregating.kind_of(kind or ("count" if of is None and by else "hist"), has_value=of is not None)
    counting = aggregating.Counting(
        kind,
        None if of is None else expressions.parse_one("--of", of),
        () if by is None else expressions.parse_all("--by", by),
        numbers,
        capacity,
        None if when is None else expressions.parse_one("--when", when),
    )
    stacked = settings["format"] is not None and counting.is_stacked
    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    targets.check_pending(target, settings["pending"])
    render = _render
    if heat:
        from anyprobe.cli.measurement import heating

        heating.refuse(every=settings["every"], form=settings["format"])
        render = heating.Heated(_render)
    plan = measuring.Plan(
        specs=target.read(specs),
        arm=counting.arm,
        seen=counting.seen,
        render=render,
        always={"aggregations": {}},
        stacked=stacked,
        **settings,
    )
    return measuring.measure(target, plan)


def renderer(*, by: str | None, tree: bool) -> "Callable[[Snapshot, Console, int], None]":  # noqa: ARG001
    """Return what prints results."""
    return _render


def _render(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print what was counted."""
    from anyprobe.reports import aggregations

    aggregations.print_aggregations(snapshot, console, top)
