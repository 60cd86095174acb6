"""Plans of plain entry probes, kept on disk by build-id: how many instructions to displace, and what may be clobbered.

Only the commonest outcome is kept: a jump at the entry of a function without branches back to it. Everything else is
planned anew. Of every function that was probed it is kept which others it is planned together with. All this holds for
the same code seen with the same knowledge of who may enter it where, so what is known (symbols, unwind tables, stored
pointers) is part of the key.
"""

import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anyprobe.binary import cache
from anyprobe.binary.text import ModuleText
from anyprobe.core.refusal import Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import decode_range
from anyprobe.isa.registers import mask_of, names_of
from anyprobe.splice.patchcode import SCRATCH_ORDER, Clobbers
from anyprobe.splice.planned import PlannedSplice, Strategy, Want
from anyprobe.splice.together import first_of

if TYPE_CHECKING:
    from anyprobe.binary.cfg import CodeMap
    from anyprobe.binary.function import FunctionCode

_KIND, _VERSION = "entryplans", 4
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
        self._firsts: dict[int, int] = {}
        found = cache.load(build_id, _KIND, version=_VERSION)
        if found is not None and found[0].get("knowledge") == self._knowledge():
            rows = zip(*(found[1][name].tolist() for name in ("start", "head", "size", "dead", "flags")), strict=True)
            self._plans = {start: _EntryPlan(head, size, dead, bool(flags)) for start, head, size, dead, flags in rows}
            self._firsts = dict(zip(found[1]["member"].tolist(), found[1]["first"].tolist(), strict=True))
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

    def first_of(self, code_map: "CodeMap", function: "FunctionCode") -> "FunctionCode":
        """Return the first of the functions that are planned together with one."""
        start = self._firsts.get(function.start)
        known = code_map.function_at(start) if start is not None else None
        if known is not None and not isinstance(known, Refusal):
            return known
        found = first_of(code_map, function)
        self._firsts[function.start] = found.start
        self._fresh += 1
        return found

    def save(self) -> None:
        """Write the plans to disk, where there are enough new ones."""
        if self._fresh < min(_WORTH_SAVING, len(self._firsts) or 1):
            return
        self._fresh = 0
        rows = sorted((start, *plan) for start, plan in self._plans.items())
        columns = list(zip(*rows, strict=True))
        arrays = {
            name: np.array(column, dtype=np.int64)
            for name, column in zip(("start", "head", "size", "dead", "flags"), columns or [()] * 5, strict=True)
        }
        arrays |= {
            "member": np.fromiter(self._firsts.keys(), np.int64, len(self._firsts)),
            "first": np.fromiter(self._firsts.values(), np.int64, len(self._firsts)),
        }
        cache.store(self._build_id, _KIND, {"knowledge": self._knowledge()}, arrays, version=_VERSION)
