"""What must not be imported: numpy.ma, which numpy's own set functions pull in, takes longer than attaching."""

import ast
from pathlib import Path

import anyprobe

SLOW = {"unique", "union1d", "intersect1d", "setdiff1d", "setxor1d", "isin", "in1d", "ma"}


def test_numpys_set_functions_are_not_used():
    found = [
        f"{path}:{node.lineno}: np.{node.attr}"
        for path in sorted(Path(anyprobe.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
        if node.attr in SLOW
    ]
    assert not found, "use anyprobe.core.arrays: " + ", ".join(found)
