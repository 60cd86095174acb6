"""Plans of plain entry probes, kept on disk by build-id: how many instructions to displace.

Only the commonest outcome is kept here: a jump at the entry of a function without branches back to it. ``KeptPlans``
has the others. Of every function that was probed it is kept which others it is planned together with, and what code at
its entry and its exits may overwrite. All this holds
for one file with one content, read and planned by this very version of our code with the same knowledge of who may
enter it where (symbols, unwind tables, stored pointers): all of that stands beside the plans.
"""

import threading
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anyprobe import splice
from anyprobe.binary.objects import cache
from anyprobe.binary.objects.table_store import state_of_code
from anyprobe.binary.objects.text import ModuleText
from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.refusal import Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Insn, decode_range
from anyprobe.isa.lines import MOST, KeptLine, shape_of
from anyprobe.isa.registers import mask_of, names_of
from anyprobe.splice.plan.splices import SCRATCH_ORDER, Clobbers, PlannedSplice, Strategy, Want, WantKind
from anyprobe.splice.plan.together import first_of

if TYPE_CHECKING:
    from anyprobe.binary.flow.cfg import CodeMap
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.splice.plan.kept_plans import KeptPlans
    from anyprobe.splice.plan.timed_plans import TimedPlans

_KIND, _VERSION = "entryplans", 7
_PLANNED = ("start", "head", "size", "shape")
_TOGETHER = ("member", "first")
_DEAD = ("site", "dead")
"""What may be overwritten, as a mask of registers and ``_FLAGS``, by ``_key``."""
_FLAGS = 1 << 62


class _EntryPlan(NamedTuple):
    head: int
    size: int
    shape: int
    """The shape of the displaced line, see ``isa.lines``."""


