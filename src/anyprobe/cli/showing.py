"""Results that were kept in archives, shown again as the command would have that has measured them."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli import COMMANDS, MODULES, contradictions, heating, measuring, output, profiling
from anyprobe.cli.commands import count
from anyprobe.data.runs import Run, RunInfo, read

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.snapshot import Snapshot

SETTINGS: dict[str, Any] = {
    "seconds": None, "every": None, "strategy": "auto", "maxactive": None, "exit_status": False,
}  # fmt: skip
"""What a plan says that measures nothing."""
PLAIN: dict[str, Any] = {"nonzero": None, "buckets": None, "fold": False, "full_names": True, "top": 0}
"""How results are shown where nothing is said of it."""


def read_all(paths: Sequence[str]) -> list[Run]:
    """Read archives; complain of a file that cannot be read in one line."""
    found = []
    for path in paths:
        try:
            found.append(read(path))
        except OSError as error:
            raise click.FileError(path, error.strerror) from error
    return found


def show(run: Run, settings: dict[str, Any], *, heat: bool = False) -> int:
    """Write the results of a run as its own command would have; ``heat``: heat maps below its table, too."""
    if heat:
        if not run.series:
            raise click.UsageError("--heat is over time, and there are no intervals: --every SECONDS of what measures")
        heating.refuse(every=1.0, form=settings["format"])
    with output.results(settings["output"], program_owns_output=False) as stream:
        if run.profile is not None:
            names = ("format", "output", "quiet", "top", "full_names")
            parts = {name: settings[name] for name in names}
            idle: dict[str, Any] = {"seconds": None, "stack_bytes": None, "at_end": None, "exit_status": False}
            plan = profiling.Plan(**parts, **idle, hz=run.profile.hz, by=run.profile.by, tree=run.info.tree)
            profiling.show(run.profile, plan, stream, run)
        else:
            measured = plan_of(run, settings, heat=heat)
            for warning in run.warnings:
                measured.warn(warning)
            measuring.show(run.snapshots, measured, stream)
    return 0


def plan_of(run: Run, settings: dict[str, Any], *, heat: bool = False) -> measuring.Plan:
    """Return the plan by which results of a run are shown."""
    always: dict[str, dict[str, Any]] = {
        "time": {"functions": []}, "top": {"functions": []}, "serve": {}, "hist": {"aggregations": {}},
        "script": {"aggregations": {}}, "cover": {"modules": [], "files": []}, "locks": {"locks": []},
        "offcpu": {"stacks": []},
    }  # fmt: skip
    render = heating.Heated(renderer(run.info), run.series) if heat else renderer(run.info)
    plan = measuring.Plan(
        specs=(), arm=_arm_nothing, render=render, by=_told_apart(run.info),
        tree=any(each.tree for each in run.snapshots), covers=any(each.coverage is not None for each in run.snapshots),
        always=always.get(run.info.command, {}), run=run, **SETTINGS, **settings,
    )  # fmt: skip
    contradictions.refuse_format(plan)
    return plan


def renderer(info: RunInfo) -> "Callable[[Snapshot, Console, int], None]":
    """Return what prints results as the command has that measured them."""
    name = info.command if info.command in COMMANDS else "count"
    known = import_module(MODULES.get(name, f"anyprobe.cli.commands.{name}"))
    make = getattr(known, "renderer", count.renderer)
    render: Callable[[Snapshot, Console, int], None] = make(by=info.by, tree=info.tree)
    return render


def _told_apart(info: RunInfo) -> str | None:
    return info.by if info.by in {"pid", "tid"} else None


def _arm_nothing(session: object, specs: object) -> None:
    """Do nothing: what was measured is known."""
