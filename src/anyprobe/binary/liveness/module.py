"""Which registers and flags are dead before instructions, for all functions of a module together.

Where ``liveness.site`` gives up, at calls and returns, this goes on: into the function that is called and to what comes
after the call, and from a return to what comes after every direct call of the function. So whatever compilers have
agreed with themselves about local functions is seen. Where the code is not known, a callee reached by a pointer or a
linkage stub is taken to have arguments where the convention puts them, and a caller that is not in the module, or comes
through a pointer, to look at the result and at whatever the function does not destroy.

A function destroys what it overwrites, what a function destroys that it calls, and by a call through a pointer or a
stub ``r11``, which every convention and every linker leaves to callees. It may keep what it has from its caller and
moves somewhere and back; functions that put the stack pointer elsewhere, as those that switch coroutines do, may keep
all. What strangers destroy in a call holds no value that is wanted after it, and no result of the function that called
them. The functions of thread-local descriptors are none: compilers know that they change ``rax`` only. A return
right after a ``push`` is a jump, as in retpolines, and may lead to who expects arguments.

First it is found out what a function reads that it is entered with, wherever it may return to; with that it is known
what calls read, and what is live before returns.
"""

from typing import TYPE_CHECKING

import numpy as np

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.instruction_masks import CANDIDATES
from anyprobe.binary.liveness.entry import NOTHING, Scratch, scratch_of
from anyprobe.binary.liveness.fixpoint import settled
from anyprobe.binary.liveness.line_graph import LineGraph
from anyprobe.binary.liveness.module_lines import ModuleLines
from anyprobe.isa.registers import SYSV_CLOBBERED, mask_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.binary.liveness.fixpoint import Ints

_RESULTS = mask_of(("rax", "rdx"))
_SWIFT_RESULTS = mask_of(("rax", "rdx", "rcx", "r8"))


class ModuleLiveness:
    """What is dead before the instructions of one module."""

    def __init__(self, code_map: ModuleView) -> None:
        """Take what an earlier session has kept, or solve the whole module."""
        store = code_map.text.store
        kept = store.liveness() if store is not None else None
        if kept is None:
            kept = solved(code_map)
            if store is not None:
                store.keep_liveness(*kept)
        starts, firsts, offsets, live = kept
        bounds = zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True)
        self._bounds = dict(zip(starts.tolist(), bounds, strict=True))
        """By the start of a function: the number of its first instruction, and of the one after its last."""
        self._offsets, self._live = offsets.data, live.data
        """By instruction: how far after the function's start it is, and what is live before it."""

    def scratch(self, function: FunctionView, address: int) -> Scratch:
        """Return what code before an instruction may destroy."""
        number = function.index_of(address)
        first, end = self._bounds.get(function.start, (0, 0))
        if number is None or first + number >= end or self._offsets[first + number] != address - function.start:
            return NOTHING
        return scratch_of(CANDIDATES & ~self._live[first + number])


def solved(code_map: ModuleView) -> "tuple[Ints, Ints, NDArray[np.uint32], NDArray[np.uint32]]":
    """Return what ``TableStore.liveness`` keeps.

    It goes round twice: for what functions read that they are entered with, and for all that is live.
    """
    lines = ModuleLines(code_map)
    graph = LineGraph(code_map, lines)
    homes, ends = slice(graph.returns, graph.nothing), slice(0, graph.returns)
    live, pending = np.zeros(graph.count, np.int32), np.zeros(graph.count, np.int32)
    composed, pending[ends] = lines.composed()
    live[ends] = composed | pending[ends] & graph.decided[ends]
    inside, entering, returns = graph.edges()
    calls, several = graph.calls(), sorted(graph.several)
    destroyed, kept = graph.destroyed()
    strangers = graph.strangers_called()
    destroyed |= strangers
    destroyed[several] = strangers[several] = 0
    kept[several] = -1
    overwritten = settled(strangers & ~kept, ~kept, calls)
    after = graph.after_calls(overwritten)
    read = settled(live, pending, inside, entering, after)
    first = lines.lines_at(lines.starts)
    kept[homes] &= np.where(first >= 0, read[first], 0)
    kept[several] = -1
    decided = graph.decided | entering.reach(read, graph.count)
    live[ends] |= decided[ends] & pending[ends]
    results = _SWIFT_RESULTS if code_map.text.is_swift else _RESULTS
    live[homes] = results | SYSV_CLOBBERED & ~settled(destroyed & ~kept, ~kept, calls)[homes]
    pending[homes] = ~settled(strangers & ~kept, ~kept, calls)[homes]
    live[sorted(graph.open)] = -1
    live = settled(live, pending, inside, after, returns)
    for edges in (inside, after, returns):
        decided |= edges.reach(live, graph.count)
    starts = np.repeat(lines.starts.astype(np.uint32), np.diff(lines.firsts))  # the difference is right, cut off
    return lines.starts, lines.firsts, lines.addresses.astype(np.uint32) - starts, lines.spread(decided[ends])
