"""What the lines of a module lead to: other lines, functions that they call, and who has called their function."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from iced_x86 import Mnemonic, OpKind, Register

from anyprobe.binary.analysis.views import ModuleView
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.decoding.instruction_masks import FETCHED, KEEPS_ALL
from anyprobe.binary.flow.first_bytes import FirstBytes
from anyprobe.binary.flow.nameless import runs_into
from anyprobe.binary.flow.pieces import Pieces
from anyprobe.binary.liveness.fixpoint import Edges
from anyprobe.binary.liveness.module_lines import ModuleLines
from anyprobe.core.arrays import among, joined, places_in, unique
from anyprobe.isa.decode import Flow
from anyprobe.isa.registers import SYSV_CLOBBERED, mask_of

if TYPE_CHECKING:
    from anyprobe.binary.liveness.fixpoint import Ints, Masks

STRANGERS = mask_of(("r11",))
"""What every convention leaves to callees, and to linkage stubs; compilers have neither arguments nor results in it."""
ARGUMENTS = SYSV_CLOBBERED & ~STRANGERS
"""``rax`` says how many vector registers are in use, ``r10`` is the frame of an enclosing function."""
_JUMPS = np.array([Flow.JUMP, Flow.JCC])
_GO_ON = np.array([Flow.NEXT, Flow.JCC, Flow.INDIRECT_CALL])
_RUN_OFF = np.array([Flow.NEXT, Flow.JCC])
"""At the end of a function, where calls do not come back."""
_FOLLOWED = np.array([Flow.NEXT, Flow.RET, Flow.CALL, Flow.INDIRECT_CALL, Flow.JCC, Flow.JUMP, Flow.INDIRECT_JUMP])
_RAX = 1
_BRANCHES = np.array([Kind.NEAR, Kind.SHORT])


class LineGraph:
    """The graph: lines are the first nodes, then come the returns of the functions, then one of which nothing is known.

    A return leads to what is after every call of its function.
    """

    def __init__(self, code_map: ModuleView, lines: ModuleLines) -> None:
        """Look at how each line ends."""
        self._map, self._lines = code_map, lines
        self.returns = len(lines.heads)
        """The node of the first function's return."""
        self.nothing = self.returns + len(lines.functions)
        self.count = self.nothing + 1
        self._numbers = {each.start: number for number, each in enumerate(lines.functions)}
        self._homes: Ints = lines.owners + self.returns
        """By line: the return of its function."""
        self.decided: Masks = np.zeros(self.count, np.int32)
        """What is live after a line wherever it leads."""
        self.keeps_all = (lines.moved_in & KEEPS_ALL) != 0
        """By function, as all that follow."""
        self.strangers = np.zeros(len(lines.functions), np.bool_)
        """Whether it calls code that is not known."""
        self.open: set[int] = set()
        """The returns that lead to code of which nothing is known."""
        self.several: set[int] = set()
        """The returns of functions that are called in their middle, too, and may do less then."""
        self._inside: list[tuple[Ints, Ints]] = []
        self._after: list[tuple[Ints, Ints]] = []
        self._called: list[Ints] = []
        self._entering: list[tuple[Ints, Ints]] = []
        self._back: list[tuple[Ints, Ints]] = []
        self._calls: list[tuple[Ints, Ints]] = []
        self._ending = lines.flows[lines.stops]
        last = lines.stops + 1 == lines.firsts[lines.owners + 1]
        goes_on = among(self._ending, _GO_ON)
        self.decided[: self.returns][last & among(self._ending, _RUN_OFF)] = -1
        self.decided[: self.returns][~among(self._ending, _FOLLOWED)] = -1
        below = np.flatnonzero(goes_on & ~last)
        self._inside.append((below, below + 1))
        self._follow_returns()
        self._follow_jumps()
        self._follow_calls(last)
        self._follow_indirect_calls()
        self._follow_doubts()

    def edges(self) -> tuple[Edges, Edges, Edges]:
        """Return the edges inside functions, those into functions by calls and jumps, and those from returns.

        They are handed out once, since of a large library there are millions.
        """
        found = Edges(self._inside), Edges(self._entering), Edges(self._back)
        self._inside, self._entering, self._back = [], [], []
        return found

    def after_calls(self, overwritten: "Masks") -> Edges:
        """Return the edges from calls to what comes after them, which what calls overwrite does not pass."""
        return Edges(self._after, ~overwritten[joined(self._called)])

    def calls(self) -> Edges:
        """Return the edges from the returns of functions to those of the ones that they call or jump to."""
        return Edges(self._calls)

    def destroyed(self) -> "tuple[Masks, Masks]":
        """Return for each node, if it is a return, what its function itself may destroy, and what it may keep."""
        lines = self._lines
        found, kept = np.zeros(self.count, np.int32), np.zeros(self.count, np.int32)
        moved = lines.moved_in
        found[self.returns : self.nothing] = np.where(self.keeps_all, 0, lines.changed_in & SYSV_CLOBBERED)
        kept[self.returns : self.nothing] = np.where(self.keeps_all, 0, moved & moved >> FETCHED & SYSV_CLOBBERED)
        return found, kept

    def strangers_called(self) -> "Masks":
        """Return for each node, if it is a return, what those may destroy that its function calls unseen."""
        found = np.zeros(self.count, np.int32)
        found[self.returns : self.nothing] = np.where(self.strangers & ~self.keeps_all, STRANGERS, 0)
        return found

    # -- how lines end

    def _ending_in(self, flow: Flow) -> Iterable[tuple[int, int, int]]:
        """Return the lines that end in such an instruction, their functions, and the instruction."""
        lines, ends = self._lines, np.flatnonzero(self._ending == flow)
        return zip(ends.tolist(), lines.owners[ends].tolist(), lines.stops[ends].tolist(), strict=True)

    def _follow_returns(self) -> None:
        """Lead to the callers; where that was no call, there may be code that expects arguments."""
        ends = np.flatnonzero(self._ending == Flow.RET)
        self._back.append((ends, self._homes[ends]))
        for end, owner, stop in self._ending_in(Flow.RET):
            if self.keeps_all[owner] or self._names_target(owner, stop - 1):
                self.decided[end] |= ARGUMENTS

    def _names_target(self, owner: int, number: int) -> bool:
        """Return whether an instruction before a return puts there where it leads, as in retpolines."""
        first = int(self._lines.firsts[owner])
        if number < first:
            return False
        one = self._lines.functions[owner].one(number - first)
        if one.mnemonic == Mnemonic.PUSH:
            return True
        to_memory = one.op_count > 0 and one.op0_kind == OpKind.MEMORY
        place = one.memory_base, one.memory_index, one.memory_displacement
        return to_memory and place == (Register.RSP, Register.NONE, 0)

    def _follow_jumps(self) -> None:
        """Lead where direct jumps and tables do, to labels, and into functions that return for the one that jumps."""
        lines = self._lines
        numbers, targets = lines.jumps
        direct = among(lines.flows[numbers], _JUMPS)
        sources = np.searchsorted(lines.stops, numbers[direct])
        by_table, through_pointers = self._indirect_jumps()
        tables = np.array(by_table, np.int64).reshape(-1, 2)
        sources, targets = np.append(sources, tables[:, 0]), np.append(targets[direct], tables[:, 1])
        found = lines.lines_at(targets)
        own = (found >= 0) & (lines.owners[found] == lines.owners[sources])
        self._inside.append((sources[own], found[own]))
        sources, targets, found = sources[~own], targets[~own], found[~own]
        stubs = self._are_stubs(targets)
        self._leave(np.concatenate([sources[stubs], np.array(through_pointers, np.int64)]))
        self._note_calls(sources, targets, stubs)
        self.decided[sources[~stubs & (found < 0)]] = -1
        known = ~stubs & (found >= 0)
        sources, targets, found = sources[known], targets[known], found[known]
        self._entering.append((sources, found))
        self._back += [(self._homes[found], self._homes[sources]), (sources, self._homes[sources])]
        self._note_middles(sources, targets, found, called=False)

    def _indirect_jumps(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Return lines with the targets of the tables they end in, and those that leave through a pointer."""
        lines, by_table, leaving = self._lines, [], []
        for end, owner, stop in self._ending_in(Flow.INDIRECT_JUMP):
            function, address = lines.functions[owner], int(lines.addresses[stop])
            table = function.table_of(address)
            if table is not None:
                by_table += [(end, target) for target in table.targets]
            elif address in function.unresolved:
                self.decided[end] = -1
            else:
                leaving.append(end)
                labels = lines.lines_at(np.array(lines.labels[owner], np.int64))
                labels = labels[labels >= 0]
                self.strangers[owner] |= not len(labels)  # else it may always stay
                self._inside.append((np.full(len(labels), end), labels))
                self._back.append((self._homes[labels], np.full(len(labels), self._homes[end])))  # of other parts
        return by_table, leaving

    def _leave(self, sources: "Ints") -> None:
        """Lead lines to code that is not known and that returns to the callers."""
        self.decided[sources] |= ARGUMENTS
        self._back.append((sources, self._homes[sources]))

    def _follow_calls(self, last: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> None:
        """Lead into the functions that are called, and to what comes after the calls, where they come back."""
        lines = self._lines
        numbers, targets = lines.calls
        sources = np.searchsorted(lines.stops, numbers)
        stubs = self._are_stubs(targets)
        self._note_calls(sources, targets, stubs)
        self.decided[sources[stubs]] |= ARGUMENTS
        back = sources[stubs & ~last[sources]]
        self._inside.append((back, back + 1))
        found = lines.lines_at(targets)
        self.decided[sources[~stubs & (found < 0)]] = -1
        known = ~stubs & (found >= 0)
        sources, targets, found = sources[known], targets[known], found[known]
        self._entering.append((sources, found))
        ends = last[sources]
        for_this = self._homes[sources[ends]]
        self._back += [(self._homes[found[ends]], for_this), (sources[ends], for_this)]
        self._note_middles(sources[ends], targets[ends], found[ends], called=False)
        below = sources + 1
        below[ends] = self._below_ends(sources[ends], found[ends])
        comes_back = below >= 0
        sources, targets, found, below = (each[comes_back] for each in (sources, targets, found, below))
        homes = self._homes[found]
        self._back += [(homes, below), (self._homes[below], self._homes[sources])]
        self._after.append((sources, below))
        begins = targets == lines.starts[lines.owners[found]]
        self._called.append(np.where(begins, homes, self.nothing))
        self._note_middles(sources, targets, found, called=True)

    def _below_ends(self, sources: "Ints", called: "Ints") -> "Ints":
        """Return what is right after the functions that some calls end, should these come back, or -1."""
        lines = self._lines
        following = [self._map.layout.next_code(lines.functions[owner].end) for owner in lines.owners[sources].tolist()]
        found = lines.lines_at(np.array([-1 if each is None else each for each in following], np.int64))
        doubtful = (found < 0) & np.array([each is not None for each in following], np.bool_)
        self.decided[sources[doubtful]] = -1
        self.open.update(self._homes[called[doubtful]].tolist())
        return found

    def _follow_indirect_calls(self) -> None:
        for end, owner, stop in self._ending_in(Flow.INDIRECT_CALL):
            self.decided[end] |= ARGUMENTS
            self.strangers[owner] |= not self._finds_variable(owner, stop)

    def _finds_variable(self, owner: int, number: int) -> bool:
        """Return whether a call may be that of a thread-local descriptor's function, which changes ``rax`` only.

        The descriptor's address is in ``rax``, and was not read from memory.
        """
        lines, first = self._lines, int(self._lines.firsts[owner])
        function = lines.functions[owner]
        one = function.one(number - first)
        if (one.memory_base, one.memory_index, one.memory_displacement) != (Register.RAX, Register.NONE, 0):
            return False
        head = int(lines.heads[np.searchsorted(lines.heads, number, "right") - 1])
        for before in range(number - 1, head - 1, -1):
            if lines.sets(before) & _RAX:
                setting = function.one(before - first)
                return not (setting.mnemonic == Mnemonic.MOV and setting.op1_kind == OpKind.MEMORY)
        return True

    def _follow_doubts(self) -> None:
        """See to functions that run on into the next one, and to all code of which little is known."""
        self.open.update(home for home in map(self._return_at, self._led_to_from_doubt()) if home is not None)
        for number, function in enumerate(self._lines.functions):
            home = self.returns + number
            if function.broken is not None or runs_into(self._map, function.start):
                self.open.add(home)
            below = self._map.layout.next_code(function.end) if function.runs_past_end is not None else None
            other = self._return_at(below) if below is not None else None
            if other is not None:
                self._back.append((np.array([other]), np.array([home])))

    def _led_to_from_doubt(self) -> list[int]:
        """Return where something may branch to that is in no function, or in one not all of which is understood."""
        lines = self._lines
        doubtful = [each.broken is not None or each.has_gaps for each in lines.functions]
        ends = np.array([*(each.end for each in lines.functions), 0], np.int64)
        found: list[int] = []
        for references, wanted in (
            (self._map.entries.all_references, [*[False] * len(doubtful), True]),
            (self._map.entries.references, [*doubtful, False]),  # all that looks like a branch
        ):
            targets, sources, kinds = references.columns()
            owners = np.searchsorted(lines.starts, sources, "right") - 1
            owners[sources >= ends[owners]] = -1
            found += targets[np.array(wanted)[owners] & among(kinds, _BRANCHES)].tolist()
        return found

    def _return_at(self, address: int) -> int | None:
        """Return the return of the function around an address."""
        start = self._map.layout.start_of(address)
        number = self._numbers.get(start) if start is not None else None
        return self.returns + number if number is not None else None

    # -- who is called

    def _are_stubs(self, targets: "Ints") -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        each = unique(targets)  # functions are called from many places
        stubs = np.fromiter(map(self._map.analyses.get(FirstBytes).is_stub, each.tolist()), np.bool_, len(each))
        return stubs[np.searchsorted(each, targets)]

    def _note_calls(
        self, sources: "Ints", targets: "Ints", stubs: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    ) -> None:
        """Note for functions which ones they call or jump to, if these begin there, and which of them call stubs."""
        lines = self._lines
        owners = lines.owners[sources]
        self.strangers[owners[stubs]] = True
        called = places_in(lines.starts, targets)
        known = (called >= 0) & ~self.keeps_all[owners]
        self._calls.append((owners[known] + self.returns, called[known] + self.returns))

    def _note_middles(self, sources: "Ints", targets: "Ints", found: "Ints", *, called: bool) -> None:
        """Note which functions are entered in their middle, by a call or from what is no part of them."""
        lines = self._lines
        pieces = self._map.analyses.get(Pieces)
        middle = targets != lines.starts[lines.owners[found]]
        owners = zip(lines.owners[sources[middle]].tolist(), lines.owners[found[middle]].tolist(), strict=True)
        for source, owner in set(owners):
            function, start = lines.functions[source], lines.functions[owner].start
            if called or (start != pieces.owner_of(function) and pieces.part_at(start, function) is None):
                self.several.add(self.returns + owner)
