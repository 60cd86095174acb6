"""``anyprobe record``."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


@click.command("record", cls=helping.Command, starts=True)
@options.specs
@click.option(
    "--ring",
    "ring_mib",
    type=options.Whole(1, 1024),
    default=16,
    show_default=True,
    metavar="MIB",
    help="Memory of each thread for events that are not in the file yet.",
)
@click.option(
    "--last", type=options.Time(), metavar="TIME", help="Keep the last seconds only, in memory until the end."
)
@click.option(
    "--dump-when",
    metavar="EXPR",
    help="With --last: also write what there is to RUN-1.aprobe, RUN-2.aprobe ... after a call that was so slow: "
    "'latency_ns > 50_000_000'. The signal USR1 does so, too.",
)
@click.option(
    "--with",
    "values",
    metavar="EXPR,...",
    help="Keep values with each call: 'size=arg0, cstr(arg1, 32), retval'.",
)
@options.pending
@options.processes
@options.hosts
@options.recording
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    ring_mib: int,
    last: float | None,
    dump_when: str | None,
    values: str | None,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Record when each call of functions begins and ends, on all threads, in an archive.

    What comes faster than it can be kept is lost, and counted. See what was recorded by 'anyprobe replay'. What is no
    function of a program, as a marker or a tracepoint, is recorded as an instant with its arguments.

    \b
    anyprobe record 'a.out:*' -o run.aprobe -- ./program
    anyprobe record 'libssl:*' libc:read -p 4242 --for 10 -o run.aprobe
    anyprobe record a.out:f 'usdt:*' --with 'size=arg0, retval' -o run.aprobe -- ./program
    anyprobe record 'a.out:*' -p 4242 --last 10s --dump-when 'latency_ns > 50_000_000' -o run.aprobe
    anyprobe replay run.aprobe --slower-than 1ms
    anyprobe replay run.aprobe --format perfetto -o run.pftrace
    """  # noqa: D301 - click's mark for lines that stay as they are
    from contextlib import nullcontext

    from anyprobe.cli.commands import count
    from anyprobe.cli.events import flight, recording
    from anyprobe.cli.events.callvalues import CallValues
    from anyprobe.cli.handlers import expressions
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets

    if not str(settings["output"] or "").endswith(helping.ARCHIVES):
        raise click.UsageError("-o RUN.aprobe: calls are recorded in an archive")
    kept_values = None if values is None else CallValues(expressions.parse_all("--with", values))
    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    targets.check_pending(target, settings["pending"])
    if dump_when is not None and last is None:
        raise click.UsageError("--dump-when writes the last seconds: --last 10s")
    wanted = target.read(specs)
    if kept_values is not None and not recording.has_calls(wanted):
        raise click.UsageError("--with keeps values with calls, and none of these is a function of a program")
    kept = None
    if last is not None:
        slow = None if dump_when is None else flight.least_latency(dump_when)
        kept = flight.Flight(last / 1e9, str(settings["output"]), slow)
    recorder = recording.Recorder(ring_mib << 20, quiet=settings["quiet"], flight=kept, values=kept_values)
    plan = measuring.Plan(
        specs=wanted,
        arm=recorder.arm,
        render=count.renderer(by=None, tree=False),
        records=recorder,
        format="archive",
        **settings,
    )
    with nullcontext() if kept is None else kept.listening():
        status = measuring.measure(target, plan)
    recorder.report(plan.shown)
    return status
