"""Collapsed stacks: a line for each, ``main;parse;read 1234``, with nanoseconds of self time.

The format of Brendan Gregg's FlameGraph (``stackcollapse``), which flamegraph.pl, inferno, speedscope and others read.
"""

from collections.abc import Iterable
from typing import TextIO

from anyprobe.core.printable import printable
from anyprobe.data.findings.calltree import CallNode
from anyprobe.exporters.base import Measurement, Needs
from anyprobe.exporters.stacks import pairs, stacks, trees


class Folded:
    """Writes a line for each stack."""

    name = "folded"
    needs = Needs.TREE
    holds_warnings = False
    may_repeat = True  # readers add up lines of the same stack

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the stacks of each tree, under the process where processes are told apart."""
        if found.before is not None:
            _write_both(found.before.tree, found.together.tree, stream)
            return
        for process, tree in trees(found):
            first = [frame(process)] if process else []
            for calls, own in stacks(tree):
                names = [*first, *(frame(each.function) for each in calls)]
                stream.write(f"{';'.join(names)} {own}\n")
        stream.flush()


def _write_both(before: Iterable[CallNode], after: Iterable[CallNode], stream: TextIO) -> None:
    """Write the nanoseconds of each stack in both of two runs, as difffolded.pl does."""
    path: list[str] = []
    for depth, one, other in pairs(before, after):
        path[depth:] = [frame(next(each.function for each in (one, other) if each))]
        own, now = (max(round(each.self_ns), 0) if each else 0 for each in (one, other))
        if own or now:
            stream.write(f"{';'.join(path)} {own} {now}\n")


def frame(name: str) -> str:
    """Return a name as a frame: a semicolon would end it, and a line break the line."""
    return printable(name).replace(";", ":")


EXPORTER = Folded()
