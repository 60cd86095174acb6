"""Collapsed stacks as JSON: what ``folded`` has a line for, with modules and numbers of calls, and no name cut."""

from typing import TextIO

from anyprobe.exporters.base import Measurement, Needs
from anyprobe.exporters.json_document import json_text
from anyprobe.exporters.stacks import stacks, trees


class CollapsedJson:
    """Writes one JSON document with all stacks."""

    name = "collapsed-json"
    needs = Needs.TREE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write each stack, the outermost function first; processes where they are told apart."""
        document = {
            "of": found.what,
            "unit": "" if found.counts else "ns",
            "counted": found.counted,
            "stacks": [
                {
                    **({"process": process} if process else {}),
                    "frames": [{"function": each.function, "module": each.module} for each in calls],
                    "value": own,
                    "count": calls[-1].count,
                }
                for process, tree in trees(found)
                for calls, own in stacks(tree)
            ],
        }
        stream.write(json_text(document) + "\n")
        stream.flush()


EXPORTER = CollapsedJson()
