"""What an earlier session has found out about functions whose calls are timed, kept by build-id beside entry plans.

Of each function where it ends, or why that is not known; of most the splices at its entry and its exits; and what may
be overwritten there. Kept are plain plans: jumps and retargeted branches that lean on nothing. Everything else is
worked out anew. It holds for what ``EntryPlans`` hold for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.binary.decoding.instruction_masks import FLAGS
from anyprobe.binary.flow.exits import Exit, ExitKind, Exits
from anyprobe.binary.objects import cache
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import decode_range
from anyprobe.isa.registers import mask_of, names_of
from anyprobe.splice.plan.splices import (
    SCRATCH_ORDER,
    Clobbers,
    FunctionPlan,
    PlannedSplice,
    Strategy,
    Want,
    WantKind,
)

if TYPE_CHECKING:
    from anyprobe.binary.flow.cfg import CodeMap
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.core.memory import Memory

_KIND, _VERSION = "timedplans", 1
_WORTH_SAVING = 64
_TAIL, _CONDITIONAL, _INDIRECT = 1, 2, 4
_STRATEGIES = (Strategy.JUMP, Strategy.RETARGET)
_WANTED = {WantKind.ENTRY: 0, WantKind.EXIT: 1, WantKind.LOOP: 2}
_SHAPES = {
    "functions": 4, "exits": 4, "inside": 2, "parts": 1, "why": 1,
    "planned": 3, "members": 1, "splices": 6, "wanted": 4, "dead": 2,
}  # fmt: skip
"""Arrays of 64-bit integers and their columns. ``functions``: start, number of exits, number of parts elsewhere, number
of the refusal or -1. ``exits``: address, bits, target or -1, number of ranges inside. ``inside``: start, end.
``parts``: start. ``why``: address. ``planned``: start, number of members, number of splices. ``members``: start.
``splices``: strategy, head, bytes displaced, bytes written, where, number of wants. ``wanted``: address, kind, and of
branches back the head and whether nobody has asked for that. ``dead``: key, mask."""

_Row = tuple[int, ...]
_Planned = tuple[tuple[int, ...], tuple[tuple[_Row, tuple[_Row, ...]], ...]]
"""The starts of the functions that are planned together, then of each splice its columns, but for the last, and wants.
"""


class TimedPlans:
    """What is known of the timed functions of one module."""

    def __init__(self, memory: "Memory", build_id: str | None, source: Mapping[str, object]) -> None:
        """Load what earlier sessions have kept that was made of the same ``source``; ``memory`` has the code."""
        self._memory, self._build_id, self._source = memory, build_id, source
        self._exits: dict[int, tuple[tuple[Exit, ...], tuple[int, ...], Refusal | None]] = {}
        """By the start of the function; with the starts of its parts elsewhere."""
        self._plans: dict[int, _Planned] = {}
        """By the start of the first function."""
        self._dead: dict[int, int] = {}
        """By ``_key``: the mask of what may be overwritten."""
        self._made: dict[int, Clobbers] = {}
        self._fresh = 0
        found = cache.load(build_id, _KIND, version=_VERSION)
        if found is not None and found[0].get("source") == dict(source):
            self._load(found[0].get("reasons"), found[1])

    # -- where functions end

    def exits_of(self, code_map: "CodeMap", function: "FunctionCode") -> Exits:
        """Return where a function ends, as ``FunctionCode.exits`` has it."""
        known = self._exits.get(function.start)
        parts = _functions(code_map, known[1]) if known is not None else None
        if known is not None and parts is not None:
            return Exits(known[0], known[2], (function, *parts))
        found = function.exits
        if found.unmatched is None:
            self._exits[function.start] = found.found, tuple(each.start for each in found.parts[1:]), found.complete
            self._fresh += 1
        return found

    # -- what is planned

    def find(self, code_map: "CodeMap", start: int, wants: Sequence[Want]) -> FunctionPlan | None:
        """Return the plan for just these wants of the function at ``start``, if it is kept."""
        known = self._plans.get(start)
        scope = _functions(code_map, known[0]) if known is not None else None
        if known is None or scope is None:
            return None
        asked = {(want.address, _WANTED.get(want.kind)): want for want in wants}
        served: set[Want] = set()
        found: list[PlannedSplice] = []
        for (strategy, head, size, written, write_at), own in known[1]:
            those: list[Want] = []
            for address, kind, tag, internal in own:
                want = asked.get((address, kind))
                if kind == _WANTED[WantKind.LOOP]:
                    those.append(Want(address, WantKind.LOOP, tag=tag, internal=bool(internal)))
                elif want is None:
                    return None
                else:
                    served.add(want)
                    those.append(want)
            insns = tuple(decode_range(self._memory.read(head, size), head))
            found.append(PlannedSplice(_STRATEGIES[strategy], head, insns, tuple(those), written, write_at))
        return FunctionPlan(tuple(found), scope=scope) if len(served) == len(wants) else None

    def note(self, function: "FunctionCode", wants: Sequence[Want], plan: FunctionPlan) -> None:
        """Keep the plan of a function of which nothing else is wanted, if it is a plain one."""
        if plan.refused or not all(map(_is_plain, plan.splices)):
            return
        served = [want for splice in plan.splices for want in splice.wants if want.kind is not WantKind.LOOP]
        if len(served) != len(wants) or {id(want) for want in served} != {id(want) for want in wants}:
            return
        self._fresh += function.start not in self._plans
        splices = tuple(
            (
                (_STRATEGIES.index(each.strategy), each.insns[0].address, each.end - each.insns[0].address,
                 each.written, each.write_at),
                tuple(map(_wanted, each.wants)),
            )
            for each in plan.splices
        )  # fmt: skip
        self._plans[function.start] = tuple(each.start for each in plan.scope), splices

    # -- what may be overwritten

    def clobbers(self, want: Want, *, skipping: bool) -> Clobbers | None:
        """Return what may be overwritten at an entry or exit; ``skipping``: faults may have been skipped before it."""
        mask = self._dead.get(_key(want, skipping=skipping))
        if mask is None:
            return None
        found = self._made.get(mask)
        if found is None:
            names = names_of(mask & ~FLAGS)
            registers = tuple(name for name in SCRATCH_ORDER if name in names)
            found = self._made[mask] = Clobbers(registers, bool(mask & FLAGS))
        return found

    def note_clobbers(self, want: Want, found: Clobbers, *, skipping: bool) -> None:
        """Keep what may be overwritten."""
        if set(found.registers) <= set(SCRATCH_ORDER):
            self._dead[_key(want, skipping=skipping)] = mask_of(found.registers) | (FLAGS if found.flags else 0)

    # -- on disk

    def save(self) -> None:
        """Write all to disk, where there is enough that is new."""
        if self._fresh < _WORTH_SAVING:
            return
        self._fresh = 0
        reasons: list[list[str]] = []
        rows: dict[str, list[_Row]] = {name: [] for name in _SHAPES}
        for start, (exits, parts, why) in self._exits.items():
            rows["functions"].append((start, len(exits), len(parts), len(reasons) if why is not None else -1))
            if why is not None:
                reasons.append([why.reason.value, why.detail])
                rows["why"].append((why.address,))
            rows["parts"] += [(part,) for part in parts]
            rows["exits"] += map(_row, exits)
            rows["inside"] += [bounds for each in exits for bounds in each.inside]
        for start, (members, splices) in self._plans.items():
            rows["planned"].append((start, len(members), len(splices)))
            rows["members"] += [(member,) for member in members]
            for splice, wants in splices:
                rows["splices"].append((*splice, len(wants)))
                rows["wanted"] += wants
        rows["dead"] = [*self._dead.items()]
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
            splices, wanted, members = iter(rows["splices"]), iter(rows["wanted"]), iter(rows["members"])
            for start, together, number in rows["planned"]:
                scope = tuple([next(members)[0] for _ in range(together)])
                these = [next(splices) for _ in range(number)]
                self._plans[start] = (
                    scope,
                    tuple([(each[:-1], tuple([next(wanted) for _ in range(each[-1])])) for each in these]),
                )
            for strategy, *_ in rows["splices"]:
                _STRATEGIES[strategy]  # one that is not known is none that fits
            self._dead = dict(arrays["dead"].tolist())
        except (StopIteration, ValueError, IndexError, TypeError):
            self._exits, self._plans, self._dead = {}, {}, {}


def _is_plain(splice: PlannedSplice) -> bool:
    leaning = splice.leans_on or splice.borrowed or splice.pun is not None or splice.dead_springboard
    other = splice.hosts_until or splice.ambiguous or any(want.block or want.after for want in splice.wants)
    headed = splice.head == splice.insns[0].address
    known = (
        want.kind in _WANTED and (want.kind is not WantKind.LOOP or type(want.tag) is int) for want in splice.wants
    )
    kinds = all(known)
    return splice.strategy in _STRATEGIES and headed and kinds and not leaning and not other


def _functions(code_map: "CodeMap", starts: Sequence[int]) -> "tuple[FunctionCode, ...] | None":
    """Return the functions that start at some addresses; nothing where one does not."""
    from anyprobe.binary.flow.function import FunctionCode

    found = [code_map.function_at(start) for start in starts]
    known = tuple([each for each in found if isinstance(each, FunctionCode)])
    return known if len(known) == len(starts) else None


def _wanted(want: Want) -> _Row:
    loop = want.kind is WantKind.LOOP
    return want.address, _WANTED[want.kind], want.tag if loop and isinstance(want.tag, int) else 0, int(want.internal)


def _key(want: Want, *, skipping: bool) -> int:
    return want.address << 2 | skipping << 1 | (want.kind is WantKind.ENTRY)


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
