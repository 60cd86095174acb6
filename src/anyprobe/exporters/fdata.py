"""Counts of branches as a profile for BOLT (``llvm-bolt -data``), in the text format that ``perf2bolt`` writes.

A line for each edge that was gone along: ``1 from offset 1 to offset 0 count``, where names are the symbol table's and
offsets hexadecimal; the 0 is of branches that were mispredicted, which is not known. What was called from elsewhere,
or through pointers, comes from ``0 [unknown] 0``.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.data.findings.coverage import Coverage, CoveredFunction, CoveredModule
from anyprobe.exporters.base import Measurement, Needs

_HOW = "anyprobe cover --edges counts them"


class Fdata:
    """Writes the edges of one file with code: a profile is of one."""

    name = "fdata"
    needs = Needs.COVERAGE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the profile."""
        stream.writelines(_lines(_profiled(found.together.coverage or Coverage())))
        stream.flush()


def _profiled(coverage: Coverage) -> CoveredModule:
    modules = [each for each in coverage.modules if any(one.edges for one in each.functions)]
    if not modules:
        raise UnsupportedTarget(f"there are no edges for a profile; {_HOW}")
    if len(modules) > 1:
        names = ", ".join(each.name for each in modules)
        raise UnsupportedTarget(f"a profile for BOLT is of one file, and there are edges of {names}: cover one of them")
    if not any(each.symbol for each in modules[0].functions):
        raise UnsupportedTarget(f"{modules[0].name} has no symbol table, by whose names BOLT knows functions")
    return modules[0]


def _lines(module: CoveredModule) -> Iterator[str]:
    functions = [each for each in module.functions if each.symbol]
    starts = [each.start for each in functions]
    called: Counter[int] = Counter()
    for function in functions:
        for edge in function.edges:
            if not edge.hits:
                continue
            number = bisect_right(starts, edge.to) - 1
            called[edge.to] += edge.hits
            if number >= 0 and _is_in(functions[number], edge.to):
                to = f"{_escaped(functions[number].symbol)} {edge.to - starts[number]:x}"
                yield f"1 {_escaped(function.symbol)} {edge.at:x} 1 {to} 0 {edge.hits}\n"
    for function in functions:
        entries = {function.start, function.start + min(function.blocks, default=0)}
        rest = (function.hits or 0) - sum(called[each] for each in entries)
        if rest > 0:
            yield f"0 [unknown] 0 1 {_escaped(function.symbol)} 0 0 {rest}\n"


def _is_in(function: CoveredFunction, address: int) -> bool:
    last = max(function.blocks, default=0)
    return address - function.start <= last + function.sizes.get(last, 0)


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace(" ", "\\ ")


EXPORTER = Fdata()
