"""``anyprobe replace``: have calls of functions go to others."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


@click.command("replace", cls=helping.Command, starts=True)
@options.specs
@click.option(
    "--by", "instead", multiple=True, required=True, metavar="FUNCTION",
    help="What is called instead of a SPEC, in the same order: a function of the program, or of a file, as fix.so:f.",
)  # fmt: skip
@click.option("--when-quiet", is_flag=True, help="Only at a moment when no thread is inside of one of them.")
@click.option(
    "--outside", multiple=True, metavar="SPEC",
    help="Only when no thread is inside of these functions either; repeatable.",
)  # fmt: skip
@click.option(
    "--timeout", type=options.Seconds(min=0), default=5.0, show_default=True, metavar="SECONDS",
    help="For how long such a moment is waited for.",
)  # fmt: skip
@options.target
@options.replacing
@options.unsafe
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    instead: tuple[str, ...],
    when_quiet: bool,
    outside: tuple[str, ...],
    timeout: float,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Have calls of functions go to others, all from one moment on, until this command ends. Needs --unsafe.

    A shared object is loaded by the program's own loader, and stays; of a file in C, one is made. Calls that are
    inside of a function at that moment end in it.

    \b
    anyprobe replace --unsafe a.out:price --by fix.so:price -p 4242
    anyprobe replace --unsafe a.out:in a.out:out --by fix.c:in --by fix.c:out -p 4242
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.changing import replacing
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets

    if not settings["unsafe"]:
        raise click.UsageError("replace changes what the program computes; --unsafe says that this is wanted")
    if len(specs) != len(instead):
        raise click.UsageError(f"each SPEC needs its own --by: there are {len(specs)}, and {len(instead)} of those")
    if program and (when_quiet or outside):
        raise click.UsageError("--when-quiet and --outside are about a program that runs; give -p or -n")
    target = targets.choose(pids, names, program, specs)
    if target.kernel:
        raise click.UsageError("replace is for programs, and not for the kernel")
    wanted = replacing.Replacing(
        replacing.read(instead, target), when_quiet, target.read(outside), timeout, quiet=settings["quiet"]
    )
    plan = measuring.Plan(
        specs=target.read(specs),
        arm=wanted.arm,
        render=wanted.render,
        records=wanted,
        always=wanted.document(),
        follow=False,
        **settings,
    )
    return measuring.measure(target, plan)
