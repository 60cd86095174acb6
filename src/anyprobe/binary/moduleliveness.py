"""Which registers and flags are dead in front of instructions, for all functions of a module together.

Where ``siteliveness`` gives up, at calls and returns, this goes on: into the function that is called and to what comes
behind the call, and from a return to what comes behind every direct call of the function. So whatever compilers have
agreed with themselves about local functions is seen. Where nobody can look, a callee behind a pointer or a linkage
stub is taken to have arguments where the convention puts them, and a caller that is not in the module, or comes through
a pointer, to look at the result and at whatever the function does not destroy.

A function destroys what it overwrites, what a function destroys that it calls, and by a call through a pointer or a
stub ``r11``, which every convention and every linker leaves to callees. It may keep what it has from its caller and
moves somewhere and back; functions that put the stack pointer elsewhere, as those that switch coroutines do, may keep
all. What strangers destroy in a call is nobody's any more behind it, and holds no result of the function that called
them. The functions behind thread-local descriptors are none: compilers know that they change ``rax`` only. A return
right behind a ``push`` is a jump, as in retpolines, and may lead to who expects arguments.

First it is found out what a function reads that it is entered with, wherever it may return to; with that it is known
what calls read, and what is live in front of returns.
"""

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from iced_x86 import Mnemonic, OpKind, Register

from anyprobe.binary.cfg import CodeMap, FunctionCode
from anyprobe.binary.codescan import Kind
from anyprobe.binary.liveness import PREFERENCE, Scratch
from anyprobe.binary.siteliveness import FETCHED, FLAGS, KEEPS_ALL, Line, SiteLiveness
from anyprobe.isa.decode import Flow
from anyprobe.isa.registers import NUMBERS, SYSV_CLOBBERED, mask_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Masks = NDArray[np.int64]

