"""The instructions of a module as arrays, and the straight lines that they make."""

from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.decoding.instruction_masks import CANDIDATES, MASKS
from anyprobe.binary.decoding.many_bodies import examine_together, stretches
from anyprobe.binary.flow.exits import find_exits
from anyprobe.binary.flow.pieces import Pieces
from anyprobe.core.arrays import joined, places_in
from anyprobe.core.checkpoints import checkpoint
from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.binary.decoding.together import Column
    from anyprobe.binary.liveness.fixpoint import Ints, Masks


class ModuleLines:
    """All instructions of functions whose instructions are not in doubt, ascending, and their lines.

    A line begins with what anything leads to, and after whatever does not simply go on to the next instruction; it
    goes to where the next one begins.
    """

    def __init__(self, code_map: ModuleView) -> None:
        """Look at every instruction once, and at the functions with indirect jumps more closely."""
        functions = (code_map.function_at(start) for start in code_map.text.function_starts.tolist())
        self.functions = [each for each in functions if not isinstance(each, Refusal)]
        self._map = code_map
        examine_together(self.functions)
        is_known = [each.broken is None for each in self.functions]
        known = list(compress(self.functions, is_known))
        sizes = np.zeros(len(self.functions), np.int64)
        sizes[is_known] = joined(each.sizes for each in stretches(known))
        self.firsts: Ints = np.append(0, np.cumsum(sizes))
        """The first instruction of each function, and the number of all."""
        self.starts: Ints = np.array([each.start for each in self.functions], np.int64)
        self.addresses: Ints = np.empty(self.firsts[-1], np.int64)
        self._masks = np.empty(self.firsts[-1], np.int32)
        jumps, calls, end = list["Column"](), list["Column"](), 0
        for stretch in stretches(known):
            rows = slice(end, end := end + len(stretch.masks))
            self.addresses[rows] = stretch.ends - stretch.lengths
            self._masks[rows] = stretch.masks
            jumps.append((stretch.jumps[0] + rows.start, stretch.jumps[1]))
            calls.append((stretch.calls[0] + rows.start, stretch.calls[1]))
        flows, reads, writes, changed, _, moved, _ = np.array(MASKS, np.int64).reshape(len(MASKS), -1).T
        self.flows = flows.astype(np.uint8)[self._masks]
        # a column of each for all instructions of a large library would take a hundred megabytes
        self._reads, self._writes, self._changed = (each.astype(np.int32) for each in (reads, writes, changed))
        self._overwritten = np.where(flows == Flow.NEXT, self._writes, np.int32(0))
        self.moved_in = self._any_of(moved)
        """By function: what any of its instructions moves."""
        self.changed_in = self._any_of(self._changed)
        """By function: what any of its instructions changes."""
        self.labels = {
            number: _stored_labels(code_map, each)
            for number, each in enumerate(self.functions)
            if each.broken is None and each.indirect_jumps
        }
        """By function: the addresses in it and its parts to which its jumps through pointers may lead."""
        self.jumps = _joined(jumps)
        """Numbers of the direct jumps, and where they lead."""
        self.calls = _joined(calls)
        """Where direct calls lead, as ``jumps``."""
        self.heads: Ints = np.flatnonzero(self._marked())
        """The number of the instruction that each line begins with."""
        self._begins: Ints = self.addresses[self.heads]
        self.stops: Ints = np.append(self.heads, len(self.addresses))[1:] - 1
        """The one that it ends with."""
        self.owners: Ints = np.searchsorted(self.firsts, self.heads, "right") - 1
        """The function of each line."""

    def _marked(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Return which instructions are entered other than from the one above."""
        marks = np.zeros(len(self.addresses) + 1, np.bool_)  # the last one for what is at no instruction
        marks[self.firsts[:-1]] = True
        marks[np.flatnonzero(self.flows != Flow.NEXT) + 1] = True
        tables = [target for number in self.labels for target in self.functions[number].table_targets]
        stored = [address for labels in self.labels.values() for address in labels]
        listed = np.array([*self._map.entries.static_entries(0, 1 << 63), *tables, *stored], np.int64)
        for entered in (listed, self._map.entries.all_references.columns()[0], self.jumps[1]):
            marks[self.numbers_at(entered)] = True
        for number, each in enumerate(self.functions):
            if each.complete is not None:  # anything may be entered
                marks[self.firsts[number] : self.firsts[number + 1]] = True
        return marks[:-1]

    def numbers_at(self, addresses: "Ints") -> "Ints":
        """Return the numbers of the instructions at some addresses, -1 where there is none."""
        return places_in(self.addresses, addresses)

    def lines_at(self, addresses: "Ints") -> "Ints":
        """Return the lines that begin at some addresses, -1 where none does."""
        return places_in(self._begins, addresses)

    def sets(self, number: int) -> int:
        """Return the registers that an instruction may set."""
        masks = self._masks[number]
        return int(self._writes[masks] | self._changed[masks])

    def _any_of(self, by_mask: "NDArray[np.int32] | Ints") -> "Ints":
        """Return for each function what any of its instructions has, as said by the numbers of masks."""
        found = np.zeros(len(self.functions), np.int64)
        filled = np.flatnonzero(np.diff(self.firsts))
        if len(filled):
            found[filled] = np.bitwise_or.reduceat(by_mask[self._masks], self.firsts[filled])
        return found

    @cached_property
    def _by_length(self) -> "tuple[Ints, list[int]]":
        """Lines, the longest first, and how many are longer than 0, 1, 2 ... instructions."""
        lengths = self.stops - self.heads + 1
        order: Ints = np.argsort(-lengths, kind="stable")
        longer = np.cumsum(np.bincount(lengths)[::-1])[::-1][1:]
        return order, longer.tolist()

    def composed(self) -> "tuple[Masks, Masks]":
        """Return what is live before each line whatever follows it, and what is undecided after it."""
        order, longer = self._by_length
        heads = self.heads[order]
        live, pending = np.zeros(len(order), np.int32), np.full(len(order), CANDIDATES, np.int32)
        for step, count in enumerate(longer):
            checkpoint()
            at = self._masks[heads[:count] + step]
            live[:count] |= pending[:count] & self._reads[at]
            pending[:count] &= ~(live[:count] | self._overwritten[at])
        back = np.argsort(order)
        return live[back], pending[back]

    def spread(self, after: "Masks") -> "NDArray[np.uint32]":
        """Return what is live before each instruction from what is live after each line."""
        order, longer = self._by_length
        stops, now = self.stops[order], after[order]
        found = np.empty(len(self.addresses), np.uint32)
        for step, count in enumerate(longer):
            checkpoint()
            at = stops[:count] - step
            masks = self._masks[at]
            now[:count] = self._reads[masks] | now[:count] & ~self._overwritten[masks]
            found[at] = now[:count] & CANDIDATES
        return found


def _joined(columns: "list[Column]") -> "Column":
    numbers, targets = (joined(each) for each in zip(*columns, strict=True)) if columns else (joined(()), joined(()))
    return numbers, targets


def _stored_labels(code_map: ModuleView, function: FunctionView) -> list[int]:
    """Return the addresses that are stored or taken in a function and its parts: where its pointers may lead jumps."""
    owner = code_map.analyses.get(Pieces).owner_of(function)
    whole = code_map.function_at(owner) if owner is not None else function
    parts = whole.analyses.get(find_exits).parts if not isinstance(whole, Refusal) else (function,)
    found: list[int] = []
    for part in parts:
        low, high = part.start + (part is whole), part.end  # the first byte of a part may have a label, too
        found += code_map.entries.static_entries(low, high)
        for target, source, kind in code_map.entries.references.into(low, high):
            if kind is Kind.LEA or (kind is Kind.ABSOLUTE and not _is_distance(code_map, source)):
                found.append(target)
    return found


def _is_distance(code_map: ModuleView, address: int) -> bool:
    """Return whether the bytes at an address say how far from an instruction its operand is, not where."""
    owner = code_map.containing(address)
    insn = owner.covering(address) if owner is not None and owner.broken is None else None
    if insn is None or not insn.iced.is_ip_rel_memory_operand:
        return False
    distance = insn.iced.ip_rel_memory_address - insn.end & (1 << 32) - 1
    return insn.raw[address - insn.address :][:4] == distance.to_bytes(4, "little")
