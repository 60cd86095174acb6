"""What of a program has run: blocks, functions and source lines, with how often, of one run or the sum of several."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

START, ATTACH = "start", "attach"

Hits = int | None
"""How often something has run; None: that is not known, since no probe could be placed there.

Where that is not counted, it is in how many runs and processes it has run.
"""


@dataclass(frozen=True, slots=True)
class Branch:
    """One conditional jump: how often it was taken, and how often control went on after it."""

    taken: Hits
    not_taken: Hits
    file: str = ""
    line: int = 0
    """Where it is in the source, 0 where that is not known."""

    def plus(self, other: "Branch | None") -> "Branch":
        """Return the sum of two runs."""
        if other is None:
            return self
        taken, not_taken = _sum(self.taken, other.taken), _sum(self.not_taken, other.not_taken)
        return dataclasses.replace(self, taken=taken, not_taken=not_taken)


@dataclass(frozen=True, slots=True)
class Edge:
    """One way that control may go, from an instruction to another, and how often it has."""

    at: int
    """The offset of the branch, or of the last instruction before another block, from the start of its function."""
    to: int
    """A link-time address, maybe in another function."""
    hits: Hits
    calls: bool = False
    """Whether it is a call."""

    def as_json(self) -> dict[str, Any]:
        """Return it for a document."""
        return {"at": self.at, "to": self.to, "hits": self.hits, "calls": self.calls}


@dataclass(frozen=True, slots=True)
class CoveredFunction:
    """One function, with its blocks by their offsets from its start."""

    name: str
    start: int
    """Its link-time address."""
    blocks: Mapping[int, Hits]
    file: str = ""
    line: int = 0
    """Where its code begins in the source, 0 where that is not known."""
    sizes: Mapping[int, int] = field(default_factory=dict)
    """How many bytes its blocks have, by their offsets, of those of which that is known."""
    branches: Mapping[int, Branch] = field(default_factory=dict)
    """Its conditional jumps by their offsets, where these were asked for."""
    edges: tuple[Edge, ...] = ()
    """Its direct branches and calls, the targets of its jump tables, and where one block runs on into the next."""
    symbol: str = ""
    """Where edges were asked for: the name that its file has for its start, numbered where it is local."""

    @property
    def hits(self) -> Hits:
        """How often it was entered at its start."""
        return self.blocks[min(self.blocks)] if self.blocks else None


@dataclass(frozen=True, slots=True)
class Tally:
    """How many things have run, of how many; and of how many of these that is not known."""

    covered: int = 0
    total: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, hits: Iterable[Hits]) -> "Tally":
        """Count what has run."""
        found = list(hits)
        return cls(sum(bool(each) for each in found), len(found), sum(each is None for each in found))

    def __add__(self, other: "Tally") -> "Tally":
        """Return the sum."""
        return Tally(self.covered + other.covered, self.total + other.total, self.unknown + other.unknown)

    @property
    def known(self) -> int:
        """How many there are of which it is known whether they have run."""
        return self.total - self.unknown

    @property
    def share(self) -> float | None:
        """What part of all has run (0 to 1), None of nothing. What is not known counts as not run."""
        return self.covered / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class CoveredModule:
    """One file with code: its functions, and the lines of the sources that these were compiled from."""

    name: str
    path: str
    build_id: str | None = None
    functions: tuple[CoveredFunction, ...] = ()
    files: Mapping[str, Mapping[int, Hits]] = field(default_factory=dict)
    """Source files by path, with the hits of their lines that have code: of a line with several blocks, the most."""
    without_lines: str = ""
    """Why there are no lines, where there are none."""
    counted: bool = True
    """Whether it is known how often things have run, not only which."""
    base: int = 0
    """The link-time address at which the file begins in memory, and where it ends."""
    end: int = 0

    @property
    def key(self) -> str:
        """What is the same in all runs of the same file."""
        return self.build_id or self.path

    @property
    def blocks(self) -> Tally:
        """How many blocks have run."""
        return Tally.of(hits for each in self.functions for hits in each.blocks.values())

    @property
    def entered(self) -> Tally:
        """How many functions were entered."""
        return Tally.of(each.hits for each in self.functions)

    @property
    def lines(self) -> Tally:
        """How many lines have run."""
        return Tally.of(hits for lines in self.files.values() for hits in lines.values())

    @property
    def tallies(self) -> dict[str, Tally]:
        """How much has run, by what there is."""
        found = {"functions": self.entered, "blocks": self.blocks, "lines": self.lines}
        return found | ({"branches": self.branches} if self.branches.total else {})

    @property
    def branches(self) -> Tally:
        """How many of the two ways of each conditional jump were gone, where these were asked for."""
        found = (one for each in self.functions for one in each.branches.values())
        return Tally.of(hits for one in found for hits in (one.taken, one.not_taken))

    def plus(self, other: "CoveredModule") -> "CoveredModule":
        """Return the sum of two runs of the same file."""
        functions = {each.start: each for each in self.functions}
        for each in other.functions:
            known = functions.get(each.start)
            blocks = each.blocks if known is None else added(known.blocks, each.blocks)
            sizes = each.sizes if known is None else {**known.sizes, **each.sizes}
            branches = {} if known is None else dict(known.branches)
            branches |= {at: one.plus(branches.get(at)) for at, one in each.branches.items()}
            edges = each.edges if known is None else _together(known.edges, each.edges)
            symbol = each.symbol or ("" if known is None else known.symbol)
            functions[each.start] = CoveredFunction(
                each.name, each.start, blocks, each.file, each.line, sizes, branches, edges, symbol
            )
        files = dict(self.files)
        for path, lines in other.files.items():
            files[path] = added(files.get(path, {}), lines)
        ordered, counted = tuple(functions[start] for start in sorted(functions)), self.counted and other.counted
        base, end = other.base or self.base, other.end or self.end
        return dataclasses.replace(self, functions=ordered, files=files, counted=counted, base=base, end=end)

    def beyond(self, other: "CoveredModule | None") -> "CoveredModule":
        """Return what has run here and not in another run, or ever where there was none."""
        functions = {each.start: each.blocks for each in other.functions} if other else {}
        files = other.files if other else {}
        new = [
            dataclasses.replace(each, blocks=_new(each.blocks, functions.get(each.start, {})), edges=())
            for each in self.functions
        ]
        lines = {path: _new(lines, files.get(path, {})) for path, lines in self.files.items()}
        return dataclasses.replace(
            self,
            functions=tuple(each for each in new if each.blocks),
            files={path: each for path, each in lines.items() if each},
        )


@dataclass(frozen=True, slots=True)
class Coverage:
    """What has run of each file with code, since the probes were placed."""

    modules: tuple[CoveredModule, ...] = ()
    since: str = ATTACH
    """Where this begins: at the program's ``start``, or at ``attach``; what ran before that is not known."""
    lazy: bool = False
    """Whether blocks got their probes as functions were entered for the first time."""

    def __add__(self, other: "Coverage") -> "Coverage":
        """Return the sum of two runs, or of two processes."""
        found: dict[str, CoveredModule] = {}
        for each in (*self.modules, *other.modules):
            found[each.key] = found[each.key].plus(each) if each.key in found else each
        since = {each.since for each in (self, other) if each.modules}
        return Coverage(tuple(found.values()), START if since == {START} else ATTACH, self.lazy or other.lazy)

    @property
    def files(self) -> dict[str, dict[int, Hits]]:
        """The lines of each source file, in all modules that have code of it, in the order of paths."""
        found: dict[str, dict[int, Hits]] = {}
        for module in self.modules:
            for path, lines in module.files.items():
                found[path] = added(found.get(path, {}), lines)
        return dict(sorted(found.items()))

    @property
    def branches(self) -> dict[str, dict[int, list[Branch]]]:
        """The conditional jumps of each line of source files."""
        found: dict[str, dict[int, list[Branch]]] = {}
        for branch in (one for module in self.modules for each in module.functions for one in each.branches.values()):
            found.setdefault(branch.file, {}).setdefault(branch.line, []).append(branch)
        return found

    @property
    def counted(self) -> bool:
        """Whether it is known how often things have run, not only which."""
        return all(each.counted for each in self.modules)

    def as_json(self) -> dict[str, Any]:
        """Return the members of a JSON document: ``modules`` and ``files``; a line's hits are null if not known."""
        return {
            "covered_since": self.since,
            "covered_lazily": self.lazy,
            "modules": [
                {
                    "module": each.name,
                    "path": each.path,
                    "build_id": each.build_id,
                    **{name: dataclasses.asdict(tally) for name, tally in each.tallies.items()},
                    "symbols": [
                        {
                            "function": one.name,
                            "start": one.start,
                            "file": one.file,
                            "line": one.line,
                            "blocks": _by_text(one.blocks),
                            "sizes": _by_text(one.sizes),
                            "branches": {str(at): dataclasses.asdict(branch) for at, branch in one.branches.items()},
                            **(
                                {"symbol": one.symbol, "edges": [each.as_json() for each in one.edges]}
                                if one.symbol or one.edges
                                else {}
                            ),
                        }
                        for one in each.functions
                    ],
                    "files": _files_json(each.files),
                    "without_lines": each.without_lines,
                    "counted": each.counted,
                    "base": each.base,
                    "end": each.end,
                }
                for each in self.modules
            ],
            "files": _files_json(self.files),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Coverage":
        """Return a document's coverage; raise ``KeyError``, ``TypeError`` or ``ValueError`` where it has none."""
        return cls(
            tuple(
                CoveredModule(
                    each["module"],
                    each["path"],
                    each["build_id"],
                    tuple(
                        CoveredFunction(
                            one["function"],
                            one["start"],
                            _by_number(one["blocks"]),
                            one["file"],
                            one["line"],
                            {at: size or 0 for at, size in _by_number(one.get("sizes", {})).items()},
                            {int(at): Branch(**branch) for at, branch in one.get("branches", {}).items()},
                            tuple(Edge(**edge) for edge in one.get("edges", ())),
                            one.get("symbol", ""),
                        )
                        for one in each["symbols"]
                    ),
                    {one["file"]: _by_number(one["lines"]) for one in each["files"]},
                    each["without_lines"],
                    each.get("counted", True),
                    each.get("base", 0),
                    each.get("end", 0),
                )
                for each in document["modules"]
            ),
            document.get("covered_since", ATTACH),
            document.get("covered_lazily", False),
        )

    def beyond(self, other: "Coverage | None") -> "Coverage":
        """Return what has run here and not there, of the same files; all where there is no other."""
        there = {each.key: each for each in other.modules} if other is not None else {}
        found = [each.beyond(there[each.key]) if each.key in there else each.beyond(None) for each in self.modules]
        return Coverage(tuple(each for each in found if each.functions or each.files), self.since, self.lazy)


def added(one: Mapping[int, Hits], other: Mapping[int, Hits]) -> dict[int, Hits]:
    """Return the sums of hits. What is not known of one run and did not run in the other is not known."""
    return {each: _sum(one.get(each, 0), other.get(each, 0)) for each in sorted({**one, **other})}


def _together(some: Iterable[Edge], others: Iterable[Edge]) -> tuple[Edge, ...]:
    """Return the edges of two runs, with their sums."""
    found = {(each.at, each.to, each.calls): each for each in some}
    for each in others:
        key = each.at, each.to, each.calls
        found[key] = dataclasses.replace(each, hits=_sum(found[key].hits, each.hits)) if key in found else each
    return tuple(found.values())


def _sum(one: Hits, other: Hits) -> Hits:
    known = (one or 0) + (other or 0)
    return None if not known and (one is None or other is None) else known


def most(hits: Iterable[Hits]) -> Hits:
    """Return the hits of a line that has several blocks; not known if none that is known has run."""
    found = list(hits)
    return max((each for each in found if each is not None), default=0) or (None if None in found else 0)


def _new(here: Mapping[int, Hits], there: Mapping[int, Hits]) -> dict[int, Hits]:
    return {each: hits for each, hits in here.items() if hits and not there.get(each)}


def _by_text(hits: Mapping[int, Hits]) -> dict[str, Hits]:
    return {str(each): one for each, one in hits.items()}


def _by_number(hits: Mapping[str, Hits]) -> dict[int, Hits]:
    return {int(each): one for each, one in hits.items()}


def _files_json(files: Mapping[str, Mapping[int, Hits]]) -> list[dict[str, Any]]:
    return [{"file": path, "lines": _by_text(lines)} for path, lines in files.items()]
