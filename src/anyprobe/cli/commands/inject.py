"""``anyprobe inject``."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


class _Number(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    name = "whole number of 64 bits"

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> int:
        try:
            number = int(value, 0)
        except ValueError:
            self.fail(f"{value!r} is no whole number", parameter, context)
        if not -(1 << 63) <= number < 1 << 64:
            self.fail(f"{value} does not fit 64 bits", parameter, context)
        return number


@click.command("inject", cls=helping.Command, starts=True)
@options.optional_specs
@click.option("--return", "returned", type=_Number(), metavar="V", help="What the call returns; it does not run.")
@click.option("--errno", "error", metavar="E", help="The errno that it leaves: ENOMEM, or a number.")
@click.option(
    "--delay",
    type=options.Seconds(min=0, max=3600, min_open=True),
    metavar="SECONDS",
    help="How long the thread waits before the call returns, or, without --return, runs.",
)
@click.option("--every", "every_nth", type=options.Whole(1), metavar="N", help="Every N-th call. Default: every call.")
@click.option("--nth", type=options.Whole(1), metavar="N", help="The N-th call alone.")
@click.option("--probability", type=click.FloatRange(0, 1), metavar="P", help="A share P of the calls, 0 to 1.")
@click.option("--seed", type=options.Whole(0), default=0, metavar="S", help="Which calls these are. Default: 0.")
@click.option("--stack", "within", metavar="SPEC", help="Only calls with such a function on the stack.")
@click.option("--replay", "report", type=click.Path(dir_okay=False), metavar="REPORT",
              help="The faults that an earlier command has listed with --json -o REPORT, and no others.")  # fmt: skip
@click.option("--sites", "lists", is_flag=True, help="Inject nothing: list the call sites, and their first calls.")
@click.option("--explore", "explores", is_flag=True,
              help="Of a command after --: have the first call of each call site fail, one run each.")  # fmt: skip
@click.option("--frames", type=options.Whole(1, 8), default=1, show_default=True, metavar="N",
              help="Callers by which call sites differ, of --sites and --explore.")  # fmt: skip
@options.when
@options.pending
@options.processes
@options.injecting
@options.unsafe
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    returned: int | None,
    error: str | None,
    delay: float | None,
    every_nth: int | None,
    nth: int | None,
    probability: float | None,
    seed: int,
    within: str | None,
    report: str | None,
    lists: bool,
    explores: bool,
    frames: int,
    when: str | None,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Have calls of functions fail: they return V at once and leave errno E. Each is listed. Needs --unsafe.

    Calls are numbered by function and process, from 1, once the probes are placed; with --when, those for which it
    holds. The same numbers and seed mean the same calls each time.

    \b
    anyprobe inject --unsafe libc:malloc --return 0 --errno ENOMEM --nth 100 -- ./program
    anyprobe inject --unsafe libc:write --return -1 --errno ENOSPC --when 'arg0 > 2' -p 4242
    anyprobe inject --unsafe libc:connect --delay 0.2 --probability 0.1 --seed 7 -p 4242
    anyprobe inject --unsafe libc:malloc --return 0 --errno ENOMEM --explore -- ./program
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.changing import injecting
    from anyprobe.cli.handlers import expressions
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets

    if not settings["unsafe"]:
        raise click.UsageError("inject changes what the program computes; --unsafe says that this is wanted")
    said = {"--return": returned, "--errno": error, "--delay": delay}
    choice = injecting.Choice(every_nth, nth, probability, seed)
    replay = None
    if report is not None:
        injecting.refuse_besides("--replay", {**said, "--sites": lists, "--explore": explores, "SPEC": specs,
                                                 "--when": when, "--stack": within}, choice)  # fmt: skip
        replay = injecting.replay_of(report)
        specs, when, within = tuple(replay.specs), replay.when, replay.stack
    elif not specs:
        raise click.UsageError("Missing argument 'SPEC...'")
    if lists:
        injecting.refuse_besides("--sites", {**said, "--explore": explores}, choice)
    fault = None
    if not lists:
        number = None if error is None else injecting.number_of_errno(error)
        fault = injecting.Fault(returned, number, delay) if replay is None else replay.fault
    if explores:
        injecting.refuse_besides("--explore", {"-p": pids, "-n": names}, choice)
        from anyprobe.cli.changing import exploring

        options_given = {"--return": returned, "--errno": error, "--delay": delay, "--stack": within, "--when": when}
        return exploring.explore(specs, options_given, frames, program, settings)
    condition = None if when is None else expressions.parse_one("--when", when)
    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    injection = injecting.Injection(
        fault,
        choice,
        condition,
        as_json=settings["format"] == "json",
        within=() if within is None else target.read((within,)),
        replay=replay,
        frames=frames,
    )
    if target.kernel:
        raise click.UsageError("inject changes programs, and not the kernel")
    targets.check_pending(target, settings["pending"])
    plan = measuring.Plan(
        specs=target.read(specs),
        arm=injection.arm,
        render=injection.render,
        records=injection,
        always={"injected": [], "injections": 0, "calls": 0},
        **settings,
    )
    return measuring.measure(target, plan)
