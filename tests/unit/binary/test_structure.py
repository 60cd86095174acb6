"""The order of the sub-packages of ``binary``, and that no analysis knows the objects that run it."""

import ast
from pathlib import Path

import pytest

from anyprobe import binary
from support.module_under_test import Module

ROOT = Path(binary.__file__).parent
ROWS = (
    ("kernel",),
    ("images",),
    ("discovery", "edges", "liveness"),
    ("flow",),
    ("analysis",),
    ("decoding",),
    ("restrictions",),
    ("unwind", "dwarf"),
    ("objects",),
)
"""Each imports lower rows only."""
ROW = {package: row for row, packages in enumerate(ROWS) for package in packages}
MOST_IN_A_CIRCLE = 3
RUNNERS = {"flow.cfg", "flow.function"}
MAY_RUN = {"flow.cfg", "flow.nameless", "discovery.unlisted"}
"""What makes functions, or maps of functions, itself."""
MOST_MODULES = 25


def names():
    """Return the modules by their names in the package."""
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


@pytest.fixture(scope="module")
def imported():
    """Return what each module imports of the package, for annotations and by functions, too."""
    modules = names()
    found = {}
    for name, path in modules.items():
        targets = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anyprobe.binary."):
                module = node.module.removeprefix("anyprobe.binary.")
                for alias in node.names:
                    whole = f"{module}.{alias.name}"
                    targets.add(whole if whole in modules else module)
        found[name] = targets - {name}
    return found


def test_every_sub_package_has_a_row():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == set(ROW)


def test_a_sub_package_imports_only_rows_below_its_own(imported):
    wrong = [
        f"{name} imports {other}"
        for name, targets in imported.items()
        for other in targets
        if (own := name.partition(".")[0]) != (package := other.partition(".")[0]) and ROW[package] <= ROW[own]
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_no_circle_of_imports_is_larger_than_three_modules(imported):
    def reached(name):
        found, todo = set(), [name]
        while todo:
            more = imported[todo.pop()] - found
            found |= more
            todo += more
        return found

    reaches = {name: reached(name) for name in imported}
    circles = {frozenset(other for other in reaches[name] if name in reaches[other]) for name in reaches}
    assert max(map(len, circles)) <= MOST_IN_A_CIRCLE, max(circles, key=len)


def test_analyses_do_not_know_the_objects_that_run_them(imported):
    knowing = {name for name, targets in imported.items() if targets & RUNNERS}
    assert knowing <= MAY_RUN


def test_a_code_map_holds_only_what_it_names(build):
    """Results of analyses are the manager's: the map is no place for them."""
    with pytest.raises(AttributeError):
        Module.compiled(build, "int f(void) { return 1; }").map.liveness = 1


def test_no_folder_has_too_many_modules():
    counts = {package: len(list((ROOT / package).glob("*.py"))) - 1 for package in ROW}
    assert max(counts.values()) <= MOST_MODULES, counts
