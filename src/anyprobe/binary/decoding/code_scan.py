"""Everything in a module's code that may be a branch or a code address, found without decoding.

The scan looks at every byte offset, so it cannot miss an instruction whatever the alignment of the instruction
stream; it finds bytes inside other instructions too. Its result is a sound superset: ``cfg`` decodes the few sources
that matter and drops those that are not what they look like.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.binary.objects.text import ModuleText
from anyprobe.core.checkpoints import checkpoint
from anyprobe.core.memory import MemoryFault

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    Pair = tuple[Positions, Positions]


_LARGEST_IMMEDIATE = 4
"""Bytes that may stand between a displacement and the end of its instruction."""


class Kind(IntEnum):
    """What the bytes at a source look like."""

    NEAR = 0
    """``call``, ``jmp``, ``jcc`` or ``xbegin`` with a 32-bit displacement; the source is the opcode."""
    SHORT = 1
    """``jmp``, ``jcc``, ``loop`` or ``jrcxz`` with an 8-bit displacement; the source is the opcode."""
    LEA = 2
    """``lea reg, [rip + x]``; the source is the opcode."""
    ABSOLUTE = 3
    """A 32-bit immediate or displacement; the source is its first byte."""


_KINDS = tuple(Kind)


@dataclass(frozen=True, slots=True)
class CodeBytes:
    """The bytes of one executable range."""

    start: int
    content: bytes
    end: int = field(init=False)
    """The address after the last byte."""

    def __post_init__(self) -> None:
        """Work out the end, which is asked for very often."""
        object.__setattr__(self, "end", self.start + len(self.content))


def code_bytes(text: ModuleText) -> tuple[CodeBytes, ...]:
    """Read the executable ranges; what the file does not hold is left out."""
    found = []
    for area in text.ranges:
        try:
            found.append(CodeBytes(area.start, text.memory.read(area.start, len(area))))
        except MemoryFault:
            continue
    return tuple(found)


class _Bounds:
    """Whether addresses lie in the code, for arrays."""

    def __init__(self, code: tuple[CodeBytes, ...]) -> None:
        self.areas = [(part.start, part.end) for part in code]

    def inside(self, addresses: "Positions") -> "NDArray[np.bool_]":
        mask = np.zeros(len(addresses), dtype=bool)
        for start, end in self.areas:
            mask |= (addresses >= start) & (addresses < end)
        return mask


def _displacements(view: "NDArray[np.uint8]", at: "Positions") -> "Positions":
    """Return the 32-bit signed little-endian values at these offsets."""
    words = np.ndarray((max(len(view) - 3, 0),), dtype="<i4", buffer=view, strides=(1,))
    return words[at].astype(np.int64)


def _near(part: CodeBytes) -> "Pair":
    """Return (targets, opcode addresses) of what looks like branches with 32-bit displacements."""
    view = np.frombuffer(part.content, dtype=np.uint8)
    limit = len(view)
    one = np.flatnonzero(view & 0xFE == 0xE8)  # e8 call, e9 jmp
    one = one[one + 5 <= limit]
    two = np.flatnonzero(view[:-1] == 0x0F)
    two = two[(view[two + 1] & 0xF0 == 0x80) & (two + 6 <= limit)]  # 0f 80-8f jcc
    begin = np.flatnonzero(view[:-1] == 0xC7)
    begin = begin[(view[begin + 1] == 0xF8) & (begin + 6 <= limit)]  # c7 f8 xbegin
    two = np.concatenate([two, begin])
    targets = [one + 5 + _displacements(view, one + 1), two + 6 + _displacements(view, two + 2)]
    return np.concatenate(targets) + part.start, np.concatenate([one, two]) + part.start


_RET = 0xC3
_SHORT_OPCODES = np.zeros(256, dtype=bool)
_SHORT_OPCODES[0x70:0x80] = True
_SHORT_OPCODES[0xE0:0xE4] = True
_SHORT_OPCODES[0xEB] = True


def _short(part: CodeBytes) -> "Pair":
    view = np.frombuffer(part.content, dtype=np.uint8)
    at = np.flatnonzero(_SHORT_OPCODES[view[:-1]])
    return at + 2 + view[at + 1].view(np.int8) + part.start, at + part.start


def _lea(part: CodeBytes) -> "Pair":
    view = np.frombuffer(part.content, dtype=np.uint8)
    at = np.flatnonzero(view[:-1] == 0x8D)
    at = at[(view[at + 1] & 0xC7 == 0x05) & (at + 6 <= len(view))]  # mod 00, rm 101: rip-relative
    return at + 6 + _displacements(view, at + 2) + part.start, at + part.start


def _absolute(part: CodeBytes) -> "Pair":
    """Return every 4-byte window that, as an unsigned number, may be a code address."""
    return _words(part, part.start, part.end)


def _words(part: CodeBytes, low: int, high: int) -> "Pair":
    """Return the values of the 4-byte windows that lie in ``[low, high)``, and where the windows are."""
    view = np.frombuffer(part.content, dtype=np.uint8)
    words = np.ndarray((max(len(view) - 3, 0),), dtype="<u4", buffer=view, strides=(1,))
    at = np.flatnonzero((words >= low) & (words < high))
    return words[at].astype(np.int64), at.astype(np.int64) + part.start


def calls_into(code: tuple[CodeBytes, ...], starts: "Positions", ends: "Positions") -> "Pair":
    """Return (targets, opcode addresses) of what looks like direct calls into some ranges, which ascend."""
    return _into(code, starts, ends, lambda part, *_: _calls(part))


def words_into(code: tuple[CodeBytes, ...], starts: "Positions", ends: "Positions") -> "Pair":
    """Return (values, addresses) of the 4-byte windows that, as numbers, lie in some ranges, which ascend."""
    return _into(code, starts, ends, _words)


def leas_into(code: tuple[CodeBytes, ...], starts: "Positions", ends: "Positions") -> "Pair":
    """Return (targets, opcode addresses) of what looks like ``lea reg, [rip + x]`` of some ranges, which ascend."""
    return _into(code, starts, ends, lambda part, *_: _lea(part))


def _into(
    code: tuple[CodeBytes, ...],
    starts: "Positions",
    ends: "Positions",
    scan: "Callable[[CodeBytes, int, int], Pair]",
) -> "Pair":
    found: list[Pair] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for part in code if len(starts) else ():
        targets, sources = scan(part, int(starts[0]), int(ends[-1]))
        rough = (targets >= starts[0]) & (targets < ends[-1])
        targets, sources = targets[rough], sources[rough]
        row = np.searchsorted(starts, targets, side="right") - 1
        inside = targets < ends[row]
        found.append((targets[inside], sources[inside]))
    targets, sources = (np.concatenate(column) for column in zip(*found, strict=True))
    return targets, sources


def _calls(part: CodeBytes) -> "Pair":
    view = np.frombuffer(part.content, dtype=np.uint8)
    at = np.flatnonzero(view[:-4] == 0xE8)
    return at + 5 + _displacements(view, at + 1) + part.start, at + part.start


def jump_tables(code: Iterable[CodeBytes]) -> list[int]:
    """Return the addresses in what looks like ``jmp [table + index*8]``, ascending."""
    found: set[int] = set()
    for part in code:
        view = np.frombuffer(part.content, dtype=np.uint8)
        at = np.flatnonzero((view[:-6] == 0xFF) & (view[1:-5] == 0x24) & (view[2:-4] & 0xC7 == 0xC5))
        found.update(_displacements(view, at + 3).tolist())
    return sorted(each for each in found if each > 0)


def pushed_returns(code: Iterable[CodeBytes]) -> list[int]:
    """Return where ``push rdx; ret`` ends, or what looks like it: the addresses of its second byte, ascending."""
    found: list[int] = []
    for part in code:
        view = np.frombuffer(part.content, dtype=np.uint8)
        at = np.flatnonzero(view[1:] == _RET) + 1
        found += (at[view[at - 1] & 0xF8 == 0x50] + part.start).tolist()
    return sorted(found)


class Operands:
    """Everything in the code that looks like an operand ``[rip + x]`` in it."""

    def __init__(self, code: tuple[CodeBytes, ...]) -> None:
        """Scan the module."""
        bounds, none = _Bounds(code), np.empty(0, np.int64)
        pairs = [(none, none)]
        for part in code:
            view = np.frombuffer(part.content, dtype=np.uint8)
            at = np.flatnonzero(view[:-4] & 0xC7 == 0x05) + 1  # mod 00, rm 101
            targets = at + 4 + _displacements(view, at) + part.start
            keep = bounds.inside(targets)
            pairs.append((targets[keep], at[keep] + part.start))
        targets, sources = (np.concatenate(column) for column in zip(*pairs, strict=True))
        order = np.argsort(targets, kind="stable")
        self._targets, self._sources = (array("q", each[order].tobytes()) for each in (targets, sources))

    def into(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield (target, where its displacement is); the target is the next bytes' if an immediate follows."""
        first = bisect_left(self._targets, low - _LARGEST_IMMEDIATE)
        last = bisect_left(self._targets, high, first)
        return zip(self._targets[first:last], self._sources[first:last], strict=True)


