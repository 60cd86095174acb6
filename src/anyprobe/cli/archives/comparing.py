"""Two archives side by side: as a table, a document, or a flame graph of the difference."""

from collections.abc import Mapping
from typing import Any, TextIO

import click

from anyprobe.cli.archives import showing
from anyprobe.cli.terminal import output
from anyprobe.data.archives.differences import Difference, difference
from anyprobe.data.archives.runs import Run

TREES = ("flame", "folded")
FORMATS = ("json", *TREES)
"""What can show two runs at once."""


def compare(paths: tuple[str, str], settings: Mapping[str, Any]) -> int:
    """Show what has changed from one archive to another."""
    form = settings["format"]
    if form not in {None, *FORMATS}:
        raise click.UsageError(f"--format {form} holds one run; of a difference there are {', '.join(FORMATS)}")
    before, after = showing.read_all(paths)
    found = difference(before, after)
    if form in TREES and not (found.before.tree or found.after.tree):
        from anyprobe.exporters.base import exporter_of

        raise click.UsageError(f"--format {form} {exporter_of(form).needs.value}")
    if not settings["quiet"] and form != "json":
        for warning in found.warnings:
            output.warn(warning)
    with output.results(settings["output"], program_owns_output=False) as stream:
        if form == "json":
            output.write_json(found.as_json(), stream)
        elif form in TREES:
            _write_trees(found, form, after, stream)
        else:
            from anyprobe.reports.difference import print_difference

            print_difference(found, output.console(stream), settings["top"])
    return 0


def _write_trees(found: Difference, form: str, after: Run, stream: TextIO) -> None:
    from anyprobe.exporters.base import TIMED, Measurement, exporter_of

    what = after.info.what or TIMED
    measured = Measurement(
        snapshots=[found.after], together=found.after, before=found.before, counted=after.info.counted, what=what
    )
    exporter_of(form).write(measured, stream)