_RESULTS = mask_of(("rax", "rdx"))
_STRANGERS = mask_of(("r11",))
"""What every convention leaves to callees, and to linkage stubs; compilers have neither arguments nor results in it."""
_ARGUMENTS = SYSV_CLOBBERED & ~_STRANGERS
"""``rax`` says how many vector registers are in use, ``r10`` is the frame of an enclosing function."""
_RETURN = -1
"""Among successors: to whoever has called the function. Other negative ones are addresses elsewhere."""
_ENDS_LINE = frozenset(Flow) - {Flow.NEXT, Flow.SYSCALL}
_DIRECT = frozenset({Flow.CALL, Flow.JUMP, Flow.JCC})
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
        taken = [
            target
            for target, source, kind in self._map.references.into(low, high)
            if kind is Kind.LEA or (kind is Kind.ABSOLUTE and not self._is_distance(source))
        ]
        return self._map.static_entries(low, high) + taken

    def _is_distance(self, address: int) -> bool:
        """Return whether the bytes at an address say how far from an instruction its operand is, not where."""
        owner = self._map.containing(address)
        insn = owner.covering(address) if owner is not None and owner.broken is None else None
        if insn is None or not insn.iced.is_ip_rel_memory_operand:
            return False
        distance = insn.iced.ip_rel_memory_address - insn.end & (1 << 32) - 1
        return insn.raw[address - insn.address :][:4] == distance.to_bytes(4, "little")

    def _solve(self) -> dict[int, int]:
        """Leave that to the module: remember the lines."""
        if self._function.broken is not None:
            self.lines: dict[int, Line] = {}
            return {}
        size = len(self._function.iced)
        self.lines = {head: self._line(head) for head in sorted(self._heads) if head < size}
        return {}

    def destroyed(self) -> tuple[int, int] | None:
        """Return the registers that the function itself may destroy, and those it may keep; ``None`` if it may all."""
        if self._may_keep_all:
            return None
        found = moved = 0
        for _, _, _, changed, copied in self._masks:
            found |= changed
            moved |= copied
        return found & SYSV_CLOBBERED, moved & moved >> FETCHED & SYSV_CLOBBERED

    def calls(self) -> tuple[list[int], bool]:
        """Return the functions that are called or jumped to, and whether some are that nobody can look into."""
        function, is_stub = self._function, self._map.is_stub
        iced, found, strangers = function.iced, [], False
        for number, flow in function.turns:
            if flow in _DIRECT:
                target = iced[number].near_branch_target
                if not function.start <= target < function.end:
                    found.append(target)
            elif flow is Flow.INDIRECT_CALL:
                strangers |= not self._finds_variable(number)
            elif flow is Flow.INDIRECT_JUMP and self._leaves(iced[number].ip):
                strangers = True
        return found, strangers or any(is_stub(target) for target in found)

    def _finds_variable(self, number: int) -> bool:
        """Return whether a call may be that of a thread-local descriptor's function, which changes ``rax`` only.

        The descriptor's address is in ``rax``, and was not read from memory.
        """
        one = self._function.iced[number]
        if (one.memory_base, one.memory_index, one.memory_displacement) != (Register.RAX, Register.NONE, 0):
            return False
        for before in range(number - 1, -1, -1):
            _, _, writes, changed, _ = self._masks[before]
            if before + 1 in self._heads:
                return True
            if (writes | changed) & 1:
                setting = self._function.iced[before]
                return not (setting.mnemonic == Mnemonic.MOV and setting.op1_kind == OpKind.MEMORY)
        return True

    def _leaves(self, address: int) -> bool:
        """Return whether an indirect jump is the call of another function that returns in the place of this one."""
        return self._function.table_of(address) is None and address not in self._function.unresolved

    def targets_in_doubt(self) -> list[int]:
        """Return what may be called from here if the instructions themselves are in doubt."""
        if self._function.broken is None:
            return []
        return [insn.target for insn in self._function.special if insn.target is not None]

    def _transfer(self, here: int, flow: Flow, live: int, pending: int) -> Line:
        if flow is Flow.RET:
            if self._may_keep_all or self._names_target(here - 1):
                live |= pending & _ARGUMENTS  # whoever runs there may be no caller
            return Line(live, pending & ~live, (_RETURN,))
        if flow is Flow.CALL:
            return self._call(here, live, pending)
        if flow is Flow.INDIRECT_CALL:
            return self._behind_call(here, live | pending & _ARGUMENTS, pending)
        return super()._transfer(here, flow, live, pending)

    @cached_property
    def _may_keep_all(self) -> bool:
        return any(moved & KEEPS_ALL for _, _, _, _, moved in self._masks)

    def _names_target(self, number: int) -> bool:
        """Return whether an instruction in front of a return puts there where it leads, as in retpolines."""
        if number < 0:
            return False
        one = self._function.iced[number]
        if one.mnemonic == Mnemonic.PUSH:
            return True
        to_memory = one.op_count > 0 and one.op0_kind == OpKind.MEMORY
        place = one.memory_base, one.memory_index, one.memory_displacement
        return to_memory and place == (Register.RSP, Register.NONE, 0)

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
        # what is elsewhere comes last: only calls name it first
        return Line(live, pending & ~live, tuple(sorted(successors, reverse=True)))

    def _indirect_jump(self, address: int, live: int, pending: int) -> Line:
        if self._leaves(address):
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
            kept = solver.places, solver.live, solver.called
            if store is not None:
                store.keep_liveness(*kept)
        self._live: dict[int, int] = dict(zip(kept[0].tolist(), kept[1].tolist(), strict=True))
        """By where a line begins; at the return of a function, by its negative start."""
        self._places, self._called_there = kept[0], kept[2]
        self._known: dict[int, Scratch] = {}

    @cached_property
    def _called(self) -> dict[int, int]:
        """What is read by whoever is entered there; by the negative start, what a call of the function destroys."""
        return dict(zip(self._places.tolist(), self._called_there.tolist(), strict=True))

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
        live, pending, successors = lines.line(number)
        passing = -1
        for successor in successors:
            place = _place(function, successor)
            if successor >= _RETURN:
                live |= pending & passing & self._live.get(place, -1)
                continue
            live |= pending & self._called.get(place, -1)
            if _returns_below(successors):
                passing = ~self._called.get(successor, 0)
            else:
                live |= pending & self._live[-function.start]
        return live


