"""Coverage from documents and archives that ``anyprobe cover`` has written: added up, or compared."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from anyprobe.cli.measurement import measuring
from anyprobe.cli.terminal import output
from anyprobe.data.findings.coverage import Coverage
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import Snapshot

if TYPE_CHECKING:
    from anyprobe.cli.measurement.plan import Plan

_SIGNALS = 128
_COMPRESSED = b"\x28\xb5\x2f\xfd"
"""How archives begin."""
_NONE = "has no coverage; anyprobe cover --json -o FILE, or -o RUN.aprobe, writes one that has"


def combine(way: str, paths: Sequence[str], plan: "Plan") -> list[Snapshot]:
    """Write the sum of documents, or what the second has beyond the first, as a plan says; return what was written."""
    least = 2 if way == "diff" else 1
    if len(paths) < least or (way == "diff" and len(paths) > least):
        wanted = "two documents: what ran in the second and not in the first" if way == "diff" else "documents"
        raise click.UsageError(f"anyprobe cover {way} takes {wanted}")
    found = [read(path) for path in paths]
    builds: dict[str, str] = {}
    for each in found:
        for module in (each.coverage or Coverage()).modules:
            if builds.setdefault(module.path, module.key) != module.key:
                plan.warn(f"{module.path} has changed between the runs: its builds are told apart")
    if way == "diff":
        first, second = (each.coverage or Coverage() for each in found)
        found = [replace(found[1], coverage=second.beyond(first))]
    with output.results(plan.output, program_owns_output=False) as stream:
        measuring.show(found, plan, stream)
    return list(plan.shown)


def read(path: str) -> Snapshot:
    """Return the results that a document, or an archive, has of coverage; raise ``click.UsageError`` if it has none."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        if content.startswith(_COMPRESSED):
            return _kept(path)
        document = json.loads(content)
        target, status = document["target"], document["target"]["exited"]
        if status is not None:  # a shell's: 128 and more are of signals
            status = status << 8 if status < _SIGNALS else status - _SIGNALS
        return Snapshot(
            TargetInfo(target["pid"], target["exe"], status, alive=target["alive"]),
            document["duration_s"],
            coverage=Coverage.from_json(document),
        )
    except OSError as error:
        raise click.FileError(path, error.strerror) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise click.UsageError(f"{path} {_NONE}") from None


def _kept(path: str) -> Snapshot:
    """Return the results of all processes that an archive has."""
    from anyprobe.data.archives.runs import merged
    from anyprobe.data.archives.runs import read as read_run

    (found,) = merged([read_run(path)]).snapshots or (None,)
    if found is None or found.coverage is None:
        raise click.UsageError(f"{path} {_NONE}")
    return found
