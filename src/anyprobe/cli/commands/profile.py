"""``anyprobe profile``."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


@click.command("profile", cls=helping.Command, starts=True)
@options.target
@options.hosts
@click.option(
    "--hz",
    type=options.Whole(1, 10_000),
    default=99,
    show_default=True,
    metavar="N",
    help="Samples in each second that a thread is on a processor.",
)
@click.option("--by", type=click.Choice(["pid", "tid", "comm"]), help="Tell processes, threads, or their names apart.")
@click.option("--tree", is_flag=True, help="Show which functions called which, by the stacks, as a tree.")
@click.option(
    "--python", is_flag=True, help="Show Python's functions alone, with the time of what they have called in C."
)
@click.option(
    "--off",
    is_flag=True,
    help="Show where threads are off processors, each time whole: asleep, or waiting for one. Root, or "
    "kernel.perf_event_paranoid 1.",
)
@options.lines
@click.option(
    "--stack",
    "stack_bytes",
    type=options.Whole(256, 65528),
    metavar="BYTES",
    help="How much of a thread's stack a sample has; what calls from beyond that is not known. Default: 65528; 16384 "
    "where little memory can be locked.",
)
@options.profiling
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Show where the time goes, by samples of what threads do: no probe is placed, and nothing is stopped.

    The last line is the command that probes what is hot. Threads and processes that are made later are sampled, too.

    \b
    anyprobe profile -p 4242
    anyprobe profile -n postgres --by pid --for 10
    anyprobe profile --tree -- ./program
    anyprobe profile --python -- python3 app.py
    anyprobe profile --off --python -p 4242
    anyprobe profile --format folded -o stacks -p 4242
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.measurement import profiling
    from anyprobe.cli.programs import targets

    target = targets.choose(pids, names, program)
    return profiling.profile(target, profiling.Plan(**settings))
