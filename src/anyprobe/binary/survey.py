"""All functions of a module at once: which candidates of the scan are what they look like, decided for all together.

One by one, ``CodeMap.may_lead`` looks up the function and the instruction that a candidate lies in. Where a probe needs
a few functions that is little; where it needs all of them, the branches that were decoded say it for nearly all
candidates in a few array operations.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from iced_x86 import Code

from anyprobe.binary.codescan import Kind, References
from anyprobe.binary.function import FunctionCode
from anyprobe.core.arrays import among
from anyprobe.isa.decode import FLOWS, Flow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.binary.cfg import CodeMap

_SHORT = frozenset(value for name, value in vars(Code).items() if isinstance(value, int) and "_REL8_" in name)
_CALL = 0xE8
_SHORT_BYTES, _NEAR_BYTES, _WIDE_BYTES = 2, 5, 6
"""How far in front of a branch's end its opcode lies: ``jmp rel8``, ``jmp rel32`` and ``call``, ``jcc rel32``."""


def checked_references(code_map: "CodeMap") -> References:
    """Return the candidates of the scan that ``may_lead`` accepts: kept ones, or every function is decoded."""
    store = code_map.text.store
    kept = store.references() if store is not None else None
    if kept is not None:
        return References.of(*kept)
    functions = [code_map.function_at(start) for start in code_map.text.function_starts.tolist()]
    codes = [each for each in functions if isinstance(each, FunctionCode)]
    targets, sources, kinds = code_map.references.columns()
    clear = _clear_functions(codes)
    branches = np.array([at for each in codes for at in _opcodes(each)], np.int64)
    certain = (kinds <= Kind.SHORT) & _lies_in(sources, clear)
    keep = ~certain | among(sources << 2 | kinds, branches)
    doubtful = np.flatnonzero(~certain)
    for number, target, source, kind in zip(
        doubtful.tolist(), targets[doubtful].tolist(), sources[doubtful].tolist(), kinds[doubtful].tolist(), strict=True
    ):
        keep[number] = code_map.may_lead(target, source, Kind(kind))
    if store is not None:
        store.keep_references(targets[keep], sources[keep], kinds[keep])
    return References.of(targets[keep], sources[keep], kinds[keep])


def _clear_functions(codes: "list[FunctionCode]") -> "NDArray[np.int64]":
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


def _opcodes(function: "FunctionCode") -> Iterator[int]:
    """Yield where the opcodes of the function's direct branches lie, prefixes not counted, with their kinds."""
    for end in function.after_calls:
        if _is_direct_call(function, end):
            yield end - _NEAR_BYTES << 2 | Kind.NEAR
    codes, ends = function.codes, function.ends
    for number, _ in function.jumps:
        code = codes[number]
        if code in _SHORT:
            yield ends[number] - _SHORT_BYTES << 2 | Kind.SHORT
        else:
            yield ends[number] - (_NEAR_BYTES if FLOWS[code] is Flow.JUMP else _WIDE_BYTES) << 2 | Kind.NEAR


def _is_direct_call(function: "FunctionCode", end: int) -> bool:
    """Return whether the call that ends at an address is a direct one."""
    opcode = end - _NEAR_BYTES
    if opcode < function.start or function.content[opcode - function.start] != _CALL:
        return False
    if function.is_boundary(opcode):
        return True
    insn = function.covering(opcode)
    return insn is not None and insn.end == end and insn.flow is Flow.CALL
