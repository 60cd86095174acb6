"""The layers of docs/design.md, read from the sources' import statements."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import anyprobe

ROOT = Path(anyprobe.__file__).parent
ROWS = (
    ("cli",),
    ("kprobes",),
    ("exporters", "probes", "reports", "usdt"),
    ("handlers", "splice"),
    ("journal",),
    ("binary", "target", "data"),
    ("isa",),
    ("core",),
)
ROW = {package: row for row, packages in enumerate(ROWS) for package in packages}
ORDERS = {
    "data": ("layouts", "aggregates", "findings", "readers", "snapshots", "archives", "calls"),
    "handlers": ("types", "ir", "passes", "llvm", "x86", "frontend", "bpf"),
    "probes": (
        "scripts", "specs", "stacks", "profiling", "providers", "watching", "following", "coverage", "parts",
        "selfattach", "waiting",
    ),
    "probes.providers.function": (
        "handlers", "forks", "timing", "wanted", "outside", "gates", "threads", "optimising", "replacing",
    ),
    "splice": (
        "memory", "plan", "emitted", "translate", "codegen", "kernel", "regions", "edits", "userspace",
        "apply", "planning", "engine", "processes",
    ),
    "target": ("system", "kernel", "remote", "process"),
}  # fmt: skip
"""What is within a package, lowest first: each imports what comes before it, for annotations, too. The order within
``binary`` is in ``tests/unit/binary/test_structure.py``."""
MOST_IN_A_CIRCLE = 3
PROTOCOLS_AND_VALUES = {
    "target.base", "target.remote.batch", "target.remote.frame", "target.remote.saved_frames", "target.system.gateway",
    "target.system.membarrier", "target.system.pagemap", "target.system.procfs",
}  # fmt: skip
"""What ``splice`` may know of ``target``: protocols, layouts, readers of ``/proc``, but no class of targets."""
PROCESSES_TO_OPEN = {
    "splice.apply.live.children": {"target.process.process"},
    "splice.apply.live.helper_threads": {"target.process.urgency", "target.process.helper_thread"},
    "splice.apply.recovery.recovery": {"target.process.process"},
}
"""Modules that open other processes themselves, and those that a helper thread's maker needs."""
ATTIC_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
# Reports see snapshots and nothing else; a report that needs more is a report that touches a process.
REPORTS_MAY_IMPORT = {
    "anyprobe.data.snapshots.snapshot", "anyprobe.data.snapshots.processes", "anyprobe.data.layouts.histogram",
    "anyprobe.data.aggregates.results", "anyprobe.data.findings.calltree", "anyprobe.data.findings.coverage",
    "anyprobe.data.snapshots.profile", "anyprobe.data.findings.refused", "anyprobe.data.snapshots.sums",
    "anyprobe.data.findings.waiting", "anyprobe.data.findings.offcpu", "anyprobe.data.findings.wakers",
    "anyprobe.data.archives.differences",
    "anyprobe.data.snapshots.heatmaps", "anyprobe.data.snapshots.metrics", "anyprobe.data.calls.recorded",
    "anyprobe.data.calls.matching", "anyprobe.data.calls.recording", "anyprobe.data.calls.timeline",
    "anyprobe.data.calls.values", "anyprobe.core.later",
    "anyprobe.core.printable",
}  # fmt: skip


def sources() -> Iterator[Path]:
    return iter(sorted(ROOT.rglob("*.py")))


def package_of(path: Path) -> str | None:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else None


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Return each import of our own, deferred ones too, as (line, dotted name)."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
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


