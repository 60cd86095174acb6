"""``anyprobe audit``."""

from typing import Any

import click

from anyprobe.cli.syntax import helping, options


@click.command("audit", cls=helping.Command, starts=True)
@click.argument("rules", metavar="RULES.py")
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The file; lines are appended to one that is there.",
)
@click.option("--kernel", "in_kernel", is_flag=True, help="By the kernel, as root: programs cannot deceive it.")
@click.option("--head", metavar="HASH", help="Of verify: the file must have the line with this hash.")
@options.processes
@options.auditing
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    rules: str,
    file: str | None,
    path: str | None,
    head: str | None,
    in_kernel: bool,
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:
    """Keep a file of what programs ask the kernel for, by rules: opens, programs, credentials, connections.

    Each line has the hash of the one before, so that 'audit verify' finds lines that were changed, left out or moved.
    RULES.py is a file with a list RULES, or kerninst: rules that come along.

    \b
    anyprobe audit kerninst -o run.audit -- ./program
    anyprobe audit rules.py --follow -o server.audit -p 4242
    sudo anyprobe audit rules.py --kernel -o server.audit -p 4242
    anyprobe audit verify run.audit
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.events import auditing
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets
    from anyprobe.cli.terminal import output

    selected = targets.selected(settings)
    if rules == "verify":
        if file is None or program or pids or names or path:
            raise click.UsageError("anyprobe audit verify FILE: it is of one file, and of no program")
        return auditing.check(file, head)
    if file is not None or head is not None:
        raise click.UsageError(f"{'--head' if head else file}: only of anyprobe audit verify FILE")
    if path is None:
        raise click.UsageError("-o FILE says where the lines are kept")
    loaded = auditing.load(rules)
    if in_kernel and settings.get("follow") and not program:
        raise click.UsageError("--follow: by the kernel the processes of -p and -n are audited, not what they start")
    if in_kernel and not (program or pids or names):
        raise click.UsageError("choose a target: -p PID, -n NAME, or a command after --")
    specs = [f"syscall::{each.call}:entry" for each in loaded.rules] if in_kernel else []
    target = targets.choose(pids, names, program, specs, **selected)._replace(of_chosen=in_kernel or None)
    audit = auditing.Audit(loaded, path, program)
    audit.begin()
    plan = measuring.Plan(
        specs=(),
        arm=audit.arm,
        render=audit.render,
        records=audit,
        lines=True,
        **settings,
    )
    why = "failed"
    try:
        status = measuring.measure(target, plan)
        why = "done" if status != 130 else "interrupted"
    finally:
        audit.end(why)
    if not plan.quiet:
        output.warn(f"the last line of {path} has the hash {audit.last_hash}")
    return status
