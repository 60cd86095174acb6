"""Results that were kept in archives, shown again as the command would have that has measured them."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from anyprobe.cli import COMMANDS, MODULES
from anyprobe.cli.commands import count
from anyprobe.cli.measurement import contradictions, heating, measuring, metering, profiling
from anyprobe.cli.terminal import output
from anyprobe.data.archives.runs import Run, RunInfo, merged, merged_of, read
from anyprobe.data.snapshots.metrics import metric_named

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.snapshots.snapshot import Snapshot

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


def read_sum(paths: Sequence[str]) -> Run:
    """Read archives and add them up; complain as ``read_all`` does."""
    try:
        return merged_of(paths)
    except OSError as error:
        raise click.FileError(str(error.filename), error.strerror) from error


def show(run: Run, settings: dict[str, Any], *, heat: bool = False) -> int:
    """Write the results of a run as its own command would have; ``heat``: heat maps below its table, too."""
    if heat:
        if not run.series:
            raise click.UsageError("--heat is over time, and there are no intervals: --every SECONDS of what measures")
        heating.refuse(every=1.0, form=settings["format"])
    with output.results(settings["output"], program_owns_output=False) as stream:
        if run.profile is not None:
            profiling.show(run.profile, _profile_plan(run, settings), stream, run)
        else:
            measured = plan_of(run, settings, heat=heat)
            for warning in run.warnings:
                measured.warn(warning)
            measuring.show(run.snapshots, measured, stream)
    return 0


def _profile_plan(run: Run, settings: dict[str, Any]) -> profiling.Plan:
    """Return the plan by which samples of a run are shown."""
    assert run.profile is not None
    parts = {name: settings[name] for name in ("format", "output", "quiet", "top", "full_names")}
    idle: dict[str, Any] = {"seconds": None, "stack_bytes": None, "at_end": None, "exit_status": False}
    return profiling.Plan(**parts, **idle, hz=run.profile.hz, by=run.profile.by, tree=run.info.tree)


class Part(NamedTuple):
    """One part of a sum: a host, a rank."""

    heading: str
    facts: dict[str, Any]
    """What JSON says of it besides its results."""
    run: Run | None
    """None where there are no results of it, and none in the sum."""


def show_sum(
    together: Run, parts: Sequence[Part], kind: str, heading: str, settings: dict[str, Any], stream: TextIO, *,
    missing: str,
) -> None:  # fmt: skip
    """Write the results of each part and their sum, or only that where a format has no room for more.

    Args:
        together: the sum.
        parts: what it is of, and what is missing in it.
        kind: what JSON calls the parts.
        heading: of the sum.
        settings: how results are shown.
        stream: where.
        missing: what is not in the sum, which its warnings say; empty if nothing is.
    """
    if together.profile is not None:
        _show_profiles(together, parts, kind, heading, settings, stream, missing=missing)
        return
    if missing:
        (whole,) = together.snapshots
        warnings = (f"missing in this sum: {missing}", *whole.warnings)
        together = replace(together, snapshots=(replace(whole, warnings=warnings),))
    plan = plan_of(together, settings)
    if settings["format"] == "json":
        found = [
            part.facts | ({} if part.run is None else {"results": _document(part.run, settings)}) for part in parts
        ]
        plan = replace(plan, always={**plan.always, kind: found})
    elif settings["format"] is None:
        for part in parts:
            if part.run is not None:
                stream.write(f"=== {part.heading}\n")
                measuring.show(part.run.snapshots, plan_of(part.run, settings), stream)
                stream.write("\n")
        stream.write(f"=== {heading}\n")
    for warning in together.warnings:
        plan.warn(warning)
    measuring.show(together.snapshots, plan, stream)


def _show_profiles(
    together: Run, parts: Sequence[Part], kind: str, heading: str, settings: dict[str, Any], stream: TextIO, *,
    missing: str,
) -> None:  # fmt: skip
    """Write the samples of each part and of all, as ``show_sum`` does."""
    whole = together.profile
    assert whole is not None
    if missing:
        whole = replace(whole, warnings=(f"missing in this sum: {missing}", *whole.warnings))
    if settings["format"] == "json":
        found = [part.facts | ({} if part.run is None or part.run.profile is None
                               else {"results": part.run.profile.as_json()}) for part in parts]  # fmt: skip
        output.write_json(whole.as_json() | {kind: found}, stream)
        return
    if settings["format"] is None:
        for part in parts:
            if part.run is not None and part.run.profile is not None:
                stream.write(f"=== {part.heading}\n")
                profiling.show(part.run.profile, _profile_plan(part.run, settings), stream, part.run)
                stream.write("\n")
        stream.write(f"=== {heading}\n")
    profiling.show(whole, _profile_plan(together, settings), stream, replace(together, profile=whole))


def _document(run: Run, settings: dict[str, Any]) -> Any:  # noqa: ANN401 - of JSON
    """Return the document of a part."""
    text = io.StringIO()
    measuring.show(run.snapshots, replace(plan_of(run, settings), quiet=True), text)
    return json.loads(text.getvalue())


def show_by(runs: Sequence[Run], by: str, settings: dict[str, Any]) -> int:
    """Write the sum of runs after that of each rank, or host."""
    if any(run.profile is not None for run in runs):
        raise click.UsageError(
            f"--by {by} is not for profiles; --by of 'anyprobe profile' tells threads and processes apart"
        )
    together = merged(runs)
    parts, missing = (_by_rank if by == "rank" else _by_host)(runs)
    heading = f"sum of {len(parts)} {by}{'s' if len(parts) > 1 else ''}" + (f", without {missing}" if missing else "")
    with output.results(settings["output"], program_owns_output=False) as stream:
        show_sum(together, parts, f"{by}s", heading, settings, stream, missing=missing)
    return 0


def _by_rank(runs: Sequence[Run]) -> tuple[list[Part], str]:
    """Return the parts by rank, and which ranks are missing."""
    if any(run.info.rank is None for run in runs):
        raise click.UsageError("--by rank is for archives that were written under mpirun or srun, one by each rank")
    kept: dict[int, list[Run]] = {}
    for run in runs:
        kept.setdefault(run.info.rank or 0, []).append(run)
    size = max(run.info.ranks or 0 for run in runs)
    missing = [str(rank) for rank in range(max(size, max(kept) + 1)) if rank not in kept]
    parts = [
        Part(f"rank {rank}, {_host_of(own[0])}", {"rank": rank, "host": _host_of(own[0])}, merged(own))
        for rank, own in sorted(kept.items())
    ]
    return parts, f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}" if missing else ""


def _by_host(runs: Sequence[Run]) -> tuple[list[Part], str]:
    kept: dict[str, list[Run]] = {}
    for run in runs:
        kept.setdefault(_host_of(run), []).append(run)
    return [Part(host, {"host": host}, merged(own)) for host, own in kept.items()], ""


def _host_of(run: Run) -> str:
    return run.info.machine.get("host", "") or "an unknown host"


def plan_of(run: Run, settings: dict[str, Any], *, heat: bool = False) -> measuring.Plan:
    """Return the plan by which results of a run are shown."""
    always: dict[str, dict[str, Any]] = {
        "time": {"functions": []}, "top": {"functions": []}, "serve": {}, "hist": {"aggregations": {}},
        "script": {"aggregations": {}}, "cover": {"modules": [], "files": []}, "locks": {"locks": []},
        "offcpu": {"stacks": []},
    }  # fmt: skip
    if run.info.metric:
        metering.refuse_format(settings["format"], "report")
    render = renderer(run)
    render = heating.Heated(render, run.series) if heat else render
    plan = measuring.Plan(
        specs=(), arm=_arm_nothing, render=render, by=_told_apart(run.info),
        tree=any(each.tree for each in run.snapshots), covers=any(each.coverage is not None for each in run.snapshots),
        always=always.get(run.info.command, {}), run=run, **SETTINGS, **settings,
    )  # fmt: skip
    contradictions.refuse_format(plan)
    return plan


def renderer(run: Run) -> "Callable[[Snapshot, Console, int], None]":
    """Return what prints results as the command has that measured them."""
    info = run.info
    if info.metric:
        return metering.Meter(metric_named(info.metric), series=run.series)
    name = info.command if info.command in COMMANDS else "count"
    known = import_module(MODULES.get(name, f"anyprobe.cli.commands.{name}"))
    make = getattr(known, "renderer", count.renderer)
    render: Callable[[Snapshot, Console, int], None] = make(by=info.by, tree=info.tree)
    return render


def _told_apart(info: RunInfo) -> str | None:
    return info.by if info.by in {"pid", "tid"} else None


def _arm_nothing(session: object, specs: object) -> None:
    """Do nothing: what was measured is known."""
