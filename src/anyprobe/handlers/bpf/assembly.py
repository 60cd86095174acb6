"""Instructions of the kernel's machine, written one by one, with labels, and references to maps."""

import struct
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from anyprobe.core.code import StorageReference
from anyprobe.handlers.ir import nodes as ir

FRAME: Final = 10
"""The register that points after the stack."""
_ALU, _ALU32, _JUMP = 0x07, 0x04, 0x05
_FROM_REGISTER = 0x08
OPERATIONS: Mapping[str, int] = MappingProxyType({
    "+": 0x00, "-": 0x10, "*": 0x20, "//": 0x30, "|": 0x40, "&": 0x50, "<<": 0x60, ">>": 0x70, "%": 0x90, "^": 0xA0,
    "=": 0xB0, "s>>": 0xC0,
})  # fmt: skip
"""On 64 bits; quotients and remainders are of numbers without a sign."""
JUMPS: Mapping[str, int] = MappingProxyType({
    "==": 0x10, ">": 0x20, ">=": 0x30, "!=": 0x50, "s>": 0x60, "s>=": 0x70, "<": 0xA0, "<=": 0xB0, "s<": 0xC0,
    "s<=": 0xD0,
})  # fmt: skip
_SIZES: Mapping[int, int] = MappingProxyType({1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18})
_LOAD, _STORE, _STORE_NUMBER, _ATOMIC = 0x61, 0x63, 0x62, 0xDB
_ADD, _FETCH, _COMPARE_AND_EXCHANGE = 0x00, 0x01, 0xF1
_NEGATE, _CALL, _EXIT, _GO, _ADDRESS = 0x87, 0x85, 0x95, 0x05, 0x18


def fits(number: int) -> bool:
    """Return whether a number can be part of an instruction."""
    return -(1 << 31) <= number < 1 << 31


def instruction(code: int, target: int = 0, source: int = 0, jump: int = 0, number: int = 0) -> bytes:
    """Return one instruction."""
    return struct.pack("<BBhi", code, target | source << 4, jump, number)


