"""Plans of plain entry probes, kept on disk by build-id: how many instructions to displace, and what may be clobbered.

Only the commonest outcome is kept: a jump at the entry of a function without branches back to it. Everything else is
planned anew. A plan holds for the same code seen with the same knowledge of who may enter it where, so what is known
(symbols, unwind tables, stored pointers) is part of the key.
"""

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from anyprobe.binary import cache
from anyprobe.binary.text import ModuleText
from anyprobe.isa.decode import decode_range
from anyprobe.isa.registers import mask_of, names_of
from anyprobe.splice.patchcode import SCRATCH_ORDER, Clobbers
from anyprobe.splice.planned import JUMP_BYTES, PlannedSplice, Strategy, Want

_KIND, _VERSION = "entryplans", 3
_WORTH_SAVING = 64


class _EntryPlan(NamedTuple):
    head: int
    size: int
    dead: int
    flags: bool


class EntryPlans:
    """The remembered plans of one module."""

    def __init__(self, text: ModuleText, build_id: str | None) -> None:
        """Load what earlier sessions found."""
        self._text, self._build_id = text, build_id
        self._fresh = 0
        self._plans: dict[int, _EntryPlan] = {}
        found = cache.load(build_id, _KIND, version=_VERSION)
        if found is not None and found[0].get("knowledge") == self._knowledge():
            rows = zip(*(found[1][name].tolist() for name in ("start", "head", "size", "dead", "flags")), strict=True)
            self._plans = {start: _EntryPlan(head, size, dead, bool(flags)) for start, head, size, dead, flags in rows}
        self._clobbers: dict[tuple[int, bool], Clobbers] = {}

    def _knowledge(self) -> int:
        known = zlib.crc32(self._text.entries.tobytes())
        return zlib.crc32(self._text.function_ends.tobytes(), zlib.crc32(self._text.function_starts.tobytes(), known))

    def find(self, start: int, want: Want) -> PlannedSplice | None:
        """Return the remembered splice for the entry of the function at ``start``."""
        plan = self._plans.get(start)
        if plan is None or plan.head != want.address:
            return None
        insns = tuple(decode_range(self._text.memory.read(plan.head, plan.size), plan.head))
        return PlannedSplice(Strategy.JUMP, plan.head, insns, [want], JUMP_BYTES, plan.head)

    def clobbers(self, start: int) -> Clobbers | None:
        """Return what code at a remembered entry may overwrite."""
        plan = self._plans.get(start)
        if plan is None:
            return None
        key = (plan.dead, plan.flags)
        found = self._clobbers.get(key)
        if found is None:
            names = names_of(plan.dead)
            found = self._clobbers[key] = Clobbers(tuple(n for n in SCRATCH_ORDER if n in names), plan.flags)
        return found

    def remember(self, start: int, splice: PlannedSplice, clobbers: Clobbers) -> None:
        """Keep a plan."""
        self._plans[start] = _EntryPlan(
            splice.head, splice.end - splice.head, mask_of(clobbers.registers), clobbers.flags
        )
        self._fresh += 1

    def save(self) -> None:
        """Write the plans to disk, where there are enough new ones."""
        if self._fresh < min(_WORTH_SAVING, len(self._plans) or 1):
            return
        self._fresh = 0
        rows = sorted((start, *plan) for start, plan in self._plans.items())
        columns = list(zip(*rows, strict=True))
        arrays: Mapping[str, np.ndarray] = {
            name: np.array(column, dtype=np.int64)
            for name, column in zip(("start", "head", "size", "dead", "flags"), columns, strict=True)
        }
        cache.store(self._build_id, _KIND, {"knowledge": self._knowledge()}, arrays, version=_VERSION)
