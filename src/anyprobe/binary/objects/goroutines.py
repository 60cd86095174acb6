"""Where a goroutine may be parked by a signal: it goes on later, on any thread, and until then no thread has its pc.

Go's runtime preempts by a signal and lets the interrupted goroutine wait wherever that met it, unless the place is no
"async safe point" (``runtime/preempt.go``): assembly, pcs that the compiler marks as unsafe, all of the packages
``runtime`` and ``reflect``. There goroutines wait only after calls. The tables that the runtime decides by are read
here the way it reads them; what is not understood counts as a place where one may be parked.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.leb128 import read_uleb

_RECORD = {0xFFFFFFF0: 40, 0xFFFFFFF1: 44}
"""Bytes of ``_func`` before the numbers of its tables: since Go 1.18, since Go 1.20."""
_DEPTHS_AT, _TABLES_AT, _FLAGS_AT = 16, 28, -3
"""Where in it the table of the stack's depth is named, the number of other tables, and the flags, from its end."""
_OUTERMOST, _MOVES_STACK, _ASSEMBLY = 1 << 0, 1 << 1, 1 << 2
_UNSAFE_POINTS, _INLINED = 0, 2
"""Numbers of tables that give a value for each pc."""
_UNSAFE, _NOT_INLINED = -2, -1
_NEVER_IN = (b"runtime.", b"runtime/internal/", b"reflect.")
"""The packages, by how the names of their functions begin; later versions leave out more."""
_RUNTIME = (b"runtime.", b"runtime/", b"internal/runtime/", b"internal/abi.", b"internal/cpu.")
"""What may run where there is no goroutine: in signal handlers, and in threads that the runtime has not made."""
_U32 = struct.Struct("<I")


class FunctionRecords:
    """The records that an object's ``pclntab`` has of its functions."""

    def __init__(self, content: bytes, text: int) -> None:
        """Take the content of ``pclntab``, and the address that its offsets count from."""
        self._content, self._text = content, text
        magic, _, _, _, _, count, _, _, names, _, _, values, records = struct.unpack_from("<IBBBBQQQQQQQQ", content)
        self._record = _RECORD[magic]
        self._names, self._values, self._records = names, values, records
        table: NDArray[np.uint32] = np.frombuffer(content, "<u4", 2 * count + 1, records)
        self._starts = (text + table[0::2].astype(np.int64)).tolist()
        """Where each function starts; the last number is the end of all."""
        self._offsets = table[1::2].tolist()

    def _number_of(self, address: int) -> int | None:
        """Return the number of the function that contains an address; None where that is no Go code."""
        number = bisect_right(self._starts, address) - 1
        return number if 0 <= number < len(self._offsets) else None

    def _flags(self, number: int) -> int:
        return int(self._content[self._records + self._offsets[number] + self._record + _FLAGS_AT])

    def _is_assembly(self, number: int) -> bool:
        return bool(self._flags(number) & _ASSEMBLY)

    def is_outermost(self, address: int) -> bool:
        """Return whether the function that contains an address has no caller."""
        number = self._number_of(address)
        return number is not None and bool(self._flags(number) & _OUTERMOST)

    def stack_depth(self, address: int) -> int | None:
        """Return how many bytes are above the stack pointer up to the return address; None where that is not known."""
        number = self._number_of(address)
        if number is None or self._flags(number) & _MOVES_STACK or self._is_foreign(number):
            return None
        (depths,) = _U32.unpack_from(self._content, self._records + self._offsets[number] + _DEPTHS_AT)
        ranges = self._ranges(depths, self._starts[number])
        return next((depth for low, high, depth in ranges if low <= address < high), None)

    def _is_foreign(self, number: int) -> bool:
        """Return whether a function is C code, which Go's linker has linked: it has no table of its stack's depth."""
        (depths,) = _U32.unpack_from(self._content, self._records + self._offsets[number] + _DEPTHS_AT)
        return bool(depths == 0)

    def _table(self, at: int, start: int, which: int) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges of a function's table with their values; what it says nothing about has none."""
        (count,) = _U32.unpack_from(self._content, at + _TABLES_AT)
        if which < count:
            yield from self._ranges(_U32.unpack_from(self._content, at + self._record + 4 * which)[0], start)

    def _ranges(self, offset: int, start: int) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges of the table at an offset; there is none at 0."""
        if offset == 0:
            return
        place, low, value = self._values + offset, start, -1
        while True:
            change, place = read_uleb(self._content, place)
            if change == 0 and low != start:
                return
            size, place = read_uleb(self._content, place)
            value += ~(change >> 1) if change & 1 else change >> 1
            yield low, low + size, value
            low += size


class ParkingPlaces(FunctionRecords):
    """The answer for one object; functions are looked at when first asked about."""

    def __init__(self, content: bytes, text: int) -> None:
        """Take the content of ``pclntab``, and the address that its offsets count from."""
        super().__init__(content, text)
        self._known: dict[int, list[tuple[int, int]]] = {}

    def may_park(self, address: int) -> bool:
        """Return whether a goroutine may be parked with its pc at ``address``, by a signal."""
        number = self._number_of(address)
        if number is None:
            return False  # no Go code: C functions of the same file
        ranges = self._known.get(number)
        if ranges is None:
            ranges = self._known[number] = self._never_in(number)
        return not any(low <= address < high for low, high in ranges)

    def is_ordinary(self, address: int) -> bool:
        """Return whether an address is in compiled code outside of the runtime, which only goroutines run."""
        number = bisect_right(self._starts, address) - 1
        if number < 0 or number >= len(self._offsets):
            return False
        try:
            at = self._records + self._offsets[number]
            (name,) = _U32.unpack_from(self._content, at + 4)
            if self._is_assembly(number) or self._is_foreign(number):
                return False
            return not self._content.startswith(_RUNTIME, self._names + name)
        except (IndexError, struct.error):
            return False

    def _never_in(self, number: int) -> list[tuple[int, int]]:
        """Return the ranges of a function where no goroutine is parked."""
        start, end = self._starts[number], self._starts[number + 1]
        try:
            at = self._records + self._offsets[number]
            if self._is_assembly(number):
                return [(start, end)]
            found = [(low, high) for low, high, value in self._table(at, start, _UNSAFE_POINTS) if value == _UNSAFE]
            (name,) = _U32.unpack_from(self._content, at + 4)
            if self._content.startswith(_NEVER_IN, self._names + name):
                inlined = list(self._table(at, start, _INLINED)) or [(start, end, _NOT_INLINED)]
                found += [(low, high) for low, high, value in inlined if value == _NOT_INLINED]
            return found
        except (IndexError, struct.error):
            return []
