"""``anyprobe metric``."""

from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options
from anyprobe.data.snapshots.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyprobe.cli.programs.targets import AnySpec, Measured

_EVERY = 1.0
"""Seconds of an interval."""


class MetricName(click.Choice[str]):
    """The name of a metric."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401
        """Return the name, if there is such a metric by now."""
        self.choices = tuple(METRICS)
        return super().convert(value, param, ctx)


@click.command("metric", cls=helping.Command, starts=True)
@options.optional_specs
@click.option("--from", "begins", metavar="SPEC", multiple=True, help="Where a region begins; repeatable.")
@click.option("--to", "ends", metavar="SPEC", multiple=True, help="Where it ends; repeatable.")
@click.option(
    "--of", "what", type=MetricName(METRICS), default="concurrency", show_default=True, help="What is measured."
)
@options.when
@click.option("--by", metavar="EXPR,...", help="A series for each: pid, tid, comm, arg0, cstr(arg0, 64), ...")
@options.pending
@options.processes
@options.measuring
@options.clock
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    begins: tuple[str, ...],
    ends: tuple[str, ...],
    when: str | None,
    by: str | None,
    what: str,
    pending: bool | None,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Show over time how many threads are in functions, how many wait there, or how often these are called.

    A number of each function for each interval, calls that are under way included, and a curve of them at the end.

    \b
    anyprobe metric standard_ExecutorRun -p 4242 --for 20
    anyprobe metric --of waiting libc:fsync -p 4242 --every 0.5
    anyprobe metric --of throughput 'a.out:handle*' -p 4242 --json
    anyprobe metric libc:write --by tid --when 'arg2 > 4096' -p 4242
    anyprobe metric --from a.out:begins --to a.out:ends%return -p 4242 -o run.aprobe
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.measurement import cpu_times, measuring
    from anyprobe.cli.measurement.metering import Meter, refuse_format
    from anyprobe.cli.programs import targets

    refuse_format(settings["format"])
    if bool(begins) != bool(ends) or bool(specs) == bool(begins):
        raise click.UsageError("metric is of functions, SPEC..., or of a region, with --from SPEC and --to SPEC")
    specs = specs or (*begins, *ends)
    metric = METRICS[what]
    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    if target.kernel:
        raise click.UsageError("metric is of functions of processes, not of the kernel")
    as_json = settings["format"] == "json"
    if as_json:  # lines, which the meter writes
        settings["format"] = None
    settings["every"] = settings["every"] or _EVERY
    own: dict[str, Any] = {"render": Meter(metric, as_json=as_json), "spaced": not as_json}
    if begins or by is not None or when is not None:
        if metric.arm is not None:
            raise click.UsageError(f"--of {metric} is of all calls of functions, without --by, --when and regions")
        from anyprobe.cli.handlers import expressions
        from anyprobe.cli.measurement.regions import Regions

        targets.check_pending(target, pending)
        regions = Regions(
            metric,
            None if when is None else expressions.parse_one("--when", when),
            () if by is None else expressions.parse_all("--by", by),
            begins,
            ends,
        )
        own |= {"arm": regions.arm, "seen": regions.seen}
    elif metric.needs_cpu_time or metric.arm is not None:
        targets.check_pending(target, pending)
        values = cpu_times.OwnValues(metric) if metric.arm is not None else cpu_times.CpuTimes()
        own |= {"arm": values.arm, "seen": values.seen}
    else:  # by self times it is known which calls of a recursion are the outermost ones
        own |= {"arm": _arm, "self_time": True}
    plan = measuring.Plan(specs=target.read(specs), pending=pending, **own, **settings)
    return measuring.measure(target, plan)


def _arm(session: "Measured", specs: "Sequence[AnySpec]") -> None:
    from anyprobe.cli.programs import targets

    targets.on_process(session).time(*map(targets.process_spec, specs))
