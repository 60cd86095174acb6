"""``anyprobe script``."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from anyprobe.data.snapshots.snapshot import Snapshot


@click.command("script", cls=helping.Command, starts=True)
@click.argument("file", metavar="FILE.py", type=click.Path(dir_okay=False, allow_dash=True))
@click.argument("arguments", metavar="[ARGUMENT...]", nargs=-1)
@options.pending
@options.follow
@options.children
@options.by
@options.target
@options.appearing
@click.option(
    "--kernel",
    "in_kernel",
    is_flag=True,
    help="The session is on the running kernel: on all processes, or those of -p and -n.",
)
@options.measuring
@options.unsafe
@click.pass_obj
def command(
    program: tuple[str, ...],
    /,
    file: str,
    arguments: tuple[str, ...],
    pids: Any,  # noqa: ANN401
    names: Any,  # noqa: ANN401
    in_kernel: bool,
    **settings: Any,  # noqa: ANN401
) -> int:
    """Run handlers from a Python file in running processes, in a command after --, or in the kernel.

    The file gets its session by 'from anyprobe import session', and its ARGUMENTs in sys.argv. With several processes,
    and for each program that is followed, it is run once more, and what they counted under the same name is added up.

    \b
    anyprobe script sizes.py -p 4242 --for 5
    anyprobe script sizes.py --json -- ls -l
    anyprobe script opens.py --kernel --for 10
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.handlers import records, scripts
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets

    script = scripts.load(file, arguments)
    selected = targets.selected(settings)
    target = targets.choose_session(pids, names, program, in_kernel=in_kernel, **selected)
    targets.check_pending(target, settings["pending"])
    shown: records.Records = (
        records.KeptRecords() if settings["format"] in {"json", "archive"} else records.TextRecords()
    )
    with ExitStack() as stack:
        plan = measuring.Plan(
            specs=(),
            arm=lambda session, _: script.run(stack, session),
            render=_render,
            records=shown,
            always={"aggregations": {}},
            maps=True,
            **settings,
        )
        return measuring.measure(target, plan)


def renderer(*, by: str | None, tree: bool) -> "Callable[[Snapshot, Console, int], None]":  # noqa: ARG001
    """Return what prints results."""
    return _render


def _render(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print what aggregations hold, and what else the script has asked for."""
    from anyprobe.reports import aggregations

    aggregations.print_aggregations(snapshot, console, top)