def _returns_below(successors: tuple[int, ...]) -> bool:
    """Return whether a line ends in a call that comes back: a branch names what is below first."""
    return len(successors) == 2 and successors[0] < _RETURN <= successors[1]


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
        self._inside: list[int] = []
        """Edges that stay in a function, from the node above ``_NODE_BITS`` to the one below."""
        self._behind: list[int] = []
        """Edges from calls to what comes behind them."""
        self._called: list[int] = []
        """For each of those the return of the function that is called, or the last node, of which nothing is known."""
        self._entering: list[int] = []
        """Edges into functions, by calls and jumps."""
        self._returns: list[int] = []
        """Edges to returns, and from them."""
        self._several: set[int] = set()
        """The returns of functions that are called in their middle, too, and may do less then."""
        self._calls: list[int] = []
        """Edges from the returns of functions to those of the ones that they call."""
        self.live, self.called = self._solve()
        self.places = np.fromiter(self._nodes.keys(), np.int64, len(self._nodes))

    def _solve(self) -> "tuple[Masks, Masks]":
        """Number the lines and returns, and go round: once for what functions read, once for all that is live."""
        nodes = self._nodes
        for start, lines in self.functions.items():
            iced = lines.function.iced
            for head in lines.lines:
                nodes[iced[head].ip] = len(nodes)
            nodes[-start] = len(nodes)
        count = len(nodes) + 1
        self._live, self._pending, self._kept = ([0] * count for _ in range(3))
        self._destroyed, self._strangers = [0] * count, [0] * count
        for start, lines in self.functions.items():
            self._add(lines, start)
        live, pending = np.array(self._live, np.int64), np.array(self._pending, np.int64)
        destroyed, strangers = np.array(self._destroyed, np.int64), np.array(self._strangers, np.int64)
        several = sorted(self._several)
        destroyed[several] = strangers[several] = 0
        kept, calls = np.array(self._kept, np.int64), _Edges(self._calls)
        kept[several] = -1
        inside, entering = _Edges(self._inside), _Edges(self._entering)
        overwritten = settled(strangers & ~kept, ~kept, calls)
        behind = _Edges(self._behind, ~overwritten[np.array(self._called, np.int64)])
        read = settled(live, pending, inside, entering, behind)
        homes = np.array([nodes[-start] for start in self.functions], np.int64)
        kept[homes] &= read[[nodes.get(start, -1) for start in self.functions]]
        kept[several] = -1
        live |= entering.reach(read, len(live)) & pending
        live[homes] = _RESULTS | SYSV_CLOBBERED & ~settled(destroyed & ~kept, ~kept, calls)[homes]
        pending[homes] = ~settled(strangers & ~kept, ~kept, calls)[homes]
        live[sorted(self._open)] = -1
        read[homes] = overwritten[homes]
        return settled(live, pending, inside, behind, _Edges(self._returns))[:-1], read[:-1]

    def _add(self, lines: _FunctionLines, start: int) -> None:
        """Enter the lines of one function, and where its returns lead."""
        nodes, live, pending, inside = self._nodes, self._live, self._pending, self._inside
        function, iced, home = lines.function, lines.function.iced, nodes[-start]
        self._add_facts(lines, home)
        for target in lines.targets_in_doubt():
            self._add_return(target, -1)
        below = self._map.next_code(function.end) if function.runs_past_end is not None else None
        if below is not None:
            self._add_return(below, home)
        for head, line in lines.lines.items():
            node, successors = nodes[iced[head].ip], line.successors
            live[node], pending[node] = line.live, line.pending
            behind = home
            if _returns_below(successors):
                behind = nodes.get(_place(function, successors[1])) or home
            for successor in successors:
                other = nodes.get(_place(function, successor))
                if other is None:
                    live[node] |= line.pending
                elif successor == _RETURN:
                    self._returns.append(node << _NODE_BITS | other)
                elif successor < _RETURN:
                    self._entering.append(node << _NODE_BITS | other)
                    self._add_return(-successor, behind)
                    if successor not in nodes:
                        self._note_middle(function, -successor, called=behind != home)
                    if behind == home:  # whoever is jumped to returns for this function
                        self._returns.append(node << _NODE_BITS | home)
                    else:
                        self._behind.append(node << _NODE_BITS | behind)
                        self._called.append(nodes.get(successor, len(nodes)))
                elif behind == home:
                    inside.append(node << _NODE_BITS | other)

    def _note_middle(self, function: FunctionCode, target: int, *, called: bool) -> None:
        """Note that a function is entered in its middle, by a call or from what is no part of it."""
        owner = self._map.start_of(target)
        home = self._nodes.get(-(owner or function.start), len(self._nodes))
        if called or (owner != self._map.owner_of(function) and self._map.part_at(target, function) is None):
            self._several.add(home)

    def _add_facts(self, lines: _FunctionLines, home: int) -> None:
        """Note what a function destroys, itself and by those that it calls."""
        own = lines.destroyed() if lines.function.broken is None else None
        if own is None:
            return
        self._destroyed[home], self._kept[home] = own
        called, strangers = lines.calls()
        if strangers:
            self._strangers[home] = _STRANGERS
            self._destroyed[home] |= _STRANGERS
        found = (self._nodes.get(-target) for target in called)
        self._calls += [home << _NODE_BITS | other for other in found if other is not None]

    def _add_return(self, target: int, behind: int) -> None:
        """Note where the function around an address returns to: behind a call, or to who called the one that jumps."""
        owner = self._map.start_of(target)
        back = self._nodes.get(-owner) if owner is not None else None
        if back is not None and behind >= 0:
            self._returns.append(back << _NODE_BITS | behind)
        elif back is not None:
            self._open.add(back)


