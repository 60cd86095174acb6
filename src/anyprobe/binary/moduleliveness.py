"""Which registers and flags are dead in front of instructions, for all functions of a module together.

Where ``siteliveness`` gives up, at calls and returns, this goes on: into the function that is called and to what comes
behind the call, and from a return to what comes behind every direct call of the function. So whatever compilers have
agreed with themselves about local functions is seen. Where nobody can look, a callee behind a pointer or a linkage
stub is taken to have arguments where the convention puts them, and a caller that is not in the module, or comes through
a pointer, to look at the result and at whatever the function does not overwrite: no convention promises that to it.
"""

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.binary.cfg import CodeMap, FunctionCode
from anyprobe.binary.codescan import Kind
from anyprobe.binary.liveness import PREFERENCE, Scratch
from anyprobe.binary.siteliveness import FLAGS, Line, SiteLiveness, known_masks
from anyprobe.isa.decode import Flow
from anyprobe.isa.registers import NUMBERS, SYSV_CLOBBERED, mask_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RESULTS = mask_of(("rax", "rdx"))
_ARGUMENTS = SYSV_CLOBBERED & ~mask_of(("r11",))
"""``rax`` says how many vector registers are in use, ``r10`` is the frame of an enclosing function."""
_RETURN = -1
"""Among successors: to whoever has called the function. Other negative ones are addresses elsewhere."""
_ENDS_LINE = frozenset(Flow) - {Flow.NEXT, Flow.SYSCALL}
_NODE_BITS = 31


class _FunctionLines(SiteLiveness):
    """The straight lines of one function, with what follows them in other functions."""

    ends_line = _ENDS_LINE

    def _find_heads(self) -> frozenset[int]:
        function = self._function
        entered = {function.index_of(address) for address in (*function.leaders, *self._stored_labels)}
        return super()._find_heads() | {number for number in entered if number is not None}

    @cached_property
    def _stored_labels(self) -> list[int]:
        """Return the addresses of the function that are stored or taken: where its jumps through pointers may lead."""
        low, high = self._function.start + 1, self._function.end
        if not self._function.indirect_jumps:
            return []
        taken = [t for t, _, kind in self._map.references.into(low, high) if kind in (Kind.LEA, Kind.ABSOLUTE)]
        return self._map.static_entries(low, high) + taken

    def _solve(self) -> dict[int, int]:
        """Leave that to the module: remember the lines."""
        if self._function.broken is not None:
            self.lines: dict[int, Line] = {}
            return {}
        size = len(self._function.iced)
        self.lines = {head: self._line(head) for head in sorted(self._heads) if head < size}
        return {}

    def destroyed(self) -> int:
        """Return the registers that the function's own instructions overwrite, and not with what they were before."""
        found, content, offsets = 0, self._content, self._offsets
        for number in range(len(offsets) - 1):
            raw = content[offsets[number] : offsets[number + 1]]
            found |= (known_masks.get(raw) or self.learn(number, raw))[3]
        return found

    def targets_in_doubt(self) -> list[int]:
        """Return what may be called from here if the instructions themselves are in doubt."""
        if self._function.broken is None:
            return []
        return [insn.target for insn in self._function.special if insn.target is not None]

    def _transfer(self, here: int, flow: Flow, live: int, pending: int) -> Line:
        if flow is Flow.RET:
            return Line(live, pending, (_RETURN,))
        if flow is Flow.CALL:
            return self._call(here, live, pending)
        if flow is Flow.INDIRECT_CALL:
            return self._behind_call(here, live | pending & _ARGUMENTS, pending)
        return super()._transfer(here, flow, live, pending)

    def _call(self, here: int, live: int, pending: int) -> Line:
        target = self._function.iced[here].near_branch_target
        if self._map.is_stub(target):
            return self._behind_call(here, live | pending & _ARGUMENTS, pending)
        return self._behind_call(here, live, pending, (-target,))

    def _behind_call(self, here: int, live: int, pending: int, others: tuple[int, ...] = ()) -> Line:
        if here + 1 == len(self._function.iced):
            return Line(live, pending & ~live, others)  # it does not come back
        return Line(live, pending & ~live, (*others, here + 1))

    def _outcomes(self, live: int, pending: int, targets: tuple[int, ...], below: int = -1) -> Line:
        if below >= len(self._function.iced):
            return Line(live | pending, 0, ())
        successors = [below] if below >= 0 else []
        for target in targets:
            number = self._function.index_of(target)
            if number is not None:
                successors.append(number)
            elif self._map.is_stub(target):
                live |= pending & _ARGUMENTS
                successors.append(_RETURN)
            else:
                successors.append(-target)
        return Line(live, pending & ~live, tuple(successors))

    def _indirect_jump(self, address: int, live: int, pending: int) -> Line:
        if self._function.table_of(address) is None and address not in self._function.unresolved:
            live |= pending & _ARGUMENTS
            labels = tuple(n for at in self._stored_labels if (n := self._function.index_of(at)) is not None)
            return Line(live, pending & ~live, (*labels, _RETURN))
        return super()._indirect_jump(address, live, pending)


