"""``.eh_frame`` as a sorted table: for each range of code, how the caller's frame is found from one's own.

A row is a start (relative to the lowest address of the object) and a rule, and holds up to the next row. What handlers
need to go up a stack fits 32 bits: where the canonical frame address is (the stack pointer before the call), and
where ``rbp`` was saved. The return address is right below that address; what has it elsewhere has no rule.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.goroutines import FunctionRecords
from anyprobe.binary.objects.leb128 import read_sleb, read_uleb
from anyprobe.binary.unwind.eh_frame import entry_addresses, read_encoded, sorted_entries

NONE, OF_RSP, OF_RBP, AT_RBP, STUB, SIGNAL, END, GO = range(8)
"""Kinds of rules, in the lowest three bits.

The frame address is: ``rsp`` plus the offset; ``rbp`` plus it; the word at ``rbp`` plus it, ``rbp`` being saved where
it points; ``rsp`` plus 8, and 8 more where the lowest four bits of the pc reach the offset; in a signal frame. ``END``:
there is no caller. ``GO``, which is in no table: ``rsp`` plus the offset, and the caller's ``rbp`` is not known.
Offsets are in words, in the upper half, signed.
"""
SAVED_SHIFT, SAVED_MASK = 3, (1 << 13) - 1
"""How many words below the frame address ``rbp`` is saved; 0: it is still there."""
OFFSET_SHIFT = 16
FRAME_LIMIT = 1 << 20
"""Bytes between a stack pointer and what can be a frame pointer."""
SIGNAL_RBP, SIGNAL_RSP, SIGNAL_RIP = 120, 160, 168
"""In the kernel's ``ucontext``, which a signal-return trampoline finds at its stack pointer."""
_RBP, _RSP, _RETURN = 6, 7, 16
_WORD = 8
_DEREFERENCED = 0x06
_STUB_EXPRESSIONS = {
    # breg7 8; breg16 0; lit15; and; lit11 (or lit10); ge; lit3; shl; plus
    bytes.fromhex(f"77 08 80 00 3f 1a {0x30 + least:02x} 2a 33 24 22"): least
    for least in (10, 11)
}


class _State(NamedTuple):
    """What the rules say at one place."""

    base: int = -1
    """The register of the frame address, -1: none that is known."""
    offset: int = 0
    kind: int = NONE
    """Set where the frame address is computed otherwise."""
    saved: int = 0
    """Where ``rbp`` is saved, from the frame address on; 0: nowhere."""
    by_itself: bool = False
    """Whether ``rbp`` is saved where it points."""
    returns: str = "below"
    """Where the return address is: below the frame address, nowhere (``end``), or elsewhere (``lost``)."""


@cache
def _rule_of(state: _State) -> int:
    """Return the state as a number."""
    base, offset, kind, saved, by_itself, returns = state
    if returns == "end":
        return END
    if kind == NONE and not by_itself:
        kind = {_RSP: OF_RSP, _RBP: OF_RBP}.get(base, NONE)
    if kind == AT_RBP and not by_itself:
        kind = NONE
    words = offset if kind == STUB else offset // _WORD
    whole = (kind == STUB or offset % _WORD == 0) and saved % _WORD == 0
    fits = 0 <= -saved // _WORD <= SAVED_MASK and -(1 << 15) <= words < 1 << 15
    if kind == NONE or returns != "below" or not fits or not whole:
        return NONE
    return kind | -saved // _WORD << SAVED_SHIFT | (words & 0xFFFF) << OFFSET_SHIFT


@dataclass(frozen=True, slots=True)
class _Common:
    """A CIE, as far as it matters here."""

    pointer: int
    augmented: bool
    signal: bool
    code_unit: int
    data_unit: int
    initial: bytes


@dataclass(frozen=True)
class UnwindRules:
    """The table of one object."""

    starts: NDArray[np.uint32]
    rules: NDArray[np.uint32]

    def at(self, offset: int) -> int:
        """Return the rule at an offset from the object's lowest address."""
        row = int(np.searchsorted(self.starts, offset, side="right")) - 1
        return int(self.rules[row]) if row >= 0 else NONE


_Entry = tuple[int, int, list[tuple[int, int]]]
"""Where the code of an unwind entry starts and ends, and its rows: distances from the start, and rules."""