class References:
    """All candidates of a module, to be asked for address ranges. Scalar look-ups, so plain arrays and bisection."""

    def __init__(self, text: ModuleText, code: tuple[CodeBytes, ...]) -> None:
        """Scan the module."""
        bounds = _Bounds(code)
        scans = [(Kind.NEAR, _near), (Kind.SHORT, _short), (Kind.LEA, _lea)]
        if not text.is_pie:
            # Position dependent code may hold its addresses in immediates and displacements of any instruction.
            scans.append((Kind.ABSOLUTE, _absolute))
        columns: list[tuple[Positions, Positions]] = []
        for kind, scan in scans:
            for part in code:
                checkpoint()
                targets, sources = scan(part)
                keep = bounds.inside(targets)
                columns.append((targets[keep], sources[keep] << 2 | int(kind)))
        targets = np.concatenate([c[0] for c in columns] or [np.empty(0, np.int64)])
        sources = np.concatenate([c[1] for c in columns] or [np.empty(0, np.int64)])
        order = np.argsort(targets, kind="stable")
        self._set(targets[order], sources[order])

    def _set(self, targets: "Positions", packed: "Positions") -> None:
        self._targets = array("q", np.ascontiguousarray(targets, dtype=np.int64).tobytes())
        self._sources = array("q", np.ascontiguousarray(packed, dtype=np.int64).tobytes())

    @classmethod
    def of(cls, targets: "Positions", sources: "Positions", kinds: "Positions") -> "References":
        """Return references given as columns, ascending by target."""
        made = cls.__new__(cls)
        made._set(targets, sources << 2 | kinds)  # noqa: SLF001 - its own
        return made

    def columns(self) -> "tuple[Positions, Positions, Positions]":
        """Return the targets, ascending, with their sources and kinds."""
        packed = np.frombuffer(self._sources, np.int64)
        return np.frombuffer(self._targets, np.int64), packed >> 2, packed & 3

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self._targets)

    def into(self, low: int, high: int) -> list[tuple[int, int, Kind]]:
        """Return (target, source, kind) of every candidate with a target in ``[low, high)``."""
        within = self._within(low, high)
        pairs = zip(self._targets[within], self._sources[within], strict=True)
        return [(target, source >> 2, _KINDS[source & 3]) for target, source in pairs]

    def addresses_into(self, low: int, high: int) -> Iterator[int]:
        """Yield the addresses in ``[low, high)`` that candidates take, rather than branch to."""
        return (target for target, _, kind in self.into(low, high) if kind is Kind.LEA or kind is Kind.ABSOLUTE)

    def targets(self, low: int, high: int) -> "array[int]":
        """Return the targets in ``[low, high)`` of all candidates, ascending."""
        return self._targets[self._within(low, high)]

    def sources(self, low: int, high: int) -> Iterator[int]:
        """Yield the sources of the candidates with a target in ``[low, high)``, in the order of ``into``."""
        return (packed >> 2 for packed in self._sources[self._within(low, high)])

    def _within(self, low: int, high: int) -> slice:
        first = bisect_left(self._targets, low)
        return slice(first, bisect_left(self._targets, high, first))


class DataReferences:
    """Everything in the code that looks like ``lea reg, [rip + x]`` of an address that is no code."""

    def __init__(self, code: tuple[CodeBytes, ...]) -> None:
        """Scan the module."""
        bounds = _Bounds(code)
        pairs = [_lea(part) for part in code]
        targets = np.concatenate([pair[0] for pair in pairs] or [np.empty(0, np.int64)])
        sources = np.concatenate([pair[1] for pair in pairs] or [np.empty(0, np.int64)])
        keep = ~bounds.inside(targets)
        order = np.argsort(targets[keep], kind="stable")
        self._targets, self._sources = targets[keep][order], sources[keep][order]

    def into(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return (target, source) of every candidate with a target in ``[low, high)``."""
        first, last = np.searchsorted(self._targets, (low, high)).tolist()
        return list(zip(self._targets[first:last].tolist(), self._sources[first:last].tolist(), strict=True))
