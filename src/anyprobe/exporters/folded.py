"""Collapsed stacks: a line for each, ``main;parse;read 1234``, with nanoseconds of self time.

The format of Brendan Gregg's FlameGraph (``stackcollapse``), which flamegraph.pl, inferno, speedscope and others read.
"""

from typing import TextIO

from anyprobe.core.printable import printable
from anyprobe.exporters.base import Measurement, Needs
from anyprobe.exporters.stacks import stacks, trees


class Folded:
    """Writes a line for each stack."""

    name = "folded"
    needs = Needs.TREE
    holds_warnings = False
    may_repeat = True  # readers add up lines of the same stack

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the stacks of each tree, under the process where processes are told apart."""
        for process, tree in trees(found):
            first = [frame(process)] if process else []
            for calls, own in stacks(tree):
                names = [*first, *(frame(each.function) for each in calls)]
                stream.write(f"{';'.join(names)} {own}\n")
        stream.flush()


def frame(name: str) -> str:
    """Return a name as a frame: a semicolon would end it, and a line break the line."""
    return printable(name).replace(";", ":")


EXPORTER = Folded()