def unwind_rules(elf: ElfFile, base: int) -> UnwindRules:
    """Return the table of an object whose lowest address is ``base``; an object without ``.eh_frame`` has no rows."""
    try:
        return _Reader(elf, base).table()
    except (LookupError, ValueError, struct.error, StopIteration) as error:
        raise elf.damaged(f"the unwind table: {error}") from error


@dataclass
class _Reader:
    elf: ElfFile
    base: int = 0
    _commons: dict[int, _Common] = field(default_factory=dict)
    _programs: dict[tuple[int, bytes], list[tuple[int, int]]] = field(default_factory=dict)
    """Most functions have the same few programs."""

    def table(self) -> UnwindRules:
        places = entry_addresses(self.elf)
        if not len(places):
            return UnwindRules(np.empty(0, np.uint32), np.empty(0, np.uint32))
        low = int(places.min())
        segment = next(each for each in self.elf.loads if each.vaddr <= low < each.vaddr + each.filesz)
        content = self.elf.read(segment.vaddr, segment.filesz)
        entries = sorted(self._entries(content, segment.vaddr, places.tolist()), key=lambda entry: entry[0])
        starts: list[int] = []
        rules: list[int] = []
        end = 0
        for start, stop, rows in entries:
            if end and end < start:
                starts.append(end)
                rules.append(NONE)
            for delta, rule in rows:
                if start + delta < stop:
                    starts.append(start + delta)
                    rules.append(rule)
            end = stop
        starts.append(end)
        rules.append(NONE)
        found = np.array(starts, np.int64) - self.base
        inside = (found >= 0) & (found < 1 << 32)
        found, numbers = found[inside], np.array(rules, np.uint32)[inside]
        order = np.argsort(found, kind="stable")  # entries that overlap, which there should not be
        return _without_repetition(found[order].astype(np.uint32), numbers[order])

    def _entries(self, content: bytes, address: int, places: list[int]) -> Iterator[_Entry]:
        """Yield start, end and rows of each entry."""
        for place in places:
            at = place - address
            if 0 <= at <= len(content) - 8:
                entry = self._entry(content, at, place)
                if entry is not None:
                    yield entry

    def entry(self, place: int) -> _Entry | None:
        """Return start, end and rows of the entry at an address."""
        length = struct.unpack("<I", self.elf.read(place, 4))[0]
        return self._entry(self.elf.read(place, 4 + length), 0, place)

    def _entry(self, content: bytes, at: int, place: int) -> _Entry | None:
        """Return the entry at an offset of some content, whose address is ``place``; None if it is of no code."""
        length, back = struct.unpack_from("<II", content, at)
        common_at = place + 4 - back
        common = self._commons.get(common_at)
        if common is None:
            size = struct.unpack("<I", self.elf.read(common_at, 4))[0]
            common = self._commons[common_at] = _read_common(self.elf.read(common_at, 4 + size), 0)
        end = at + 4 + length
        start, after = read_encoded(content, at + 8, common.pointer, place + 8)
        size, after = read_encoded(content, after, common.pointer & 0x0F, 0)
        if common.augmented:
            skipped, after = read_uleb(content, after)
            after += skipped
        if not start or not size:
            return None
        program = content[after:end]
        key = (common_at, program)
        rows = self._programs.get(key)
        if rows is None:
            rows = self._programs[key] = _run(common, program)
        return start, start + size, rows


class RulesOfEntries:
    """The rules of one object, each function's read when it is first asked for: of few functions that is quicker."""

    def __init__(self, elf: ElfFile, base: int, table: NDArray[np.int64]) -> None:
        """Look entries up in the object's sorted table; offsets count from ``base``."""
        self._reader = _Reader(elf)
        self._base = base
        self._starts, self._places = np.ascontiguousarray(table[:, 0]), table[:, 1]
        self._known: dict[int, _Entry | None] = {}

    def at(self, offset: int) -> int:
        """Return the rule at an offset from the object's lowest address."""
        address = self._base + offset
        row = int(np.searchsorted(self._starts, address, side="right")) - 1
        if row < 0:
            return NONE
        if row not in self._known:
            self._known[row] = self._entry(int(self._places[row]))
        entry = self._known[row]
        if entry is None or not entry[0] <= address < entry[1]:
            return NONE
        return next(rule for delta, rule in reversed(entry[2]) if entry[0] + delta <= address)

    def _entry(self, place: int) -> _Entry | None:
        try:
            return self._reader.entry(place)
        except (LookupError, ValueError, struct.error):  # it is damaged, or a program is that has no rules then
            return None


