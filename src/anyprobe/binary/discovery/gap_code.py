"""Code that nothing lists, as control comes to it from what is known to begin there."""

import contextlib
import struct
from collections.abc import Collection, Container, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from iced_x86 import Code, OpKind, Register

from anyprobe.binary.decoding.code_scan import jump_tables, words_into
from anyprobe.binary.decoding.handwritten_calls import comes_back, hops, is_system_call, system_call_line
from anyprobe.binary.decoding.stack_depth import Balance, Seen, balance, is_zeros, takes_return
from anyprobe.binary.discovery.gap_starts import ENDS, TAKERS, Judge
from anyprobe.binary.discovery.gaps import Gaps
from anyprobe.binary.objects.padding import ALIGNED, padding_length
from anyprobe.binary.objects.text import ModuleText
from anyprobe.core.arrays import unique
from anyprobe.core.checkpoints import checkpoint
from anyprobe.core.memory import MemoryFault
from anyprobe.isa.decode import CALLS, FLOWS, JUMPS, Flow

if TYPE_CHECKING:
    from iced_x86 import Instruction

_MOST_ENTRIES = 4096
_WORD = 8
_MOST_NOPS = 256


class GapCode:
    """Follows control from the starts that are known so far, and finds more of them."""

    def __init__(
        self, gaps: Gaps, text: ModuleText, known: Container[int], seen: Seen, refused: Container[int]
    ) -> None:
        """Know nothing yet; ``known`` are functions that are listed, and stubs, ``refused`` addresses are no starts."""
        self.gaps, self.seen, self.refused = gaps, seen, refused
        self._text, self._known = text, known
        self.starts: set[int] = set()
        self.called: set[int] = set()
        """What calls lead to, those of starts that make no sense included."""
        self.reached: dict[int, Instruction] = {}
        """The instructions that control comes to."""
        self.middles: set[int] = set()
        """The addresses inside of them."""
        self.aims: set[int] = set()
        """Where jumps lead."""
        self.tables: dict[int, Sequence[int]] = {}
        """The labels in tables, by the jump that reads them."""
        self.labels: set[int] = set()
        """The labels of all that looks like a table of addresses."""
        self._homes: dict[int, int] = {}
        """From which start an instruction was reached first."""
        self._clashes: list[tuple[int, int]] = []
        """Two starts of which one leads into the middle of an instruction that the other leads to."""
        self._taken: set[int] = set()
        """What instructions take the addresses of: code, or tables, and numbers that only look so."""
        self.last_calls: set[int] = set()
        """Calls that do not return."""
        self._ends_of_tables: dict[int, int] = {}
        self._awaited: dict[int, int] = {}
        """Calls that may not return, by where code goes on after the padding, should a jump lead there."""
        if not text.is_pie:
            self._find_tables()

    def begin(self, starts: Iterable[int]) -> None:
        """Take some addresses that are called for starts, and what is called from there."""
        self._begin(starts)
        self.called.update(starts)

    def _begin(self, starts: Iterable[int]) -> None:
        todo = [start for start in starts if self.gaps.number(start) is not None]
        while todo:
            checkpoint()
            start = todo.pop()
            if start in self.middles:
                self._clash(start, start)
            elif start not in self.starts and self.gaps.number(start) is not None:
                self.starts.add(start)
                more = self._follow(start)
                self.called.update(more)
                todo += more

    def _clash(self, address: int, start: int) -> None:
        covering = next((at for at in range(address - 1, address - 15, -1) if at in self._homes), address)
        self._clashes.append((start, self._homes.get(covering, start)))

    def doubtful(self) -> set[int]:
        """Return the starts that nothing but pointers lead to, and that make no sense together with others."""
        return {start for pair in self._clashes for start in pair if start in self.starts} - self.called

    def suspected(self) -> set[int]:
        """Return the calls that are taken for the last of their functions only since code may begin after them."""
        return {call for aim, call in self._awaited.items() if aim not in self.starts}

    def _follow(self, start: int) -> list[int]:
        """Reach what a start leads to; return what is called there."""
        called: list[int] = []
        todo = [start]
        while todo:
            at = todo.pop()
            while at not in self.reached:
                if at in self.middles:
                    self._clash(at, start)
                    break
                one = self.gaps.instruction_at(at)
                if one is None:
                    break
                if one.code == Code.INVALID or is_zeros(one):
                    self._clashes.append((start, start))
                    break
                self._homes[at] = start
                self.reached[at] = one
                self.middles.update(range(at + 1, one.next_ip))
                flow = FLOWS[one.code]
                if flow in JUMPS:
                    aim = one.near_branch_target
                    self.aims.add(aim)
                    todo.append(aim)
                    if aim in self._awaited:
                        call = self._awaited.pop(aim)
                        self.last_calls.discard(call)
                        todo.append(self.reached[call].next_ip)
                elif flow is Flow.CALL and hops(one, self.gaps.instruction_at):
                    at = one.near_branch_target
                    self.aims.add(at)
                    continue
                elif flow is Flow.CALL and one.near_branch_target != one.next_ip:
                    called.append(one.near_branch_target)
                    if takes_return(one.near_branch_target, self.gaps.instruction_at):
                        break
                elif flow is Flow.INDIRECT_JUMP:
                    todo += self._labels_of(one)
                elif one.code == Code.LEA_R64_M and one.memory_base == Register.RIP:
                    self._taken.add(one.memory_displacement)
                elif one.code in TAKERS and not self._text.is_pie:
                    self._taken.add(one.immediate(one.op_count - 1) & 0xFFFF_FFFF)
                if flow in ENDS or (is_system_call(one) and self._may_not_come_back(one)):
                    break
                at = one.next_ip
                if flow in CALLS and self._may_end(one):
                    self.last_calls.add(one.ip)
                    break
        return called

    def _may_not_come_back(self, call: "Instruction") -> bool:
        """Return whether a system call may end the program, or the thread."""
        line = system_call_line(call.ip, self.above, self.aims.__contains__)
        return not comes_back(call, line, self.gaps.instruction_at(call.next_ip))

    def above(self, address: int) -> "Instruction | None":
        """Return the instruction that was reached and ends at an address."""
        found = (self.reached.get(address - length) for length in range(1, 16))
        return next((one for one in found if one is not None and one.next_ip == address), None)

    def _may_end(self, call: "Instruction") -> bool:
        """Return whether a call is one that does not return: what follows, after padding, is a function.

        It keeps its stack in balance, as what follows a call cannot, since there the frame of the caller ends; and
        nothing jumps over the padding.
        """
        after = call.next_ip
        if self.gaps.number(after) is None or after in self.starts:
            return True
        if call.code == Code.CALL_REL32_64 and call.near_branch_target in self.seen.no_return:
            return True
        length = self.gaps.padding_at(after)
        aim = after + length
        if length == 0 or aim & ALIGNED or aim in self.aims:
            return False
        if balance(aim, self.gaps.instruction_at, self.seen) is Balance.BROKEN:
            return False
        self._awaited[aim] = call.ip
        return True

    def _labels_of(self, jump: "Instruction") -> Sequence[int]:
        """Return where an indirect jump leads by its table: ``jmp [table + index*8]`` shows where that is."""
        known = self.seen.tables.get(jump.ip)
        if known is not None:
            self.tables[jump.ip] = known
            return known
        if jump.op0_kind != OpKind.MEMORY or jump.memory_index_scale != _WORD or jump.memory_base != Register.NONE:
            return []
        table = jump.memory_displacement
        labels = self._entries(table, self._ends_of_tables.get(table, table))
        if labels:
            self.tables[jump.ip] = labels
        return labels

    def _find_tables(self) -> None:
        """Find the labels that jumps look up in tables; one ends where something else in the data is referred to."""
        code = self.gaps.code()
        tables = jump_tables(code)
        if tables:
            low, high = np.array(tables[:1], np.int64), np.array(tables[-1:], np.int64) + _WORD * _MOST_ENTRIES
            others = unique(words_into(tuple(code), low, high)[0])
            ends = np.append(others, high)[np.searchsorted(others, tables, side="right")]
            self._ends_of_tables = dict(zip(tables, ends.tolist(), strict=True))
            for table, end in self._ends_of_tables.items():
                self.labels.update(self._entries(table, end))

    def _entries(self, table: int, end: int) -> list[int]:
        """Return the addresses in a table that lie in gaps, up to the first that does not."""
        found: list[int] = []
        with contextlib.suppress(MemoryFault):
            for place in range(table, end, _WORD):
                (entry,) = struct.unpack("<Q", self._text.memory.read(place, _WORD))
                if self.gaps.number(entry) is None:
                    break
                found.append(entry)
        return found

    def take(self, pointers: Collection[int], taken: Iterable[int]) -> None:
        """Take those of some stored addresses for starts that look like such, and of those that instructions take."""
        self._taken.update(taken)
        judge = Judge(self, self._text, self._known)
        before = -1
        while before < len(self.starts):
            before = len(self.starts)
            for pointer in sorted(self._taken.union(pointers)):
                if (
                    pointer not in self.starts
                    and not self._is_sled(pointer, pointers)
                    and judge.looks_like_start(pointer, is_stored=pointer in pointers)
                ):
                    self._begin([pointer])

    def _is_sled(self, address: int, pointers: Container[int]) -> bool:
        """Return whether the nops here belong to a function further on (gcc's ``-fpatchable-function-entry=N,M``)."""
        for at in range(address, address + _MOST_NOPS):
            one = self.gaps.instruction_at(at)
            if one is None or one.code != Code.NOPD or one.len != 1:
                return False
            if at + 1 in pointers or at + 1 in self.starts:
                return True
        return False

    def explains_everything(self) -> bool:
        """Return whether all of the gaps is reached or padding."""
        for low, content in zip(self.gaps.lows, self.gaps.contents, strict=True):
            at = 0
            while at < len(content):
                one = self.reached.get(low + at)
                step = one.len if one is not None else padding_length(content, at)
                if step == 0:
                    return False
                at += step
        return True
