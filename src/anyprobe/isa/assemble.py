"""A small assembler for generated code: listings, labels, and the distances between them."""

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple

from anyprobe.core.errors import InternalError
from anyprobe.isa.encode import Fixup, Hole, encode, statements

JUMP_BYTES = 5
"""Length of ``jmp rel32``."""


def i32(value: int) -> bytes:
    """Return a signed number of four bytes, as displacements and immediates are written."""
    return struct.pack("<i", value)


def u64(value: int) -> bytes:
    """Return an unsigned number of eight bytes."""
    return struct.pack("<Q", value)


class _Piece(NamedTuple):
    """A listing assembled for offset 0, with the places that depend on what is not in its text."""

    content: bytes
    labels: tuple[tuple[str, int], ...]
    holes: tuple[Hole, ...]
    fixups: tuple[Fixup, ...]


@lru_cache(maxsize=1024)
def _piece(listing: str) -> _Piece:
    content = bytearray()
    labels: list[tuple[str, int]] = []
    holes: list[Hole] = []
    fixups: list[Fixup] = []
    for text in statements(listing):
        start = len(content)
        if text.endswith(":"):
            labels.append((text[:-1], start))
            continue
        one = encode(text)
        for at, size, name, add in one.holes:
            holes.append(Hole(start + at, size, name, add))
        for at, size, end, target in one.fixups:
            fixups.append(Fixup(start + at, size, start + end, target))
        content += one.content
    return _Piece(bytes(content), tuple(labels), tuple(holes), tuple(fixups))


class Assembler:
    """Collects code position by position; ``finish`` places it at an address and resolves the labels."""

    def __init__(self) -> None:
        """Start empty."""
        self._content = bytearray()
        self._texts: list[tuple[int, str, int | None]] = []
        """Where listings begin; and where code that comes from elsewhere does, what it is, and its size."""
        self._labels: dict[str, int] = {}
        self._fixups: list[Fixup] = []

    def __len__(self) -> int:
        """Return the number of bytes emitted so far."""
        return len(self._content)

    def code(self, listing: str, **values: int | str) -> None:
        """Append a listing; ``values`` are numbers, addresses or labels that names in it stand for.

        Raises:
            InternalError: There is no such instruction, or a name has no value.
        """
        piece, start = _piece(listing), len(self._content)
        self._content += piece.content
        self._texts.append((start, listing, None))
        for name, offset in piece.labels:
            self._define(name, start + offset)
        for at, size, name, add in piece.holes:
            value = values.get(name)
            if not isinstance(value, int):
                raise InternalError(f"{name} has no value: {listing}")
            self._fill(start + at, size, value + add)
        for at, size, end, target in piece.fixups:
            self._fixups.append(Fixup(start + at, size, start + end, values.get(str(target), target)))

    def _fill(self, at: int, size: int, value: int) -> None:
        """Write a value, which may be meant with or without a sign."""
        if not -(1 << (8 * size - 1)) <= value < 1 << (8 * size):
            raise InternalError(f"{value:#x} does not fit into {size} bytes")
        self._content[at : at + size] = (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")

    def raw(self, content: bytes, text: str) -> None:
        """Append code that comes from elsewhere, and what it is."""
        self._texts.append((len(self._content), text, len(content)))
        self._content += content

    def label(self, name: str) -> None:
        """Give the current position a name."""
        self._define(name, len(self._content))

    def _define(self, name: str, offset: int) -> None:
        if name in self._labels:
            raise InternalError(f"the label {name} is defined twice")
        self._labels[name] = offset

    def offset_of(self, name: str) -> int:
        """Return the offset of a label that is already defined."""
        return self._labels[name]

    def has(self, name: str) -> bool:
        """Return whether a label is defined."""
        return name in self._labels

    def finish(self, address: int) -> bytes:
        """Return the code as it is to lie at ``address``. May be called again for another address."""
        content = bytearray(self._content)
        for fixup in self._fixups:
            target = fixup.target if isinstance(fixup.target, int) else address + self._position(fixup.target)
            distance = target - (address + fixup.end)
            limit = 1 << (8 * fixup.size - 1)
            if not -limit <= distance < limit:
                raise InternalError(f"{fixup.target} is out of reach of a {8 * fixup.size}-bit displacement")
            content[fixup.at : fixup.at + fixup.size] = struct.pack("<b" if fixup.size == 1 else "<i", distance)
        return bytes(content)

    def _position(self, name: str) -> int:
        if name not in self._labels:
            raise InternalError(f"the label {name} is not defined")
        return self._labels[name]

    def listing_at(self, address: int) -> Callable[[], str]:
        """Return what makes the listing when it is wanted, which is seldom: each line takes its time."""
        return partial(self.listing, address)

    def listing(self, address: int = 0) -> str:
        """Return lines of offset, bytes and assembly, labels on lines of their own."""
        content = self.finish(address) if address or not self._has_absolute() else bytes(self._content)
        names: dict[int, list[str]] = {}
        for name, offset in self._labels.items():
            names.setdefault(offset, []).append(name)
        lines: list[str] = []
        for offset, size, text in self._lines():
            lines += [f"{name}:" for name in names.pop(offset, ())]
            shown = content[offset : offset + size].hex(" ")
            lines.append(f"{offset:4x}  {shown:<32}  {text}".rstrip())
        lines += [f"{name}:" for rest in names.values() for name in rest]
        return "\n".join(lines)

    def _lines(self) -> Iterator[tuple[int, int, str]]:
        """Yield the offset, the size and the assembly of each instruction."""
        for start, listing, size in self._texts:
            offset = start
            if size is not None:
                yield offset, size, listing
                continue
            for text in statements(listing):
                if not text.endswith(":"):
                    length = len(encode(text).content)
                    yield offset, length, text
                    offset += length

    def _has_absolute(self) -> bool:
        return any(isinstance(fixup.target, int) for fixup in self._fixups)
