"""``anyprobe trace``."""

from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.snapshots.snapshot import Snapshot


@click.command("trace", cls=helping.Command, starts=True)
@options.specs
@click.option("--print", "printed", metavar="EXPR,...", help="What else to show: cstr(arg0, 64), size=arg2, tid, ...")
@click.option(
    "--args",
    "parameters",
    type=options.Whole(0, 7),
    default=None,
    metavar="N",
    help="Parameters to show. Default: all, and 6 where it is not known how many there are.",
)
@click.option("-c", "--count", "most", type=options.Whole(1), metavar="N", help="End after N hits.")
@options.when
@options.pending
@options.processes
@options.hosts
@options.following
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    printed: str | None,
    parameters: int | None,
    most: int | None,
    when: str | None,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Print a line for each hit: time, thread, place, parameters or what was returned, and what --print asks for.

    With an expression that needs both (retval, latency_ns and parameters) there is one line for each call, at its
    return. With --json each line is a document; ts_ns is the kernel's monotonic clock.

    \b
    anyprobe trace libc:open --print 'cstr(arg0, 64), flags=arg1' -p 4242
    anyprobe trace libc:read --print 'i32(arg0), retval, latency_ns' -- cat FILE
    anyprobe trace libc:malloc%return -p 4242 --json
    anyprobe trace -f libc:open --print 'cstr(arg0, 64)' -n nginx
    anyprobe trace syscall::openat --print 'cstr(filename, 64), retval' -c 20
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.events import tracing
    from anyprobe.cli.handlers import expressions
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets

    wanted = () if printed is None else expressions.parse_all("--print", printed)
    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    targets.check_pending(target, settings["pending"])
    trace = tracing.Trace(wanted, parameters, settings["format"] == "json", len(target.pids) > 1 or target.new, most)
    trace.quiet = settings["quiet"]
    trace.when = None if when is None else expressions.parse_one("--when", when)
    plan = measuring.Plan(
        specs=target.read(specs),
        arm=trace.arm,
        render=_render,
        records=trace,
        lines=True,
        **settings,
    )
    return measuring.measure(target, plan)


def _render(snapshot: "Snapshot", console: "Console", top: int) -> None:  # noqa: ARG001 - the signature of reports
    """Print what could not be traced, and what handlers could not do."""
    from dataclasses import replace

    from anyprobe.reports import heading, losses

    losses.print_losses(replace(snapshot, dropped={}), console)  # which the trace itself has told
    losses.print_unhandled(snapshot, console)
    heading.print_deaths((snapshot.target, *snapshot.others), console)
    heading.print_refusals(snapshot, console)
