"""``anyprobe optimise``: have what runs most lie together, if that makes the program faster."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


@click.command("optimise", cls=helping.Command, starts=True)
@options.specs
@click.option("--measure", metavar="SPEC", help="The function whose calls are timed. Default: one of these, chosen.")
@click.option(
    "--watch", type=options.Seconds(min=0.05), default=1.0, show_default=True, metavar="SECONDS",
    help="For how long it is counted which functions run, and then which blocks.",
)  # fmt: skip
@click.option(
    "--turns",
    type=options.Whole(2),
    default=6,
    show_default=True,
    metavar="N",
    help="How often both ways are compared.",
)
@click.option(
    "--turn", type=options.Seconds(min=0.05), default=0.5, show_default=True, metavar="SECONDS",
    help="For how long each time.",
)  # fmt: skip
@click.option(
    "--specialise",
    is_flag=True,
    help="Make functions anew for values that their parameters mostly have, instead of having them lie side by side.",
)
@options.target
@options.injecting
@options.unsafe
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    measure: str | None,
    watch: float,
    turns: int,
    turn: float,
    specialise: bool,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Have functions that run most lie side by side, without what does not run of them, if that is faster. --unsafe.

    By exact counts, while the program runs; callers lead to the copies. Both ways are compared by turns, by processor
    time. What is faster stays until this command ends, then everything is as it was.

    \b
    anyprobe optimise --unsafe 'a.out:*' -p 4242
    anyprobe optimise --unsafe 'a.out:*' --measure a.out:handle_request -p 4242
    anyprobe optimise --unsafe --specialise 'libz:*' -p 4242
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.changing import optimising
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets

    if not settings["unsafe"]:
        raise click.UsageError("optimise has functions run elsewhere; --unsafe says that this is wanted")
    target = targets.choose(pids, names, program, specs)
    if target.kernel:
        raise click.UsageError("optimise is for programs, and not for the kernel")
    if len(target.pids) > 1:
        raise click.UsageError("one process at a time is optimised")
    wanted = optimising.Optimising(
        measure, watch, turns, turn, specialise, ends=not target.program, quiet=settings["quiet"]
    )
    if target.program and settings["at_end"] is None:
        settings["at_end"] = "leave"
    plan = measuring.Plan(
        specs=target.read(specs),
        arm=wanted.arm,
        render=wanted.render,
        records=wanted,
        seen=optimising.without_sites,
        always=wanted.document(),
        follow=False,
        **settings,
    )
    return measuring.measure(target, plan)
