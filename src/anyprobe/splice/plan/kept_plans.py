"""Plans of earlier sessions, kept by build-id beside entry plans: of functions of which more was probed than entries.

A plan is kept with all that it was made from and that may be different the next time: what was wanted, what was claimed
around the function, and where springboards could be. Where all that is the same, planning would come to the same, and
is left out. The rest is the same by what ``EntryPlans`` hold for. Sessions in several threads may share one module's.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, pairwise
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects import cache
from anyprobe.splice.plan.plan_records import (
    NotKeptError,
    PlanReader,
    Reasons,
    Row,
    asked_row,
    conditions_row,
    plan_row,
    read_conditions,
    reader_of,
)
from anyprobe.splice.plan.questions import Questions
from anyprobe.splice.plan.splices import AUTO, FunctionPlan, Want

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.core.memory import Memory
    from anyprobe.splice.plan.context import PlanContext

ENDS, BLOCKS = "plans", "blockplans"
"""Kinds of entries: few probes of a function are not to read what is kept of all of its blocks."""
_VERSION = 2
_MOST_WANTS = 1 << 14
"""The most wants of a function whose plan is kept."""
_MOST_ASKED = 4096
"""Nor where more places for springboards were looked at."""
_MOST_OF_ONE, _MOST_NUMBERS = 32, 1 << 16
"""Plans of one function that are kept, for different wants or surroundings: four puns have 16 ways to be reachable. Of
how many numbers these are, the latest one aside."""
_ARRAYS = {"starts": np.int64, "firsts": np.int64, "rows": np.int32}

Making = Callable[["PlanContext"], FunctionPlan]
"""Makes a plan in a context."""


class KeptPlans:
    """The plans of one module that are kept."""

    def __init__(self, memory: "Memory", build_id: str | None, source: Mapping[str, object], kind: str) -> None:
        """Load what earlier sessions have kept that was made of the same ``source``; ``memory`` has the code."""
        self._build_id, self._source, self._kind = build_id, source, kind
        self._reasons = Reasons()
        self._reader = PlanReader(memory, self._reasons)
        self._rows: dict[int, list[array[int] | NDArray[np.int32]]] = {}
        """By the start of the function, the last one first; no list is changed, it is replaced."""
        self._fresh = 0
        self._noting = Lock()
        found = cache.load(build_id, kind, version=_VERSION)
        if found is not None and found[0].get("source") == dict(source):
            self._load(found[0].get("reasons"), found[1])

    def knows(self, start: int) -> bool:
        """Return whether there are plans of the function at an address."""
        return start in self._rows

    def plan(
        self,
        context: "PlanContext",
        function: "FunctionCode",
        wants: Sequence[Want],
        vital: AbstractSet[Want],
        make: Making,
    ) -> FunctionPlan:
        """Return the plan for some wants of a function: one that is kept, or what ``make`` makes, which is kept then.

        ``context`` is what plans respect, with the module's claims as if the function had no splices.
        """
        start = function.start
        if not _are_kept(context, wants):
            return make(context)
        if start in self._rows:
            asked = _asked(context, start, wants, vital)
            found = self._found(context, start, asked, wants) if asked is not None else None
            if found is not None:
                return found
        questions, claims = Questions(), context.claims
        claims.questions = questions
        try:
            plan = make(context.asking(questions.asking(context.reachable)))
        finally:
            claims.questions = None
        if plan.is_plain(wants) and start not in self._rows:
            return plan  # ``EntryPlans`` have these, and are asked where nothing else was ever wanted of the function
        asked = _asked(context, start, wants, vital)
        if asked is not None:
            self._note(context, start, asked, wants, plan, questions)
        return plan

    def _found(self, context: "PlanContext", start: int, asked: Row, wants: Sequence[Want]) -> FunctionPlan | None:
        """Return the plan that is kept for what is asked, if there is one and it holds."""
        size = len(asked)
        for kept in self._rows.get(start, ()):
            row = kept.tolist()
            if row[:size] == asked:
                found = self._read(context, start, row[size:], wants)
                if found is not None:
                    return found
        return None

    def _read(
        self, context: "PlanContext", start: int, row: Sequence[int], wants: Sequence[Want]
    ) -> FunctionPlan | None:
        """Return the plan of a row, if all that it depends on is as it was."""
        read = reader_of(row, start)
        try:
            if not read_conditions(read, context.claims, context.reachable):
                return None
            scope = context.code.functions_at(self._reader.scope(read))
            if scope is None:
                return None
            with context.claims.trial() as claims:
                splices = self._reader.splices(read, wants, claims, context.bias)
            if splices is None:
                return None
            return FunctionPlan(tuple(splices), tuple(self._reader.refused(read, wants)), scope=scope)
        except (StopIteration, ValueError, LookupError):
            return None

    def _note(
        self,
        context: "PlanContext",
        start: int,
        asked: Row,
        wants: Sequence[Want],
        plan: FunctionPlan,
        questions: Questions,
    ) -> None:
        """Keep a plan, if it can be."""
        if not questions.is_steady or len(questions.reach) > _MOST_ASKED:
            return
        if context.code.entries.has_more:  # since the plan was begun
            return
        try:
            row = plan_row(start, wants, plan, questions, context.bias, self._reasons)
            made = array("i", [*asked, *conditions_row(start, questions, context.claims), *row])
        except (NotKeptError, OverflowError):
            return
        with self._noting:
            self._fresh += 1
            rows = [made, *self._rows.get(start, ())][:_MOST_OF_ONE]
            sizes = list(accumulate(map(len, rows)))
            self._rows[start] = rows[: max(bisect_right(sizes, _MOST_NUMBERS), 1)]

    # -- on disk

    def save(self) -> None:
        """Write all to disk, if something is new."""
        with self._noting:
            if not self._fresh:
                return
            self._fresh, known = 0, self._rows.copy()
        reasons = self._reasons.known.copy()  # later than the rows that name them
        starts = [start for start, rows in known.items() for _ in rows]
        rows = [np.asarray(row, np.int32) for rows in known.values() for row in rows]
        firsts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        arrays: cache.Arrays = {"starts": np.array(starts, np.int64), "firsts": firsts, "rows": np.concatenate(rows)}
        values = {"source": dict(self._source), "reasons": reasons}
        cache.store(self._build_id, self._kind, values, arrays, version=_VERSION)

    def _load(self, reasons: object, arrays: cache.Arrays) -> None:
        """Take what was kept, or nothing of it where it does not fit."""
        if any(name not in arrays or arrays[name].dtype != kind for name, kind in _ARRAYS.items()):
            return
        starts, firsts, rows = (arrays[name] for name in _ARRAYS)
        if not _fit(starts, firsts, rows) or not isinstance(reasons, list):
            return
        try:
            self._reasons.known = [(str(reason), str(detail)) for reason, detail in reasons]
        except (TypeError, ValueError):
            return
        for start, (low, high) in zip(starts.tolist(), pairwise(firsts.tolist()), strict=True):
            self._rows.setdefault(start, []).append(rows[low:high])


def _are_kept(context: "PlanContext", wants: Sequence[Want]) -> bool:
    """Return whether plans for some wants are kept."""
    if not wants or len(wants) > _MOST_WANTS or context.allowed != AUTO or context.writable or context.retired:
        return False
    return not context.code.entries.has_more  # they are those of one program, which the next session may not have


def _asked(context: "PlanContext", start: int, wants: Sequence[Want], vital: AbstractSet[Want]) -> Row | None:
    """Return what is asked for; ``None`` where plans for that are not kept."""
    return asked_row(start, wants, vital, context.faults_handled | context.pcs_shown << 1)


def _fit(starts: "NDArray[np.int64]", firsts: "NDArray[np.int64]", rows: "NDArray[np.int32]") -> bool:
    """Return whether arrays have the form of those that are kept."""
    if any(each.ndim != 1 for each in (starts, firsts, rows)) or len(firsts) != len(starts) + 1:
        return False
    return bool(firsts[0] == 0 and firsts[-1] == len(rows) and np.all(firsts[:-1] <= firsts[1:]))
