"""What an earlier session has found out about functions whose calls are timed, kept by build-id beside entry plans.

Of each function where it ends, or why that is not known. It holds for what ``EntryPlans`` hold for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.binary.flow.exits import Exit, ExitKind, Exits
from anyprobe.binary.objects import cache
from anyprobe.core.refusal import Reason, Refusal

if TYPE_CHECKING:
    from anyprobe.binary.flow.cfg import CodeMap
    from anyprobe.binary.flow.function import FunctionCode

_KIND, _VERSION = "timedplans", 3
_TAIL, _CONDITIONAL, _INDIRECT = 1, 2, 4
_SHAPES = {"functions": 4, "exits": 4, "inside": 2, "parts": 1, "why": 1}
"""Arrays of 64-bit integers and their columns. ``functions``: start, number of exits, number of parts elsewhere, number
of the refusal or -1. ``exits``: address, bits, target or -1, number of ranges inside. ``inside``: start, end.
``parts``: start. ``why``: address."""

_Row = tuple[int, ...]


class TimedPlans:
    """What is known of the timed functions of one module."""

    def __init__(self, build_id: str | None, source: Mapping[str, object]) -> None:
        """Load what earlier sessions have kept that was made of the same ``source``."""
        self._build_id, self._source = build_id, source
        self._exits: dict[int, tuple[tuple[Exit, ...], tuple[int, ...], Refusal | None]] = {}
        """By the start of the function; with the starts of its parts elsewhere."""
        self._fresh = 0
        found = cache.load(build_id, _KIND, version=_VERSION)
        if found is not None and found[0].get("source") == dict(source):
            self._load(found[0].get("reasons"), found[1])

    # -- where functions end

    def exits_of(self, code_map: "CodeMap", function: "FunctionCode") -> Exits:
        """Return where a function ends, as ``FunctionCode.exits`` has it."""
        known = self._exits.get(function.start)
        parts = code_map.functions_at(known[1]) if known is not None else None
        if known is not None and parts is not None:
            return Exits(known[0], known[2], (function, *parts))
        found = function.exits
        if found.unmatched is None and not code_map.entries.has_more:
            self._exits[function.start] = found.found, tuple(each.start for each in found.parts[1:]), found.complete
            self._fresh += 1
        return found

    # -- on disk

    def save(self) -> None:
        """Write all to disk, if something is new."""
        if not self._fresh:
            return
        self._fresh = 0
        reasons: list[list[str]] = []
        rows: dict[str, list[_Row]] = {name: [] for name in _SHAPES}
        for start, (exits, parts, why) in self._exits.copy().items():  # other threads may add to it meanwhile
            rows["functions"].append((start, len(exits), len(parts), len(reasons) if why is not None else -1))
            if why is not None:
                reasons.append([why.reason.value, why.detail])
                rows["why"].append((why.address,))
            rows["parts"] += [(part,) for part in parts]
            rows["exits"] += map(_row, exits)
            rows["inside"] += [bounds for each in exits for bounds in each.inside]
        arrays = {name: np.array(rows[name], np.int64).reshape(-1, columns) for name, columns in _SHAPES.items()}
        cache.store(self._build_id, _KIND, {"source": dict(self._source), "reasons": reasons}, arrays, version=_VERSION)

    def _load(self, reasons: object, arrays: cache.Arrays) -> None:
        """Take what was kept, or nothing of it where it does not fit."""
        for name, columns in _SHAPES.items():
            array = arrays.get(name)
            if array is None or array.dtype.kind != "i" or array.ndim != 2 or array.shape[1] != columns:
                return
        rows: dict[str, list[_Row]] = {name: list(map(tuple, arrays[name].tolist())) for name in _SHAPES}
        try:
            refusals = _refusals(reasons, rows["why"])
            exits, inside, parts = iter(rows["exits"]), iter(rows["inside"]), iter(rows["parts"])
            for start, number, elsewhere, why in rows["functions"]:
                ends = tuple([_exit(next(exits), inside) for _ in range(number)])
                own = tuple([next(parts)[0] for _ in range(elsewhere)])
                self._exits[start] = ends, own, refusals[why] if why >= 0 else None
        except (StopIteration, ValueError, IndexError, TypeError):
            self._exits = {}


def _row(leaving: Exit) -> _Row:
    kind = _TAIL if leaving.kind is ExitKind.TAIL else 0
    bits = kind | (_CONDITIONAL if leaving.conditional else 0) | (_INDIRECT if leaving.indirect else 0)
    return leaving.address, bits, -1 if leaving.target is None else leaving.target, len(leaving.inside)


def _exit(row: _Row, inside: Iterator[_Row]) -> Exit:
    address, bits, target, ranges = row
    kind = ExitKind.TAIL if bits & _TAIL else ExitKind.RET
    within = tuple([(low, high) for low, high in (next(inside) for _ in range(ranges))])
    aim = None if target < 0 else target
    return Exit(address, kind, bool(bits & _CONDITIONAL), bool(bits & _INDIRECT), aim, within)


def _refusals(reasons: object, places: Sequence[_Row]) -> list[Refusal]:
    """Return the refusals that were kept: their reasons and details, and their addresses."""
    if not isinstance(reasons, list):
        raise TypeError("no list of reasons")
    pairs = zip(reasons, places, strict=True)
    return [Refusal(Reason(str(reason)), address, str(detail)) for (reason, detail), (address,) in pairs]
