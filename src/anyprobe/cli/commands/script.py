"""``anyprobe script``."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli import helping, options

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.snapshot import Snapshot


@click.command("script", cls=helping.Command, starts=True)
@click.argument("file", metavar="FILE.py", type=click.Path(dir_okay=False, allow_dash=True))
@click.argument("arguments", metavar="[ARGUMENT...]", nargs=-1)
@options.target
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
    **settings: Any,  # noqa: ANN401
) -> int:
    """Run handlers from a Python file in running processes, or in a command after --.

    The file gets its session by 'from anyprobe import session', and its ARGUMENTs in sys.argv. With several processes
    it is run once for each, and what they counted under the same name is added up.

    \b
    anyprobe script sizes.py -p 4242 --for 5
    anyprobe script sizes.py --json -- ls -l
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli import measuring, records, scripts, targets

    script = scripts.load(file, arguments)
    target = targets.choose(pids, names, program)
    shown: records.Records = records.KeptRecords() if settings["as_json"] else records.TextRecords()
    with ExitStack() as stack:
        plan = measuring.Plan(
            specs=(),
            arm=lambda session, _: script.run(stack, targets.on_process(session, "handlers")),
            render=_render,
            records=shown,
            always={"aggregations": {}},
            maps=True,
            **settings,
        )
        return measuring.measure(target, plan)


def _render(snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print what aggregations hold, and what else the script has asked for."""
    from anyprobe.reports import aggregations

    aggregations.print_aggregations(snapshot, console, top)
