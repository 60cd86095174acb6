"""Flame graphs: one HTML file that any browser opens without a network, with search, zoom and a table of functions.

The picture is Brendan Gregg's, *The Flame Graph* (Communications of the ACM 59(6), 2016).
"""

from collections.abc import Iterable
from importlib.resources import files
from typing import Any, TextIO

from anyprobe.core.printable import printable
from anyprobe.data.calltree import CallNode
from anyprobe.exporters.base import Measurement, Needs
from anyprobe.exporters.json_document import in_page
from anyprobe.exporters.stacks import trees


class Flame:
    """Writes one HTML page."""

    name = "flame"
    needs = Needs.TREE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the page with the trees in it, each under its process where processes are told apart."""
        page = files("anyprobe.exporters").joinpath("pages/flame.html").read_text(encoding="utf-8")
        stream.write(page.replace("@PROFILE@", in_page(profile(found))))
        stream.flush()


def profile(found: Measurement) -> dict[str, Any]:
    """Return what the page shows: names, and nodes in the order in which a walk from the callers down meets them."""
    names: dict[tuple[str, str], int] = {}
    nodes: list[tuple[int, int, int, int]] = []
    for process, tree in trees(found):
        if process:
            nodes.append((0, names.setdefault(("", printable(process)), len(names)), 0, 0))
        nodes += walk(tree, names, 1 if process else 0)
    shown = found.last or found.together
    return {
        "title": printable(shown.target.exe or "anyprobe"),
        "facts": f"{found.what}, for {shown.duration_s:.2f} s; the width is time.",
        "counted": found.counted,
        "names": [[function, module] for module, function in names],
        "nodes": nodes,
    }


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
