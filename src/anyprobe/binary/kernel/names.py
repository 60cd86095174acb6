"""A kernel's symbols, from the text of ``/proc/kallsyms`` or of a ``System.map``."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.kernel.addresses import BIAS, LOWEST
from anyprobe.binary.objects.symbols import STB_LOCAL, STT_FUNC, SYMBOL, SymbolTable
from anyprobe.core.address import AddressRange
from anyprobe.core.arrays import among

_DIGITS, _KIND, _NAME = 16, 17, 19
"""Where in a line the address ends, the letter of the kind stands, and the name begins."""
_OBJECT, _GLOBAL = 1, 1
_ENDS = bytes.maketrans(b"\n\t", b"\0\0")
_MARKS = (b"_text_start\0", b"_text_end\0", b" _text\0", b" _stext\0", b" _etext\0")
"""Names of ends of sections, which are no functions."""
_PADDING = (b"__pfx_", b"__cfi_")
"""Names of the padding before functions."""
_WORD = 8


def _digit_values() -> NDArray[np.uint64]:
    values = np.zeros(256, np.uint64)
    for digit in range(16):
        values[[ord(f"{digit:x}"), ord(f"{digit:X}")]] = digit
    return values


_DIGIT_VALUES = _digit_values()


class KernelNames:
    """The symbols of a kernel and of its modules whose addresses are in the kernel's code and data, not per processor.

    A listing has some hundred thousand lines; it is read by array operations, and is itself the table's strings.
    """

    def __init__(self, listing: bytes) -> None:
        """Take a listing: addresses in 16 digits, the letter of the kind, the name, and the module after a tab."""
        self._strings = listing.translate(_ENDS)
        content = np.frombuffer(listing, np.uint8)
        starts = np.append(0, np.flatnonzero(content[:-1] == ord("\n")) + 1) if len(content) else np.empty(0, np.int64)
        starts = starts[starts + _NAME < len(content)]
        addresses = np.zeros(len(starts), np.uint64)
        for place in range(_DIGITS):
            addresses = addresses << np.uint64(4) | _DIGIT_VALUES[content[starts + place]]
        inside = addresses >= np.uint64(LOWEST)
        starts, letters = starts[inside], content[starts[inside] + _KIND]
        self._symbols = np.zeros(len(starts), SYMBOL)
        self._symbols["name"] = starts + _NAME
        self._symbols["value"] = addresses[inside] - np.uint64(BIAS)
        is_code = among(letters, np.frombuffer(b"tTwW", np.uint8))
        self._is_padding = self._begins_with(starts + _NAME, _PADDING)
        is_function = is_code & ~self._is_padding & ~among(starts + _NAME, self._marks())
        kinds = np.where(is_function, STT_FUNC, _OBJECT)
        self._symbols["info"] = kinds | np.where(letters == ord("t"), STB_LOCAL, _GLOBAL) << 4
        self._symbols["shndx"] = 1

    def _begins_with(self, names: NDArray[np.int64], prefixes: Iterable[bytes]) -> NDArray[np.bool_]:
        """Return which names begin with one of some texts, by where they stand in the strings."""
        padded = self._strings + bytes(_WORD)
        words: NDArray[np.uint64] = np.ndarray((len(padded) - _WORD,), "<u8", buffer=padded, strides=(1,))[names]
        found = np.zeros(len(names), np.bool_)
        for prefix in prefixes:
            wanted = int.from_bytes(prefix, "little")
            found |= words & np.uint64((1 << 8 * len(prefix)) - 1) == np.uint64(wanted)
        return found

    def _marks(self) -> NDArray[np.int64]:
        """Return where the names of ends of sections stand."""
        return np.array([self._strings.rfind(b" ", 0, at) + 1 for at in self._places_of(_MARKS)], np.int64)

    def _places_of(self, wanted: Iterable[bytes]) -> list[int]:
        """Return where some texts stand in the strings, after their first byte."""
        found: list[int] = []
        for text in wanted:
            at = self._strings.find(text)
            while at >= 0:
                found.append(at + 1)
                at = self._strings.find(text, at + 1)
        return found

    @cached_property
    def table(self) -> SymbolTable:
        """All of them; what is no function is an object."""
        return SymbolTable(self._symbols, self._strings)

    def table_of(self, area: AddressRange) -> SymbolTable:
        """Return those in a range alone: the same table, whatever else is loaded and listed before or after."""
        values = self._symbols["value"].astype(np.int64)
        own = self._symbols[(values >= area.start) & (values < area.end)]
        if not len(own):
            return SymbolTable(own, b"")
        first = int(own["name"][0])
        end = self._strings.find(b"\0", int(own["name"][-1]))
        own["name"] -= first - 1  # no name stands at 0
        return SymbolTable(own, self._strings[first - 1 : end + 1 if end >= 0 else None])

    def address(self, name: str) -> int | None:
        """Return the address of the first symbol of a name, the kernel's own if there is one."""
        return self._address_of(self._first_places.get(name.encode(), -1))

    @cached_property
    def _first_places(self) -> dict[bytes, int]:
        """Where the first symbol of each name stands: of dozens of names, most are looked for and not there."""
        places = self._symbols["name"].tolist()[::-1]
        strings = self._strings
        ends = np.flatnonzero(np.frombuffer(strings, np.uint8) == 0)
        after = np.append(ends, len(strings))[np.searchsorted(ends, places)].tolist()
        return {strings[low:high]: low for low, high in zip(places, after, strict=True)}

    def _address_of(self, place: int) -> int | None:
        """Return the address of the symbol whose name stands somewhere; none stands at 0."""
        row = int(np.searchsorted(self._symbols["name"], place))
        known = row < len(self._symbols) and self._symbols["name"][row] == place
        return int(self._symbols["value"][row]) if known else None

    def name_at(self, address: int) -> str:
        """Return the name of the first symbol at an address, an empty text where there is none."""
        rows = np.flatnonzero(self._symbols["value"] == np.uint64(address))
        return self.table.raw_name(int(rows[0])) if len(rows) else ""

    def between(self, first: str, after: str) -> AddressRange | None:
        """Return what lies between two symbols, None where one of them is missing."""
        low, high = self.address(first), self.address(after)
        return None if low is None or high is None or high < low else AddressRange(low, high)

    def starting(self, prefix: str) -> dict[str, int]:
        """Return the addresses of the symbols whose names begin with a text, by name."""
        found: dict[str, int] = {}
        wanted = f" {prefix}".encode()
        at = self._strings.find(wanted)
        while at >= 0:
            name = self._strings[at + 1 : self._strings.index(b"\0", at)].decode("utf-8", "replace")
            address = self._address_of(at + 1)
            if address is not None:
                found.setdefault(name, address)
            at = self._strings.find(wanted, at + 1)
        return found

    def within(self, area: AddressRange) -> NDArray[Any]:
        """Return the addresses of the functions in a range, ascending."""
        values = self._symbols["value"].astype(np.int64)
        is_function = self._symbols["info"] & 15 == STT_FUNC
        return np.sort(values[is_function & (values >= area.start) & (values < area.end)])

    def padding_within(self, area: AddressRange) -> NDArray[np.int64]:
        """Return where padding before functions of a range begins, as far as it has names, ascending."""
        values = self._symbols["value"].astype(np.int64)
        return np.sort(values[self._is_padding & (values >= area.start) & (values < area.end)])