class _Edges:
    """Edges between nodes, and what may pass along each of them."""

    def __init__(self, edges: list[int], masks: "Masks | None" = None) -> None:
        """Take edges as numbers, the node where one begins above ``_NODE_BITS``; without masks all may pass."""
        numbers = np.array(edges, np.int64)
        self.masks = np.full(len(numbers), -1, np.int64) if masks is None else masks
        self.sources, self.targets = numbers >> _NODE_BITS, numbers & (1 << _NODE_BITS) - 1

    def reach(self, values: "Masks", count: int) -> "Masks":
        """Return what comes along the edges to each of ``count`` nodes from the values of those they lead to."""
        found = np.zeros(count, np.int64)
        np.bitwise_or.at(found, self.sources, values[self.targets] & self.masks)
        return found


def settled(live: "Masks", pending: "Masks", *edges: _Edges) -> "Masks":
    """Return what is live at each node once all is that is live where its edges lead, as far as it is undecided."""
    live = live.copy()
    sources, targets, masks = (
        np.concatenate([getattr(each, name) for each in edges]) for name in ("sources", "targets", "masks")
    )
    passing = pending[sources] & masks
    begins, by_target = _by_target(targets, len(live))
    there = np.flatnonzero(passing)
    while len(there):
        arriving = live[targets[there]] & passing[there]
        news = np.flatnonzero(arriving & ~live[sources[there]])
        changed = np.sort(sources[there[news]])
        changed = changed[np.flatnonzero(np.diff(changed, prepend=-1))]
        np.bitwise_or.at(live, sources[there[news]], arriving[news])
        there = _all_of(begins[changed], begins[changed + 1], by_target)
    return live


def _by_target(targets: "Masks", count: int) -> "tuple[Masks, Masks]":
    """Return where the edges to each node begin among those that are sorted by nodes, and the sorted edges."""
    begins = np.cumsum(np.bincount(targets + 1, minlength=count + 1))
    ordered: Masks = np.sort(targets << _NODE_BITS | np.arange(len(targets)))
    return begins, ordered & (1 << _NODE_BITS) - 1


def _all_of(begins: "Masks", ends: "Masks", items: "Masks") -> "Masks":
    """Return the items of several ranges."""
    sizes = ends - begins
    behind = np.cumsum(sizes)
    places: Masks = np.arange(np.sum(sizes)) + np.repeat(ends - behind, sizes)
    return items[places]