class Assembly:
    """A program being written; registers are numbers."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._code: list[bytes] = []
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []
        self._names = 0
        self.references: list[StorageReference] = []
        self._marks: list[tuple[int, ir.Mark]] = []
        self.places: tuple[tuple[int, ir.Mark], ...] = ()
        """Where the code of each marked place in the source begins, once it is finished."""

    def __len__(self) -> int:
        """Return the number of instructions."""
        return len(self._code)

    def fresh(self) -> str:
        """Return a new label."""
        self._names += 1
        return f".{self._names}"

    def mark(self, place: ir.Mark) -> None:
        """Note of which place in the source the instructions are that follow."""
        self._marks.append((len(self._code), place))

    def here(self, label: str) -> None:
        """Let a label be the next instruction."""
        self._labels[label] = len(self._code)

    def _add(self, code: int, target: int = 0, source: int = 0, jump: int = 0, number: int = 0) -> None:
        self._code.append(instruction(code, target, source, jump, number))

    def put(self, target: int, number: int) -> None:
        """Load a number."""
        number = (number & (1 << 64) - 1) - (number >> 63 & 1) * (1 << 64)
        if fits(number):
            self._add(_ALU | OPERATIONS["="], target, number=number)
            return
        low, high = struct.unpack("<ii", struct.pack("<q", number))
        self._add(_ADDRESS, target, number=low)
        self._add(0, number=high)

    def copy(self, target: int, source: int) -> None:
        """Copy a register."""
        if target != source:
            self.compute("=", target, source)

    def compute(self, symbol: str, target: int, source: int) -> None:
        """Compute with two registers."""
        self._add(_ALU | OPERATIONS[symbol] | _FROM_REGISTER, target, source)

    def compute_number(self, symbol: str, target: int, number: int) -> None:
        """Compute with a register and a number."""
        self._add(_ALU | OPERATIONS[symbol], target, number=number)

    def negate(self, target: int) -> None:
        """Change the sign."""
        self._add(_NEGATE, target)

    def cut(self, target: int, bits: int, *, signed: bool) -> None:
        """Extend the lower bits of a register to 64."""
        if bits == 32 and not signed:
            self._add(_ALU32 | OPERATIONS["="] | _FROM_REGISTER, target, target)
            return
        self.compute_number("<<", target, 64 - bits)
        self.compute_number("s>>" if signed else ">>", target, 64 - bits)

    def load(self, target: int, base: int, offset: int, size: int = 8) -> None:
        """Load from memory."""
        self._add(_LOAD | _SIZES[size], target, base, offset)

    def store(self, base: int, offset: int, source: int, size: int = 8) -> None:
        """Store a register."""
        self._add(_STORE | _SIZES[size], base, source, offset)

    def store_number(self, base: int, offset: int, number: int) -> None:
        """Store a number in a word."""
        self._add(_STORE_NUMBER | _SIZES[8], base, 0, offset, number)

    def atomic_add(self, base: int, offset: int, source: int) -> None:
        """Add to a word at once."""
        self._add(_ATOMIC, base, source, offset, _ADD)

    def fetch_and_add(self, base: int, offset: int, source: int) -> None:
        """Add to a word at once; the register becomes what it was."""
        self._add(_ATOMIC, base, source, offset, _ADD | _FETCH)

    def compare_and_exchange(self, base: int, offset: int, source: int) -> None:
        """Store a register if the word is as r0; r0 is what it was."""
        self._add(_ATOMIC, base, source, offset, _COMPARE_AND_EXCHANGE)

    def call(self, function: int) -> None:
        """Call one of the kernel's functions."""
        self._add(_CALL, number=function)

    def leave(self) -> None:
        """End the program."""
        self._add(_EXIT)

    def go(self, label: str) -> None:
        """Continue at a label."""
        self._jumps.append((len(self._code), label))
        self._add(_GO)

    def go_if(self, symbol: str, left: int, right: int, label: str) -> None:
        """Continue at a label if two registers compare so."""
        self._jumps.append((len(self._code), label))
        self._add(_JUMP | JUMPS[symbol] | _FROM_REGISTER, left, right)

    def go_if_number(self, symbol: str, left: int, number: int, label: str) -> None:
        """Continue at a label if a register and a number compare so."""
        self._jumps.append((len(self._code), label))
        self._add(_JUMP | JUMPS[symbol], left, number=number)

    def address(self, target: int, storage: int, offset: int = 0, *, table: bool = False) -> None:
        """Load the address of a storage's region, or its table."""
        self.references.append(StorageReference(len(self._code), storage, table))
        self._add(_ADDRESS, target, number=offset)
        self._add(0)

    def finish(self) -> tuple[bytes, tuple[StorageReference, ...]]:
        """Return the program, without what cannot be reached, which the kernel does not take; and its references."""
        targets = {at: self._labels[label] for at, label in self._jumps}
        reached = self._reached(targets)
        places = {old: new for new, old in enumerate(sorted(reached))}
        code = []
        for at in sorted(reached):
            each = self._code[at]
            if at in targets:
                each = each[:2] + struct.pack("<h", places[targets[at]] - places[at] - 1) + each[4:]
            code.append(each)
        following = sorted(reached)
        self.places = tuple((bisect_left(following, at), mark) for at, mark in self._marks)
        found = [replace(each, index=places[each.index]) for each in self.references if each.index in reached]
        return b"".join(code), tuple(found)

    def _reached(self, targets: Mapping[int, int]) -> set[int]:
        """Return the instructions that can be reached, both halves of long ones."""
        reached: set[int] = set()
        ahead = [0]
        while ahead:
            at = ahead.pop()
            if at in reached:
                continue
            reached.add(at)
            code = self._code[at][0]
            if at in targets:
                ahead.append(targets[at])
            if code not in {_EXIT, _GO}:
                ahead.append(at + 1)
        return reached
