"""Flame graphs: one HTML file that any browser opens without a network, with search, zoom and a table of functions.

The picture is Brendan Gregg's, *The Flame Graph* (Communications of the ACM 59(6), 2016).
"""

import re
from collections.abc import Iterable
from importlib.resources import files
from typing import Any, TextIO

from anyprobe.core.printable import printable
from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.exporters.base import Measurement, Needs
from anyprobe.exporters.json_document import in_page
from anyprobe.exporters.stacks import pairs, trees


class Flame:
    """Writes one HTML page."""

    name = "flame"
    needs = Needs.TREE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the page with the trees in it, each under its process where processes are told apart."""
        stream.write(page("flame", profile(found), style=("flame.css",), script=("flame.js",)))
        stream.flush()


def page(name: str, data: Any, *, style: Iterable[str], script: Iterable[str]) -> str:  # noqa: ANN401 - a document
    """Return a page that needs no other file: with its style, its scripts and what it shows."""
    folder = files("anyprobe.exporters").joinpath("pages")

    def texts(names: Iterable[str]) -> str:
        return "".join(folder.joinpath(each).read_text(encoding="utf-8") for each in names)

    parts = {"STYLE": texts(style), "SCRIPT": texts(script), "DATA": in_page(data)}
    return re.sub("@(STYLE|SCRIPT|DATA)@", lambda found: parts[found[1]], texts([f"{name}.html"]))


def profile(found: Measurement) -> dict[str, Any]:
    """Return what the page shows: names, and nodes in the order in which a walk from the callers down meets them."""
    names: dict[tuple[str, str], int] = {}
    nodes: list[tuple[int, int, int, int]] = []
    if found.before is not None:
        return _difference(found.before, found)
    for process, tree in trees(found):
        if process:
            nodes.append((0, names.setdefault(("", printable(process)), len(names)), 0, 0))
        nodes += walk(tree, names, 1 if process else 0)
    shown = found.last or found.together
    width = "the number" if found.counts else "time"
    return {
        "title": _name(shown),
        "facts": f"{found.what}, for {shown.duration_s:.2f} s; the width is {width}.",
        "counted": found.counted,
        "counts": found.counts,
        "names": [[function, module] for module, function in names],
        "nodes": nodes,
    }


def _difference(before: Snapshot, found: Measurement) -> dict[str, Any]:
    """Return what the page shows of two runs: nodes have the numbers of both, those of the second one first."""
    names: dict[tuple[str, str], int] = {}
    nodes = []
    for depth, one, other in pairs(before.tree, found.together.tree):
        key = next((printable(each.shown_module), printable(each.function)) for each in (other, one) if each)
        numbers = [(max(round(each.self_ns), 0), each.count) if each else (0, 0) for each in (other, one)]
        nodes.append((depth, names.setdefault(key, len(names)), *numbers[0], *numbers[1]))
    seconds = before.duration_s, found.together.duration_s
    return {
        "title": f"{_name(before)} → {_name(found.together)}",
        "facts": f"{found.what}: red takes more in the second run ({seconds[1]:.2f} s) than in the first one "
        f"({seconds[0]:.2f} s), blue takes less; the width is time.",
        "whole": before.target.is_over and found.together.target.is_over,
        "counted": found.counted,
        "seconds": [max(each, 1e-9) for each in seconds],
        "names": [[function, module] for module, function in names],
        "nodes": nodes,
    }


def _name(snapshot: Snapshot) -> str:
    target = snapshot.target
    return printable(target.called or target.exe or (target.shown_name if target.kernel else "anyprobe"))


def walk(
    tree: Iterable[CallNode], names: dict[tuple[str, str], int], depth: int
) -> Iterable[tuple[int, int, int, int]]:
    """Yield each call's depth, number in ``names`` (a new one is added), own nanoseconds and calls."""
    waiting = [(depth, node) for node in reversed(tuple(tree))]
    while waiting:  # trees of recursion are deeper than Python's own stack
        depth, node = waiting.pop()
        key = printable(node.shown_module), printable(node.function)
        yield depth, names.setdefault(key, len(names)), max(round(node.self_ns), 0), node.count
        waiting += [(depth + 1, each) for each in reversed(node.calls)]


EXPORTER = Flame()
