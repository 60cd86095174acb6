"""``anyprobe break``."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


@click.command("break", cls=helping.Command, starts=True)
@options.specs
@click.option(
    "--do",
    "what",
    type=click.Choice(["stack", "stop", "core", "gdb", "snapshot", "script"]),
    default="stack",
    show_default=True,
    help="Print the stacks of all threads; stop the program, as a debugger that comes sees it; write a core file; "
    "run gdb on it, here; print registers, memory and stacks; or run a file of Python with the hit.",
)
@click.option(
    "-c",
    "--count",
    "most",
    type=options.Whole(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Do so N times, and end.",
)
@click.option("--after", type=options.Whole(0), default=0, metavar="N", help="Let the first N hits go on.")
@click.option("--core-file", default="core", show_default=True, metavar="FILE", help="Core files are FILE.PID.")
@click.option("--script", "file", type=click.Path(dir_okay=False), metavar="FILE.py", help="What --do script runs.")
@options.when
@options.pending
@options.target
@options.following
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    specs: tuple[str, ...],
    what: str,
    most: int,
    after: int,
    core_file: str,
    file: str | None,
    when: str | None,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Have a thread wait where a condition holds, with its registers and stack as they are, and do something about it.

    It goes on afterwards, and whatever becomes of anyprobe. --when is decided in the program, at each hit.

    \b
    anyprobe break libc:abort --do core -p 4242
    anyprobe break a.out:parse --when 'arg1 > 4096' --do gdb -p 4242
    anyprobe break a.out:work+0x1c --when 'ctx.regs.rax == 0' --after 10 --count 3 -- ./program
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.changing import breaking
    from anyprobe.cli.handlers import expressions, scripts
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets

    if (what == "script") != (file is not None):
        raise click.UsageError("--do script and --script FILE.py belong together")
    condition = None if when is None else expressions.parse_one("--when", when)
    target = targets.choose(pids, names, program, specs)
    if target.kernel:
        raise click.UsageError("break is for programs; the kernel cannot be stopped")
    targets.check_pending(target, settings["pending"])
    wanted = breaking.Breaking(
        breaking.Do(what), most, after, condition, settings["seconds"], core_file, as_json=settings["format"] == "json",
        script=None if file is None else scripts.load(file),
    )  # fmt: skip
    if target.program and settings["at_end"] is None:
        settings["at_end"] = "leave"  # who breaks wants to see what it does next
    plan = measuring.Plan(
        specs=target.read(specs),
        arm=wanted.arm,
        render=wanted.render,
        records=wanted,
        lines=True,
        follow=False,
        **settings,
    )
    return measuring.measure(target, plan)