class ModuleLiveness:
    """What is dead in front of the instructions of one module."""

    def __init__(self, code_map: CodeMap) -> None:
        """Take what an earlier session has kept, or solve the whole module."""
        self._map = code_map
        self._lines: dict[int, _FunctionLines] = {}
        store = code_map.text.store
        kept = store.liveness() if store is not None else None
        if kept is None:
            solver = _Solver(code_map)
            self._lines = solver.functions
            kept = solver.places, solver.live
            if store is not None:
                store.keep_liveness(*kept)
        self._live: dict[int, int] = dict(zip(kept[0].tolist(), kept[1].tolist(), strict=True))
        """By where a line begins; at the return of a function, by its negative start."""
        self._known: dict[int, Scratch] = {}

    def scratch(self, function: FunctionCode, address: int) -> Scratch:
        """Return what code in front of an instruction may destroy."""
        number = function.index_of(address)
        if -function.start not in self._live or number is None or function.broken is not None:
            return Scratch((), flags_dead=False)
        live = self._live.get(address)
        dead = ~(self._before(function, number) if live is None else live)
        found = self._known.get(dead)
        if found is None:
            names = tuple(name for name in PREFERENCE if dead >> NUMBERS[name] & 1)
            found = self._known[dead] = Scratch(names, dead & FLAGS == FLAGS)
        return found

    def _before(self, function: FunctionCode, number: int) -> int:
        lines = self._lines.get(function.start)
        if lines is None:
            lines = self._lines[function.start] = _FunctionLines(self._map, function)
        line = lines.line(number)
        live = line.live
        for successor in line.successors:
            live |= line.pending & self._live.get(_place(function, successor), -1)
        return live


def _place(function: FunctionCode, successor: int) -> int:
    """Return by what address a successor is known."""
    if successor >= 0:
        return function.iced[successor].ip
    return -function.start if successor == _RETURN else -successor


class _Solver:
    """Solves a module."""

    def __init__(self, code_map: CodeMap) -> None:
        """Number the lines of all functions and go round until nothing changes."""
        found = (code_map.function_at(start) for start in code_map.text.function_starts.tolist())
        self._map = code_map
        self.functions = {f.start: _FunctionLines(code_map, f) for f in found if isinstance(f, FunctionCode)}
        self._nodes: dict[int, int] = {}
        """By address; the return of a function is at its negative start."""
        self._open: set[int] = set()
        """The returns that lead to code of which nothing is known."""
        self._edges: list[int] = []
        """From the node above ``_NODE_BITS`` to the one below."""
        self.live = self._solve()
        self.places = np.fromiter(self._nodes.keys(), np.int64, len(self._nodes))

    def _solve(self) -> "NDArray[np.int64]":
        """Number the lines and returns, and go round until nothing changes."""
        nodes = self._nodes
        for start, lines in self.functions.items():
            iced = lines.function.iced
            for head in lines.lines:
                nodes[iced[head].ip] = len(nodes)
            nodes[-start] = len(nodes)
        self._live, self._pending = [0] * len(nodes), [0] * len(nodes)
        for start, lines in self.functions.items():
            self._add(lines, start)
        live, pending = np.array(self._live, np.int64), np.array(self._pending, np.int64)
        live[sorted(self._open)] = -1
        if not self._edges:
            return live
        edges = np.sort(np.array(self._edges, np.int64))
        edges = edges[np.r_[True, edges[1:] != edges[:-1]]]
        sources, targets = edges >> _NODE_BITS, edges & (1 << _NODE_BITS) - 1
        firsts = np.flatnonzero(np.r_[True, sources[1:] != sources[:-1]])
        heads = sources[firsts]
        mask = pending[heads]
        while True:
            now = live[heads] | mask & np.bitwise_or.reduceat(live[targets], firsts)
            if np.array_equal(now, live[heads]):
                return live
            live[heads] = now

    def _add(self, lines: _FunctionLines, start: int) -> None:
        """Enter the lines of one function, and where its returns lead."""
        nodes, live, pending, edges = self._nodes, self._live, self._pending, self._edges
        function, iced, home = lines.function, lines.function.iced, nodes[-start]
        live[home] |= _RESULTS | SYSV_CLOBBERED & ~lines.destroyed()
        pending[home] = -1
        for target in lines.targets_in_doubt():
            self._add_return(target, -1)
        for head, line in lines.lines.items():
            node, successors = nodes[iced[head].ip], line.successors
            live[node], pending[node] = line.live, line.pending
            behind = home
            if len(successors) == 2 and successors[0] < _RETURN <= successors[1]:  # a branch names what is below first
                behind = nodes.get(_place(function, successors[1])) or home
            for successor in successors:
                other = nodes.get(_place(function, successor))
                if other is None:
                    live[node] |= line.pending
                    continue
                edges.append(node << _NODE_BITS | other)
                if successor < _RETURN:
                    self._add_return(-successor, behind)

    def _add_return(self, target: int, behind: int) -> None:
        """Note where the function around an address returns to: behind a call, or to who called the one that jumps."""
        owner = self._map.start_of(target)
        back = self._nodes.get(-owner) if owner is not None else None
        if back is not None and behind >= 0:
            self._edges.append(back << _NODE_BITS | behind)
        elif back is not None:
            self._open.add(back)
