"""``anyprobe watch``."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


@click.command("watch", cls=helping.Command, starts=True)
@click.argument("places", metavar="ADDRESS|VARIABLE[:LENGTH]...", nargs=-1, required=True)
@click.option("--read", "reads", is_flag=True, help="Reads, too.")
@click.option("--stores", is_flag=True, help="Any number of bytes, by a test before each store of a module.")
@click.option("--heap", is_flag=True, help="Who writes right before and after an allocation; by --stores.")
@click.option(
    "--module", "modules", multiple=True, metavar="NAME", help="Whose stores are tested; the program's if not given."
)
@click.option("-c", "--count", "most", type=options.Whole(1), metavar="N", help="End after N.")
@click.option(
    "--stack",
    "stack_bytes",
    type=options.Whole(256, 65528),
    default=2048,
    show_default=True,
    metavar="BYTES",
    help="How much of a thread's stack is copied each time; what calls from beyond that is not known.",
)
@options.target
@options.watching
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    places: tuple[str, ...],
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Show who writes to some memory: instruction, source line, stack, and the value before and after.

    By the processor's debug registers, four at most, each for 1, 2, 4 or 8 aligned bytes. Nothing is stopped or written
    into the program; threads and processes that it makes later are watched, too. With --stores up to eight ranges of
    any size, in one process, by probes before all stores of the program and of the C library's copies.

    \b
    anyprobe watch a.out:counter -p 4242
    anyprobe watch 0x7ffd1f3a90b0:4 --read -c 10 -p 4242
    anyprobe watch flags state -- ./program
    anyprobe watch table:65536 --stores -p 4242
    anyprobe watch --heap 0x55d0c8a012b0:24 -p 4242
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.events import watching
    from anyprobe.cli.programs import targets

    target = targets.choose(pids, names, program)
    return watching.watch(target, watching.Plan(texts=places, **settings))