class EntryPlans:
    """The remembered plans of one module."""

    def __init__(self, text: ModuleText, build_id: str | None) -> None:
        """Load what earlier sessions found."""
        self._text = text
        self._build_id = build_id if text.store is not None and state_of_code(splice) else None
        self._saving = threading.Lock()
        """Held while a state is taken and written: what another thread took before must not be written after it."""
        self._fresh = 0
        self._plans: dict[int, _EntryPlan] = {}
        self._firsts: dict[int, int] = {}
        self._passing: dict[int, int] = {}
        """The same, of what only one program may enter: later sessions look anew."""
        self._dead: dict[int, int] = {}
        """By ``_key``: the mask of what may be overwritten."""
        self._clobbers: dict[int, Clobbers] = {}
        found = cache.load(self._build_id, _KIND, version=_VERSION)
        if found is not None and found[0] == self._source() and _fits(found[1]):
            rows = zip(*(found[1][name].tolist() for name in _PLANNED), strict=True)
            self._plans = {start: _EntryPlan(*row) for start, *row in rows}
            self._firsts = dict(zip(*(found[1][name].tolist() for name in _TOGETHER), strict=True))
            self._dead = dict(zip(*(found[1][name].tolist() for name in _DEAD), strict=True))

    def _source(self) -> dict[str, object]:
        """Return what the plans hold for."""
        text = self._text
        known = zlib.crc32(text.entries.tobytes())
        known = zlib.crc32(text.function_ends.tobytes(), zlib.crc32(text.function_starts.tobytes(), known))
        source = text.store.source if text.store is not None else {}
        return {**source, "planner": state_of_code(splice), "knowledge": known}

    @Lazy
    def timed(self) -> "TimedPlans":
        """What is remembered of functions whose calls are timed; loaded when it is first asked for."""
        from anyprobe.splice.plan.timed_plans import TimedPlans

        return TimedPlans(self._build_id, self._source())

    @Lazy
    def others(self) -> "KeptPlans":
        """The plans for entries and ends that are not plain ones; loaded when they are first asked for."""
        from anyprobe.splice.plan.kept_plans import ENDS, KeptPlans

        return KeptPlans(self._text.memory, self._build_id, self._source(), ENDS)

    @Lazy
    def blocks(self) -> "KeptPlans":
        """The plans for instructions within functions, such as all of their blocks; loaded likewise."""
        from anyprobe.splice.plan.kept_plans import BLOCKS, KeptPlans

        return KeptPlans(self._text.memory, self._build_id, self._source(), BLOCKS)

    def find(self, start: int, want: Want, code: bytes = b"") -> PlannedSplice | None:
        """Return the remembered splice for the entry of the function at ``start``; ``code``: its bytes, if at hand."""
        plan = self._plans.get(start)
        if plan is None or plan.head != want.address:
            return None
        head, size, shape = plan
        at = head - start
        content = code[at : at + size] if 0 <= at <= len(code) - size else self._text.memory.read(head, size)
        insns: Sequence[Insn]
        insns = KeptLine(content, head, shape) if shape else tuple(decode_range(content, head))
        return PlannedSplice(Strategy.JUMP, head, insns, (want,), JUMP_BYTES, head)

    def remember(self, start: int, splice: PlannedSplice) -> None:
        """Keep the plan of the function at ``start``: a plain jump at its entry."""
        self._plans[start] = _EntryPlan(splice.head, splice.end - splice.head, shape_of(splice.insns))
        self._fresh += 1

    def clobbers(self, want: Want, *, skipping: bool) -> Clobbers | None:
        """Return what may be overwritten at an entry or exit; ``skipping``: faults may have been skipped before it."""
        mask = self._dead.get(_key(want, skipping=skipping))
        if mask is None:
            return None
        found = self._clobbers.get(mask)
        if found is None:
            names = names_of(mask & ~_FLAGS)
            registers = tuple(name for name in SCRATCH_ORDER if name in names)
            found = self._clobbers[mask] = Clobbers(registers, bool(mask & _FLAGS))
        return found

    def note_clobbers(self, want: Want, found: Clobbers, *, skipping: bool) -> None:
        """Keep what may be overwritten."""
        if set(found.registers) <= set(SCRATCH_ORDER):
            self._dead[_key(want, skipping=skipping)] = mask_of(found.registers) | _FLAGS * found.flags
            self._fresh += 1

    def first_of(self, code_map: "CodeMap", function: "FunctionCode") -> "FunctionCode":
        """Return the first of the functions that are planned together with one."""
        start = self._firsts.get(function.start, self._passing.get(function.start))
        known = code_map.function_at(start) if start is not None else None
        if known is not None and not isinstance(known, Refusal):
            return known
        found = first_of(code_map, function)
        if code_map.entries.has_more:
            self._passing[function.start] = found.start
        else:
            self._firsts[function.start] = found.start
            self._fresh += 1
        return found

    def save(self) -> None:
        """Write what is new to disk."""
        with self._saving:
            for loaded in (EntryPlans.timed.made(self), EntryPlans.others.made(self), EntryPlans.blocks.made(self)):
                if loaded is not None:
                    loaded.save()
            self._save()

    def _save(self) -> None:
        """Write those that stand here."""
        if not self._fresh:
            return
        self._fresh = 0
        plans, firsts, dead = self._plans.copy(), self._firsts.copy(), self._dead.copy()  # other threads may add
        rows = sorted((start, *plan) for start, plan in plans.items())
        planned = list(zip(*rows, strict=True)) or [()] * len(_PLANNED)
        columns = [*planned, [*firsts], [*firsts.values()], [*dead], [*dead.values()]]
        names = (*_PLANNED, *_TOGETHER, *_DEAD)
        arrays = {name: np.array(column, np.int64) for name, column in zip(names, columns, strict=True)}
        cache.store(self._build_id, _KIND, self._source(), arrays, version=_VERSION)


def _key(want: Want, *, skipping: bool) -> int:
    return want.address << 2 | skipping << 1 | (want.kind is WantKind.ENTRY)


def _fits(arrays: cache.Arrays) -> bool:
    """Return whether what was kept has the form of what ``save`` writes."""
    for names in (_PLANNED, _TOGETHER, _DEAD):
        if not arrays.keys() >= set(names) or len({arrays[name].shape for name in names}) != 1:
            return False
        if any(arrays[name].ndim != 1 or arrays[name].dtype.kind != "i" for name in names):
            return False
    shapes = arrays["shape"]
    sizes = sum(shapes >> 8 * number & 15 for number in range(MOST))
    return bool((((sizes == arrays["size"]) & (shapes >> 8 * MOST == 0)) | (shapes == 0)).all())