def go_rule(functions: FunctionRecords, address: int) -> int:
    """Return the rule that Go's own tables, which have no registers but the stack pointer, give for an address."""
    try:
        if functions.is_outermost(address):
            return END
        depth = functions.stack_depth(address)
    except (IndexError, struct.error):  # it is damaged
        return NONE
    return NONE if depth is None or depth < 0 or depth % _WORD else GO | (depth // _WORD + 1) << OFFSET_SHIFT


def rules_at_demand(elf: ElfFile, base: int) -> "RulesOfEntries | UnwindRules":
    """Return the rules of an object whose lowest address is ``base``, read when they are asked for if possible."""
    table = sorted_entries(elf)
    return unwind_rules(elf, base) if table is None else RulesOfEntries(elf, base, table)


def _without_repetition(starts: NDArray[np.uint32], rules: NDArray[np.uint32]) -> UnwindRules:
    """Return the table without rows that say what the row above does."""
    last = np.ones(len(rules), np.bool_)  # of rows with one start the last one counts
    last[:-1] = starts[:-1] != starts[1:]
    starts, rules = starts[last], rules[last]
    differs = np.ones(len(rules), np.bool_)
    differs[1:] = rules[1:] != rules[:-1]
    return UnwindRules(starts[differs], rules[differs])


def _read_common(content: bytes, at: int) -> _Common:
    length = struct.unpack_from("<I", content, at)[0]
    end = at + 4 + length
    version, text_end = content[at + 8], content.index(b"\0", at + 9)
    augmentation = content[at + 9 : text_end].decode("ascii")
    place = text_end + 1 + (8 if augmentation.startswith("eh") else 0)
    code_unit, place = read_uleb(content, place)
    data_unit, place = read_sleb(content, place)
    place = place + 1 if version == 1 else read_uleb(content, place)[1]
    pointer = 0
    augmented = augmentation.startswith("z")
    if augmented:
        size, place = read_uleb(content, place)
        inside = place
        for letter in augmentation[1:]:
            if letter == "R":
                pointer, inside = content[inside], inside + 1
            elif letter == "L":
                inside += 1
            elif letter == "P":
                _, inside = read_encoded(content, inside + 1, content[inside], 0)
        place += size
    return _Common(pointer, augmented, "S" in augmentation, code_unit, data_unit, content[place:end])


def _run(common: _Common, program: bytes) -> list[tuple[int, int]]:
    """Return the rows of one entry: distances from its start, and rules."""
    if common.signal:
        return [(0, SIGNAL)]
    machine = _Machine(common)
    machine.run(common.initial)
    machine.initial = machine.state
    machine.run(program)
    return machine.rows


class _Machine:
    """Runs call frame instructions; what it does not know ends it, and the rest has no rule."""

    def __init__(self, common: _Common) -> None:
        self._common = common
        self.state = self.initial = _State()
        self.done: list[tuple[int, int]] = []
        self._stack: list[_State] = []
        self._location = 0

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Distances at which rules begin, and the rules."""
        return [*self.done, (self._location, _rule_of(self.state))]

    def run(self, program: bytes) -> None:
        at, end = 0, len(program)
        while at < end:
            op = program[at]
            high, low = op & 0xC0, op & 0x3F
            if high == 0x40:
                self._advance(low)
                at += 1
            elif op == 0x0E and program[at + 1] < 0x80:  # def_cfa_offset, by far the commonest
                state = self.state
                self.state = _State(state[0], program[at + 1], *state[2:])
                at += 2
            elif high == 0x80:
                value, at = read_uleb(program, at + 1)
                if low in (_RBP, _RETURN):
                    self._saved(low, value * self._common.data_unit)
            elif high == 0xC0:
                if low in (_RBP, _RETURN):
                    self._restored(low)
                at += 1
            else:
                at = self._extended(program, at, op)

    def _advance(self, units: int) -> None:
        self.done.append((self._location, _rule_of(self.state)))
        self._location += units * self._common.code_unit

    def _saved(self, register: int, offset: int) -> None:
        if register == _RBP:
            self.state = self.state._replace(saved=offset, by_itself=False)
        elif register == _RETURN:
            self.state = self.state._replace(returns="below" if offset == -_WORD else "lost")

    def _restored(self, register: int) -> None:
        if register == _RBP:
            self.state = self.state._replace(saved=self.initial.saved, by_itself=False)
        elif register == _RETURN:
            self.state = self.state._replace(returns=self.initial.returns)

    def _extended(self, program: bytes, at: int, op: int) -> int:
        """Run an instruction with operands; return where the next one is."""
        width = {0x02: 1, 0x03: 2, 0x04: 4}.get(op)
        if width is not None:
            self._advance(int.from_bytes(program[at + 1 : at + 1 + width], "little"))
            return at + 1 + width
        at += 1
        if op == 0x00:  # nop
            return at
        if op == 0x0A:  # remember_state
            self._stack.append(self.state)
            return at
        if op == 0x0B:  # restore_state
            self.state = self._stack.pop() if self._stack else _State()
            return at
        if op in (0x0D, 0x0E, 0x13, 0x2E):
            return self._with_one(program, at, op)
        if op in (0x05, 0x09, 0x0C, 0x11, 0x12, 0x14, 0x15, 0x2F):
            return self._with_two(program, at, op)
        if op in (0x06, 0x07, 0x08):
            register, at = read_uleb(program, at)
            self._without_place(register, op)
            return at
        if op in (0x0F, 0x10, 0x16):
            return self._with_expression(program, at, op)
        self.state = self.state._replace(returns="lost")
        return len(program)

    def _with_one(self, program: bytes, at: int, op: int) -> int:
        """def_cfa_register, def_cfa_offset, def_cfa_offset_sf, GNU_args_size."""
        value, after = read_uleb(program, at)
        if op == 0x13:
            value = read_sleb(program, at)[0] * self._common.data_unit
        if op == 0x0D:
            self.state = self.state._replace(base=value, kind=NONE)
        elif op in (0x0E, 0x13):
            self.state = self.state._replace(offset=value)
        return after

    def _with_two(self, program: bytes, at: int, op: int) -> int:
        """def_cfa, def_cfa_sf, offset_extended and its kin, register, val_offset."""
        register, at = read_uleb(program, at)
        value, after = read_uleb(program, at)
        signed = read_sleb(program, at)[0]
        if op in (0x0C, 0x12):
            offset = value if op == 0x0C else signed * self._common.data_unit
            self.state = self.state._replace(base=register, offset=offset, kind=NONE)
        elif op in (0x05, 0x11, 0x2F):
            units = {0x05: value, 0x11: signed, 0x2F: -value}[op]
            self._saved(register, units * self._common.data_unit)
        else:
            self._lost(register)
        return after

    def _without_place(self, register: int, op: int) -> None:
        """restore_extended, undefined, same_value."""
        if op == 0x06:
            self._restored(register)
        elif op == 0x07 and register == _RETURN:
            self.state = self.state._replace(returns="end")
        elif op == 0x08 and register == _RBP:
            self.state = self.state._replace(saved=0, by_itself=False)

    def _with_expression(self, program: bytes, at: int, op: int) -> int:
        """def_cfa_expression, expression, val_expression."""
        register = -1
        if op != 0x0F:
            register, at = read_uleb(program, at)
        size, at = read_uleb(program, at)
        block = program[at : at + size]
        of_rbp = block[:1] == bytes([0x70 + _RBP])
        if op == 0x0F and block in _STUB_EXPRESSIONS:
            self.state = self.state._replace(kind=STUB, offset=_STUB_EXPRESSIONS[block])
        elif op == 0x0F and of_rbp and block[-1] == _DEREFERENCED and read_sleb(block, 1)[1] == len(block) - 1:
            self.state = self.state._replace(kind=AT_RBP, offset=read_sleb(block, 1)[0])
        elif op == 0x0F:
            self.state = self.state._replace(base=-1, kind=NONE)
        elif op == 0x10 and register == _RBP and of_rbp and block[1:] == b"\0":
            self.state = self.state._replace(saved=0, by_itself=True)
        else:
            self._lost(register)
        return at + size

    def _lost(self, register: int) -> None:
        """A register is somewhere that no rule here can say."""
        if register in (_RBP, _RETURN):
            self.state = self.state._replace(returns="lost")