def module_of(path: Path) -> str:
    """Return a source's dotted name below the package, ``journal`` for its ``__init__``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def graph() -> dict[str, set[str]]:
    """Return which modules each module imports, for annotations and in functions, too."""
    modules = {module_of(path): path for path in sources()}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = [dotted.partition(".")[2] for _, dotted in imports(path)]
        found[module] = {name if name in modules else name.rpartition(".")[0] for name in names} & set(modules) - {
            module
        }
    return found


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Return the modules that import one another, directly or by others: Tarjan's strongly connected components."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in edges[module]:
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            at = stack.index(module)
            found.append(set(stack[at:]))
            del stack[at:]

    for module in edges:
        if module not in index:
            visit(module)
    return found


def test_circles_are_found():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert sorted(map(sorted, circles(edges))) == [["a", "b", "c"], ["d", "e"], ["f"]]


def test_few_modules_import_one_another():
    wrong = [
        f"{len(circle)} modules: {', '.join(sorted(circle))}"
        for circle in circles(graph())
        if len(circle) > MOST_IN_A_CIRCLE
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_within_a_package_has_an_order():
    wrong = []
    for package, order in ORDERS.items():
        rank = {f"{package}.{part}": place for place, part in enumerate(order)}
        depth = package.count(".") + 2
        for module, imported in graph().items():
            own = rank.get(".".join(module.split(".")[:depth]), len(rank))
            wrong += [
                f"{module} imports {it}" for it in imported if rank.get(".".join(it.split(".")[:depth]), -1) > own
            ]
    assert not wrong, "\n".join(sorted(wrong))


def test_only_providers_know_the_engine():
    """What is spliced is a provider's own affair; the rest of ``probes`` asks the provider."""
    wrong = {
        f"{module} imports {other}"
        for module, imported in graph().items()
        if module.startswith("probes.") and not module.startswith("probes.providers.")
        for other in imported
        if other.startswith("splice")
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_the_provider_of_functions_knows_no_session():
    wrong = {
        f"{module} imports {other}"
        for module, imported in graph().items()
        if module.startswith(("probes.providers.function.", "probes.providers.usdt."))
        for other in imported & {"probes.api", "probes.composed", "probes.group", "probes.opening", "probes.session"}
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_every_part_of_an_ordered_package_has_a_place():
    parts = {
        package: {path.parent.name for path in (ROOT / package.replace(".", "/")).glob("*/__init__.py")}
        for package in ORDERS
    }
    modules = {path.stem for path in (ROOT / "splice").glob("*.py")} - {"__init__"}
    missing = {package: found - set(ORDERS[package]) for package, found in parts.items()}
    missing["splice"] |= modules - set(ORDERS["splice"])
    assert not any(missing.values()), f"without a place: {missing}"


def is_engine(node: ast.expr) -> bool:
    """Return whether an expression is called an engine, as ``engine`` or ``session.engine``."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.strip("_") == "engine"


def test_splice_knows_targets_by_their_protocols():
    wrong = [
        f"{module} imports {other}"
        for module, imported in graph().items()
        if module.startswith("splice.")
        for other in sorted(imported)
        if other.startswith("target.") and other not in PROTOCOLS_AND_VALUES | PROCESSES_TO_OPEN.get(module, set())
    ]
    assert not wrong, "\n".join(wrong)


def test_an_engine_has_few_verbs():
    """What else is asked of a session's engine is asked of the part that knows it."""
    from anyprobe.splice.engine import Engine

    public = {name for name in vars(Engine) if not name.startswith("_")}
    assert public <= {"change", "add_module", "modules", "patches"}


def test_nothing_is_assigned_to_an_engine_from_outside():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and is_engine(node.value)
        and (isinstance(node.ctx, ast.Store) or node.attr.startswith("_"))
    ]
    assert not wrong, "\n".join(wrong)


def test_edits_and_states_of_functions_are_changed_by_their_own_methods():
    """Its stages are values: only they take it from one to the next."""
    owner = ROOT / "splice" / "edits.py"
    fields = {"planned", "change", "outcome", "before", "wants", "splices", "merged_into", "claims"}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted((ROOT / "splice").rglob("*.py")) + sorted((ROOT / "probes").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr in fields
        and ast.unparse(node.value).split(".")[-1] in {"edit", "state", "merged"}
        and path != owner
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
