"""Conservation of flow: what the counts of a function's blocks say of each other, whatever the function does.

Each block has a node for what enters it and one for what leaves it, each edge joins two of these. Within what is joined
the counts of the blocks that are left and of those that are entered have equal sums. Nothing else follows from counts
of blocks alone: with this, some counts of edges fit them all. What is outside of the function is one more block, and
one that is not counted has its two nodes joined.

Tasks that sleep in a block have entered it and not left it yet.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.flow.noreturn_flow import NoReturnFunctions
from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.isa.decode import Flow, Insn, decode_range
from anyprobe.probes.providers.kernel.code import LiveModule, RunningCode

OUTSIDE = -1
_CALLS = frozenset({Flow.CALL, Flow.INDIRECT_CALL})


@dataclass(frozen=True)
class Graph:
    """The blocks of a function, by where they begin, and where control may go from each."""

    edges: Mapping[int, frozenset[int]]
    calling: frozenset[int]
    """Blocks in which tasks may sleep, since they call."""
    switching: frozenset[int]
    """Blocks in which a processor goes over to another task."""

    def components(self, counted: Collection[int]) -> list["Component"]:
        """Return blocks that are left, and blocks that are entered, whose counts have the same sum."""
        parents: dict[tuple[int, bool], tuple[int, bool]] = {}

        def root(node: tuple[int, bool]) -> tuple[int, bool]:
            while node in parents:
                node = parents[node]
            return node

        def join(one: tuple[int, bool], other: tuple[int, bool]) -> None:
            one, other = root(one), root(other)
            if one != other:
                parents[one] = other

        for block, targets in self.edges.items():
            for target in targets:
                join((block, True), (target, False))
            if block not in counted:
                join((block, True), (block, False))
        found: dict[tuple[int, bool], Component] = {}
        for block in counted:
            found.setdefault(root((block, True)), Component([], [])).left.append(block)
            found.setdefault(root((block, False)), Component([], [])).entered.append(block)
        outside = found.get(root((OUTSIDE, True)))
        if outside is not None:
            outside.is_outside = True
        return list(found.values())


@dataclass
class Component:
    """Blocks that are left and blocks that are entered, with equal sums."""

    left: list[int]
    entered: list[int]
    is_outside: bool = False
    """Whether calls begin and end here: those that have not ended are missing, wherever they are."""


def graph_of(code: RunningCode, module: LiveModule, function: FunctionCode, blocks: Collection[int]) -> Graph | None:
    """Return how a function's blocks lead to each other, as its text is now; ``None`` where that is not known."""
    if function.complete is not None:
        return None
    starts = sorted(blocks)
    text = code.text_now(starts[0], function.end)
    noreturn = module.code.analyses.get(NoReturnFunctions)
    switch = _symbols().get("__switch_to_asm", 0) - BIAS
    fixups: dict[int, set[int]] = {}
    rows = module.image.tables.fixups
    for place, target in rows[(rows[:, 0] >= starts[0]) & (rows[:, 0] < function.end)].tolist():
        fixups.setdefault(place, set()).add(target)
    edges: dict[int, set[int]] = {}
    calling, switching = set(), set()
    for start, end in zip(starts, [*starts[1:], function.end], strict=True):
        edges[start] = {end}
        for insn in decode_range(text[start - starts[0] : end - starts[0]], start):
            if insn.flow in _CALLS:
                calling.add(start)
            if insn.target == switch:
                switching.add(start)
            edges[start] |= fixups.get(insn.address, set())
            after = _after(function, insn, noreturn)
            if after is not None:
                edges[start] = edges[start] - {end} | after
                break
    known = set(starts)
    outside = _from_outside(module, function) | {starts[0]}
    entered = outside.union(*edges.values())
    if any(starts[0] <= at < function.end for at in entered - known):
        return None  # something is entered that is no block
    whole = {start: frozenset(at if at in known else OUTSIDE for at in targets) for start, targets in edges.items()}
    return Graph(whole | {OUTSIDE: frozenset(outside)}, frozenset(calling), frozenset(switching))


def _after(function: FunctionCode, insn: Insn, noreturn: NoReturnFunctions) -> set[int] | None:
    """Return where control may go after an instruction that ends a block; ``None`` if it goes on."""
    if insn.flow is Flow.JCC:
        assert insn.target is not None
        return {insn.target, insn.end}
    if insn.flow is Flow.JUMP:
        assert insn.target is not None
        return {insn.target}
    if insn.flow is Flow.INDIRECT_JUMP:
        table = function.table_of(insn.address)
        return {OUTSIDE} if table is None else set(table.targets)
    if insn.flow is Flow.CALL and insn.target in noreturn:
        return {OUTSIDE}
    return None if insn.falls_through else {OUTSIDE}


def _from_outside(module: LiveModule, function: FunctionCode) -> set[int]:
    """Return where code of other functions, or a stored pointer, may lead within a function."""
    pointed = module.code.text.pointed
    low, high = function.start + 1, function.end
    found = {at for at in module.code.entries.static_entries(low, high) if at in pointed}
    for target, source, kind in module.code.entries.references_into(low, high):
        if kind not in (Kind.NEAR, Kind.SHORT) or not function.start <= source < high:
            found.add(target)
    return {at for at in found if at not in function.table_targets}


@dataclass(frozen=True)
class Tasks:
    """All tasks but this one at some time."""

    returning: Counter[int]
    """The return addresses on their kernel stacks, at addresses of the analysis; those of scheduling are not told."""
    number: int
    born: int
    """How many there have been since the kernel has started."""

    def within(self, blocks: Collection[int], end: int) -> Counter[int]:
        """Return how many return addresses are in each block of a function that ends somewhere."""
        starts = sorted(blocks)
        found: Counter[int] = Counter()
        for address, times in self.returning.items():
            if starts[0] < address <= end:
                found[max(start for start in starts if start < address)] += times
        return found


def tasks() -> Tasks:
    """Look at all tasks."""
    found: Counter[int] = Counter()
    symbols, number = _symbols(), 0
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        if int(task.parts[2]) == os.getpid():
            continue
        with suppress(OSError):
            found.update(_frames((task / "stack").read_text(), symbols))
            number += 1
    (born,) = (line.split()[1] for line in Path("/proc/stat").read_text().splitlines() if line.startswith("processes"))
    return Tasks(found, number, int(born))


def is_of_scheduling(function: FunctionCode) -> bool:
    """Return whether a function is one of those that are left out of stacks."""
    low, high = (_symbols().get(f"__sched_text_{which}", 0) - BIAS for which in ("start", "end"))
    return low <= function.start < high


@cache
def _symbols() -> dict[str, int]:
    """Return the addresses of all functions, by their names as stacks have them."""
    lines = map(str.split, Path("/proc/kallsyms").read_text().splitlines())
    return {" ".join([name, *module]): int(address, 16) for address, _, name, *module in lines}


def _frames(stack: str, symbols: Mapping[str, int]) -> Iterator[int]:
    for line in stack.splitlines():
        place, *module = line.split()[1:]
        name, _, offset = place.partition("+")
        start = symbols.get(" ".join([name, *module]))
        if start is not None:
            yield start + int(offset.partition("/")[0], 16) - BIAS
