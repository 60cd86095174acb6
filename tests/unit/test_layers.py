"""The layers of docs/design.md, read from the sources' import statements."""

import ast
from collections.abc import Iterator
from pathlib import Path

import anyprobe

ROOT = Path(anyprobe.__file__).parent
ROWS = (
    ("cli",),
    ("kprobes",),
    ("probes", "reports"),
    ("handlers", "splice"),
    ("binary", "target", "data"),
    ("isa",),
    ("core",),
)
ROW = {package: row for row, packages in enumerate(ROWS) for package in packages}
ATTIC_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
# Reports see snapshots and nothing else; a report that needs more is a report that touches a process.
REPORTS_MAY_IMPORT = {"anyprobe.data.snapshot", "anyprobe.data.histogram", "anyprobe.data.results"}


def sources() -> Iterator[Path]:
    return iter(sorted(ROOT.rglob("*.py")))


def package_of(path: Path) -> str | None:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else None


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each import of our own, deferred ones too, as (line, dotted name)."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "anyprobe")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module and node.module.split(".")[0] == "anyprobe":
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"


def imported_package(dotted: str) -> str | None:
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROW else None


def test_every_package_has_a_row():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= set(ROW), f"without a row: {packages - set(ROW)}"


def test_a_package_imports_only_rows_below_its_own():
    wrong = []
    for path in sources():
        package = package_of(path)
        if package is None:
            continue
        for line, dotted in imports(path):
            other = imported_package(dotted)
            if other is not None and other != package and ROW[other] <= ROW[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {package} imports {dotted}")
    assert not wrong, "\n".join(wrong)


def test_no_package_imports_the_package_root():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: imports {dotted}"
        for path in sources()
        if package_of(path) not in {None, "cli"}
        for line, dotted in imports(path)
        if imported_package(dotted) is None
    ]
    assert not wrong, "\n".join(wrong)


def test_reports_see_only_snapshots():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: imports {dotted}"
        for path in sorted((ROOT / "reports").rglob("*.py"))
        for line, dotted in imports(path)
        if imported_package(dotted) != "reports"
        and dotted not in REPORTS_MAY_IMPORT
        and dotted.rpartition(".")[0] not in REPORTS_MAY_IMPORT
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_is_an_attic():
    names = {path.stem for path in sources()}
    assert not names & ATTIC_NAMES


def test_modules_stay_small():
    # Review asks for 400; what is longer than this wants to be two modules.
    long = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for path in sources()
        if (lines := len(path.read_text().splitlines())) > 500
    ]
    assert not long, "\n".join(long)
