"""All functions of a module at once: which candidates of the scan are what they look like, decided for all together.

One by one, ``ModuleView.may_lead`` looks up the function and the instruction that a candidate lies in. Where a probe
needs a few functions that is little; where it needs all of them, the branches that were decoded say it for nearly all
candidates in a few array operations.
"""

from typing import TYPE_CHECKING

import numpy as np
from iced_x86 import Code

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.code_scan import Kind, References
from anyprobe.binary.decoding.many_bodies import examine_together, stretches
from anyprobe.core.arrays import among
from anyprobe.core.checkpoints import checkpoint
from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import FLOWS, Flow, constants

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHORT = frozenset(value for name, value in constants(Code).items() if "_REL8_" in name)
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
        checkpoint()
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
    found = [np.empty(0, np.int64)]
    for stretch in stretches(codes):
        checkpoint()
        numbers = np.append(stretch.jumps[0], stretch.calls[0])
        back, kind = _OPCODES[stretch.codes[numbers]].T
        found.append(stretch.ends[numbers] - back << 2 | kind)
    return np.concatenate(found)


def _opcode_table() -> "NDArray[np.int64]":
    """Return, by what iced calls a branch, how far before its end the opcode lies, and its kind for the scan."""
    found = np.tile(np.array([_WIDE_BYTES, Kind.NEAR], np.int64), (len(FLOWS), 1))
    found[[code for code, flow in enumerate(FLOWS) if flow in (Flow.JUMP, Flow.CALL)], 0] = _NEAR_BYTES
    found[sorted(_SHORT)] = _SHORT_BYTES, Kind.SHORT
    return found


_OPCODES = _opcode_table()
