"""Profiles for speedscope (https://www.speedscope.app): stacks with weights in nanoseconds, a profile for each process.

The format is https://www.speedscope.app/file-format-schema.json, of type ``sampled``.
"""

from collections.abc import Iterable
from typing import Any, TextIO

from anyprobe.core.printable import printable
from anyprobe.data.findings.calltree import CallNode
from anyprobe.exporters.base import Measurement, Needs
from anyprobe.exporters.json_document import json_text
from anyprobe.exporters.stacks import stacks, trees


class Speedscope:
    """Writes one JSON file."""

    name = "speedscope"
    needs = Needs.TREE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the frames of all functions, and each tree's stacks as indices of these."""
        frames: dict[tuple[str, str], int] = {}
        unit = "none" if found.counts else "nanoseconds"
        exe = found.together.target.exe
        profiles = [profile(process or exe, tree, frames, unit) for process, tree in trees(found)]
        document = {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "anyprobe",
            "shared": {"frames": [{"name": printable(name), "file": printable(file)} for file, name in frames]},
            "profiles": profiles,
        }
        stream.write(json_text(document) + "\n")
        stream.flush()


def profile(name: str, tree: Iterable[CallNode], frames: dict[tuple[str, str], int], unit: str) -> dict[str, Any]:
    """Return a tree as a profile; functions that are not in ``frames`` yet get the next numbers there."""
    found = list(stacks(tree))
    weights = [each.self_ns for each in found]
    return {
        "type": "sampled",
        "name": printable(name),
        "unit": unit,
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [
            [frames.setdefault((call.module, call.function), len(frames)) for call in each.calls] for each in found
        ],
        "weights": weights,
    }


EXPORTER = Speedscope()
