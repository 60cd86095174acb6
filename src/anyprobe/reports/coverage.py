"""Coverage: how much of each module and source file has run, the worst first, and annotated source."""

import fnmatch
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anyprobe.core.printable import printable
from anyprobe.data.findings.coverage import Coverage, Hits, Tally
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.reports.heading import print_heading, print_refusals
from anyprobe.reports.losses import print_losses
from anyprobe.reports.plain import Rows, escape
from anyprobe.reports.quantities import counted, percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

_WIDTH = 9
"""Columns of the hits before a line of source."""


def print_coverage(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print a line on all, the table of modules and that of files; ``top`` limits their rows unless 0."""
    coverage = snapshot.coverage or Coverage()
    lines, blocks, functions = Tally(), Tally(), Tally()
    for module in coverage.modules:
        lines, blocks, functions = lines + module.lines, blocks + module.blocks, functions + module.entered
    branches = sum((module.branches for module in coverage.modules), Tally())
    parts = [(lines, "line"), (blocks, "block"), (functions, "function"), (branches, "branch way")]
    what = ", ".join(f"{tally.covered:,} of {counted(tally.total, noun)}" for tally, noun in parts if tally.total)
    lazily = ", with probes from the first entry of each function on" * coverage.lazy
    print_heading(snapshot, console, f"{what or 'nothing'} covered since {coverage.since}{lazily}")
    rows = [(each.name, each.lines, each.blocks, each.entered) for each in coverage.modules]
    if rows:
        table = Rows()
        for name in ("lines", "blocks", "functions"):
            table.add_column(name, justify="right")
        table.add_column("module", overflow="fold")
        for name, *tallies in rows:
            table.add_row(*map(_share, tallies), escape(printable(name)))
        console.print()
        console.print(table)
    _print_files(coverage, console, top)
    for module in coverage.modules:
        if module.without_lines:
            name, why = printable(module.name), printable(module.without_lines)
            console.print(f"no lines of {name}: {why}", markup=False, soft_wrap=True)
    unknown = blocks.unknown
    if unknown:
        console.print(f"{counted(unknown, 'block')} could not be probed to the end: not known")
    print_losses(snapshot, console)
    print_refusals(snapshot, console)


def print_difference(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print what ran in one run and not in the other: functions, those with the most new blocks first, and lines.

    Of an interval, that is what has run in it for the first time.
    """
    coverage = snapshot.coverage or Coverage()
    functions = [(each, module) for module in coverage.modules for each in module.functions]
    functions.sort(key=lambda each: (-len(each[0].blocks), each[0].name))
    files = coverage.files
    parts = [
        counted(sum(map(len, files.values())), "line"),
        counted(sum(len(each.blocks) for each, _ in functions), "block"),
        counted(sum(0 in each.blocks for each, _ in functions), "function"),
    ]
    if snapshot.interval is None:
        console.print(f"{', '.join(parts)} ran in the second and not in the first")
    else:
        print_heading(snapshot, console, f"{', '.join(parts)} ran for the first time")
    shown = functions[:top] if top else functions
    if shown:
        table = Rows()
        table.add_column("new blocks", justify="right")
        table.add_column("function", overflow="fold")
        table.add_column("module", overflow="fold")
        for each, module in shown:
            table.add_row(f"{len(each.blocks):,}", escape(printable(each.name)), escape(printable(module.name)))
        console.print()
        console.print(table)
    if len(shown) < len(functions):
        console.print(f"… and {counted(len(functions) - len(shown), 'more function')}; --top 0 shows all", style="dim")
    for path, lines in files.items():
        spans = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in _spans(lines))
        console.print(f"\n{printable(path)}: {spans}", markup=False, highlight=False, soft_wrap=True)


def _spans(lines: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of numbers that follow one another."""
    found: list[tuple[int, int]] = []
    for each in sorted(lines):
        if found and each == found[-1][1] + 1:
            found[-1] = found[-1][0], each
        else:
            found.append((each, each))
    return found


def _print_files(coverage: Coverage, console: "Console", top: int) -> None:
    tallies = {path: Tally.of(lines.values()) for path, lines in coverage.files.items()}
    worst = sorted(tallies, key=lambda path: (tallies[path].share or 0.0, -tallies[path].total, path))
    shown = worst[:top] if top else worst
    if not shown:
        return
    table = Rows()
    for name in ("covered", "lines", "run", "not run"):
        table.add_column(name, justify="right")
    table.add_column("file", overflow="fold")
    for path in shown:
        tally = tallies[path]
        missed = tally.known - tally.covered
        table.add_row(_share(tally), f"{tally.total:,}", f"{tally.covered:,}", f"{missed:,}", escape(printable(path)))
    console.print()
    console.print(table)
    if len(shown) < len(worst):
        console.print(f"… and {counted(len(worst) - len(shown), 'more file')}; --top 0 shows all", style="dim")


def _share(tally: Tally) -> str:
    return f"{percent(tally.covered, tally.total)} %" if tally.total else "-"


def print_source(
    snapshot: Snapshot, console: "Console", pattern: str = "*", source_of: "Callable[[str], list[str]] | None" = None
) -> int:
    """Print the source of files that match a glob, each line with its hits; return how many files these are.

    ``source_of`` returns the lines of a file, as they may be printed; without it there are the hits alone.
    """
    coverage = snapshot.coverage or Coverage()
    files, counted = coverage.files, coverage.counted
    chosen = [path for path in files if fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"*/{pattern}")]
    for path in chosen:
        console.print(f"\n{printable(path)}", markup=False, style="bold", soft_wrap=True)
        text, lines = source_of(path) if source_of else [], files[path]
        if not text:
            console.print("(its source is not on this machine)", style="dim")
        for number in range(1, len(text) + 1) if text else lines:
            line = f"{_hits(lines, number, counted=counted):>{_WIDTH}} {number:5}  {text[number - 1] if text else ''}"
            console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
    return len(chosen)


def _hits(lines: "dict[int, Hits]", number: int, *, counted: bool) -> str:
    """Return what is shown before a line; what is not counted is only marked."""
    if number not in lines:
        return ""
    hits = lines[number]
    return "?" if hits is None else "#####" if not hits else f"{hits:,}" if counted else "+"
