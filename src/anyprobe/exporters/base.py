"""What an exporter is, and which ones there are.

A new format is one module with an ``Exporter`` object and one line in ``BUILT_IN``; ``register`` adds one from outside.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TextIO

from anyprobe.data.snapshots.snapshot import Snapshot

if TYPE_CHECKING:
    from anyprobe.data.archives.runs import Run

BUILT_IN = {
    "json": "anyprobe.exporters.json_document",
    "folded": "anyprobe.exporters.folded",
    "collapsed-json": "anyprobe.exporters.collapsed_json",
    "speedscope": "anyprobe.exporters.speedscope",
    "flame": "anyprobe.exporters.flame",
    "icicle": "anyprobe.exporters.icicle",
    "pprof": "anyprobe.exporters.pprof",
    "lcov": "anyprobe.exporters.lcov",
    "cobertura": "anyprobe.exporters.cobertura",
    "drcov": "anyprobe.exporters.drcov",
    "fdata": "anyprobe.exporters.fdata",
    "llvm-sample": "anyprobe.exporters.llvm_sample",
    "html": "anyprobe.exporters.covered_source",
    "archive": "anyprobe.exporters.archive",
    "report": "anyprobe.exporters.report",
}
"""The module of each format, which is imported when the format is asked for; its ``EXPORTER`` is the exporter."""


TIMED = "Wall time of timed calls by what called them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a measuring command has found, at its end or since the last time."""

    snapshots: Sequence[Snapshot]
    """The results of each process."""
    together: Snapshot
    """The results of all processes."""
    last: Snapshot | None = None
    """What was added since the last time, where results are written again and again."""
    between: bool = False
    """Whether more results follow."""
    before: Snapshot | None = None
    """What it is compared with, where a difference is shown."""
    by: str | None = None
    """Whether processes (``pid``) or threads (``tid``) are told apart."""
    repeated: bool = False
    """Whether several results follow each other in one file."""
    nonzero: bool = False
    """Whether what was not hit is left out."""
    buckets: bool = True
    """Whether functions have the buckets of their histograms."""
    what: str = TIMED
    """What time the trees of calls are of."""
    counted: str = "calls"
    """What the counts of their nodes are of."""
    counts: bool = False
    """Whether these trees have something else than nanoseconds: hits, or a sum of values."""
    always: Mapping[str, object] = field(default_factory=dict)
    """Fields that a document has even where nothing could be placed."""
    records: Mapping[str, object] = field(default_factory=dict)
    """Fields with the records that handlers have emitted."""
    run: "Run | None" = None
    """How this was measured, and what is in no snapshot; None where no format asks for it."""


class Needs(Enum):
    """What results must have for a format."""

    ANYTHING = ""
    TREE = "is of trees of calls: anyprobe time --tree, profile, hist --by stack"
    COVERAGE = "is of coverage: anyprobe cover"


class Exporter(Protocol):
    """A file format for results."""

    name: str
    """What ``--format`` calls it."""
    needs: Needs
    """What it shows, and nothing else."""
    holds_warnings: bool
    """Whether a file has the warnings; else the user is told of them."""
    may_repeat: bool
    """Whether several results may follow each other in one file."""

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write results to a text stream."""
        ...


_registered: dict[str, Exporter] = {}


def register(exporter: Exporter) -> None:
    """Make a format known by its name, in place of one of the same name."""
    _registered[exporter.name] = exporter


def names() -> list[str]:
    """Return the names of all formats."""
    return [*dict.fromkeys((*BUILT_IN, *_registered))]


def exporter_of(name: str) -> Exporter:
    """Return the exporter of a format; raise ``KeyError`` for an unknown name."""
    if name not in _registered:
        register(importlib.import_module(BUILT_IN[name]).EXPORTER)
    return _registered[name]
