"""All functions of a module at once: which candidates of the scan are what they look like, decided for all together.

One by one, ``ModuleView.may_lead`` looks up the function and the instruction that a candidate lies in. Where a probe
needs a few functions that is little; where it needs all of them, the branches that were decoded say it for nearly all
candidates in a few array operations.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from iced_x86 import Code

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.code_scan import Kind, References
from anyprobe.binary.decoding.many_bodies import examine_together
from anyprobe.core.arrays import among
from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import FLOWS, Flow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.binary.decoding.branches import Branches

_SHORT = frozenset(value for name, value in vars(Code).items() if isinstance(value, int) and "_REL8_" in name)
_SHORT_BYTES, _NEAR_BYTES, _WIDE_BYTES = 2, 5, 6
"""How far before a branch's end its opcode lies: ``jmp rel8``, ``jmp rel32`` and ``call``, ``jcc rel32``."""


def checked_references(code_map: ModuleView) -> References:
    """Return the candidates of the scan that ``may_lead`` accepts: kept ones, or every function is decoded."""
    store = code_map.text.store
    kept = store.references() if store is not None else None
    if kept is not None:
        return References.of(*kept)
    functions = [code_map.function_at(start) for start in code_map.text.function_starts.tolist()]
    codes = [each for each in functions if not isinstance(each, Refusal)]
    examine_together(codes)
    targets, sources, kinds = code_map.entries.references.columns()
    clear = _clear_functions(codes)
    branches = _opcodes(codes)
    certain = (kinds <= Kind.SHORT) & _lies_in(sources, clear)
    keep = ~certain | among(sources << 2 | kinds, branches)
    doubtful = np.flatnonzero(~certain)
    doubtful = doubtful[np.argsort(sources[doubtful], kind="stable")]  # each function's instructions at once
    for number, target, source, kind in zip(
        doubtful.tolist(), targets[doubtful].tolist(), sources[doubtful].tolist(), kinds[doubtful].tolist(), strict=True
    ):
        keep[number] = code_map.entries.may_lead(target, source, Kind(kind))
    if store is not None:
        store.keep_references(targets[keep], sources[keep], kinds[keep])
    return References.of(targets[keep], sources[keep], kinds[keep])


def _clear_functions(codes: "list[FunctionView]") -> "NDArray[np.int64]":
    """Return the bounds of the functions whose decoded branches are all there are in them."""
    bounds = [(each.start, each.end) for each in codes if each.broken is None and not each.overlapped]
    return np.array(sorted(bounds), np.int64).reshape(-1, 2)


def _lies_in(addresses: "NDArray[np.int64]", bounds: "NDArray[np.int64]") -> "NDArray[np.bool_]":
    """Return which addresses lie in one of the ranges; of ranges that overlap, in the one that begins last."""
    if not len(bounds):
        return np.zeros(len(addresses), bool)
    index = np.searchsorted(bounds[:, 0], addresses, side="right") - 1
    found: NDArray[np.bool_] = (index >= 0) & (addresses < bounds[index, 1])
    return found


def _opcodes(codes: "list[FunctionView]") -> "NDArray[np.int64]":
    """Return where the opcodes of the functions' direct branches lie, prefixes not counted, with their kinds."""
    firsts = np.cumsum([0, *(len(each.codes) for each in codes)])[:-1]
    kinds = np.frombuffer(b"".join(each.codes for each in codes), np.uint16)
    ends = instruction_ends(codes, np.frombuffer(b"".join(each.addresses for each in codes), np.int64))
    jumps, _ = numbered([each.jumps for each in codes], firsts)
    calls, _ = numbered([each.calls for each in codes], firsts)
    numbers = np.append(jumps, calls)
    behind, kind = _OPCODES[kinds[numbers]].T
    found: NDArray[np.int64] = ends[numbers] - behind << 2 | kind
    return found


def instruction_ends(codes: "Sequence[FunctionView]", addresses: "NDArray[np.int64]") -> "NDArray[np.int64]":
    """Return where the instructions of some functions end, from where they begin."""
    found = np.append(addresses[1:], 0)
    behind = 0
    for each in codes:
        first, behind = behind, behind + len(each.addresses)
        if each.has_gaps:
            found[first:behind] = each.ends
        elif behind > first:
            found[behind - 1] = each.end_of(behind - first - 1)
    return found


def numbered(found: "Sequence[Branches]", firsts: "NDArray[np.int64]") -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
    """Return the (number, target) pairs of some functions as columns, with numbers that count all instructions.

    ``firsts`` are the numbers of their first ones. Before the first address targets wrap.
    """
    numbers = np.frombuffer(b"".join(each.numbers for each in found), np.uint32)
    targets = np.frombuffer(b"".join(each.targets for each in found), np.int64)
    return numbers.astype(np.int64) + np.repeat(firsts, [len(each) for each in found]), targets


def _opcode_table() -> "NDArray[np.int64]":
    """Return, by what iced calls a branch, how far before its end the opcode lies, and its kind for the scan."""
    found = np.tile(np.array([_WIDE_BYTES, Kind.NEAR], np.int64), (len(FLOWS), 1))
    found[[code for code, flow in enumerate(FLOWS) if flow in (Flow.JUMP, Flow.CALL)], 0] = _NEAR_BYTES
    found[sorted(_SHORT)] = _SHORT_BYTES, Kind.SHORT
    return found


_OPCODES = _opcode_table()
