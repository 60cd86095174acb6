"""``anyprobe top``."""

import shlex
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping, options
from anyprobe.core.errors import UnsupportedTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from anyprobe.cli.programs.targets import Target
    from anyprobe.data.snapshots.snapshot import Snapshot

HOT = 30
"""So many hot functions are shown where none is named."""


@click.command("top", cls=helping.Command, starts=True)
@options.optional_specs
@click.option(
    "--every",
    type=options.Seconds(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often the screen is drawn anew, with what was counted since the last time.",
)
@options.pending
@options.processes
@options.recording
@click.pass_obj
def command(
    program: tuple[str, ...], /, specs: tuple[str, ...], pids: Any, names: Any, every: float, output: str | None,  # noqa: ANN401
    **settings: Any,  # noqa: ANN401
) -> int:  # fmt: skip
    """Show on a screen which functions are called how often and how long they take, as it happens.

    Without SPEC of a running process: the functions that two seconds of samples show to be hot; of a command all of
    its own (a.out:*). Keys: letters sort, / filters, Enter shows callers and callees, a disarms and arms, f freezes,
    w saves an archive, q leaves.

    \b
    anyprobe top -p 4242
    anyprobe top 'a.out:*' libc:malloc -p 4242
    anyprobe top 'libssl:*' -n nginx -o run.aprobe
    anyprobe top -- ./program
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.programs import targets
    from anyprobe.cli.top import session

    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    instead = ["anyprobe", "time", "--self", "--every", f"{every:g}", *(specs or ("--hot", str(HOT)))]
    session.require_terminal(shlex.join([*instead, *(f"-p {pid}" for pid in target.pids)]))
    if target.kernel:
        raise click.UsageError("top is of functions in programs; of the kernel: anyprobe time --every 1 SPEC")
    top = session.top(every)
    if not specs:
        specs = ("a.out:*",) if program else _hot(target, quiet=settings["quiet"])
    plan = measuring.Plan(
        specs=target.read(specs),
        arm=session.arm,
        render=renderer(by=None, tree=False),
        every=every,
        output=output,
        format="archive" if (output or "").endswith(helping.ARCHIVES) else None,
        self_time=True,
        tree=True,
        spaced=False,
        full_names=False,
        front=top,
        **settings,
    )
    return measuring.measure(target, plan)


def _hot(target: "Target", *, quiet: bool) -> tuple[str, ...]:
    """Return specs of what is hot; complain where that is nothing."""
    from anyprobe.cli.measurement import profiling

    try:
        return profiling.hot_specs(target, HOT, quiet=quiet)
    except UnsupportedTarget as error:
        why = str(error).removeprefix("--hot: ")
        raise UnsupportedTarget(f"{why}; name functions, too: anyprobe top 'a.out:*' ...") from None


def renderer(*, by: str | None, tree: bool) -> "Callable[[Snapshot, Console, int], None]":
    """Return what prints results that were kept: as ``time`` does."""
    from anyprobe.cli.commands import time

    return time.renderer(by=by, tree=tree)
