"""Sets and counts of addresses that lie close together."""

from collections.abc import Iterable, Iterator, MutableSet
from typing import Self

_BITS = 12
_SIZE = 1 << _BITS
_REST = _SIZE - 1
_MOST = 255


class _Pages:
    """A byte for each address of the pages that hold any: a tenth of what Python's sets and counters need.

    A copy shares its pages with the original until one of the two writes to them.
    """

    __slots__ = ("_own", "_pages")

    def __init__(self, *, pages: dict[int, bytearray] | None = None) -> None:
        """Start with no page, or with some that others have."""
        self._pages = pages or {}
        self._own: set[int] = set()
        """The numbers of the pages that nothing else shares."""

    def copy(self) -> Self:
        """Return another one of the same content, which changes by itself from now on; it costs next to nothing."""
        self._own = set()
        return type(self)(pages=dict(self._pages))

    def __iter__(self) -> Iterator[int]:
        """Yield the addresses, ascending."""
        for number in sorted(self._pages):
            for at, value in enumerate(self._pages[number]):
                if value:
                    yield number << _BITS | at

    def __len__(self) -> int:
        """Return the number of addresses."""
        return sum(_SIZE - page.count(0) for page in self._pages.values())

    def _page(self, number: int) -> bytearray:
        """Return a page to be written to."""
        if number not in self._own:
            known = self._pages.get(number)
            self._pages[number] = bytearray(_SIZE) if known is None else known[:]
            self._own.add(number)
        return self._pages[number]

    @staticmethod
    def _parts(start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the numbers of the pages that ``[start, end)`` lies on, with what of it lies there."""
        while start < end:
            low = start & _REST
            size = min(end - start, _SIZE - low)
            yield start >> _BITS, low, low + size
            start += size


class AddressSet(_Pages, MutableSet[int]):
    """A set of addresses that lie close together."""

    __slots__ = ()

    def __init__(self, addresses: Iterable[int] = (), *, pages: dict[int, bytearray] | None = None) -> None:
        """Start with some addresses."""
        super().__init__(pages=pages)
        for address in addresses:
            self.add(address)

    def __contains__(self, address: object) -> bool:
        """Return whether an address is in the set."""
        return isinstance(address, int) and self.has_any(address, address + 1)

    def __repr__(self) -> str:
        """Show the addresses."""
        return f"AddressSet({[hex(address) for address in self]})"

    def add(self, value: int) -> None:
        """Add an address."""
        self._page(value >> _BITS)[value & _REST] = 1

    def discard(self, value: int) -> None:
        """Remove an address, if it is there."""
        self.discard_range(value, value + 1)

    def has_any(self, start: int, end: int) -> bool:
        """Return whether any address in ``[start, end)`` is in the set."""
        low, size = start & _REST, end - start
        if size <= 0:
            return False
        if low + size <= _SIZE:
            page = self._pages.get(start >> _BITS)
            return page is not None and page.find(1, low, low + size) >= 0
        pages = self._pages
        return any(number in pages and pages[number].find(1, *part) >= 0 for number, *part in self._parts(start, end))

    def add_range(self, start: int, end: int) -> None:
        """Add the addresses in ``[start, end)``."""
        for number, low, high in self._parts(start, end):
            self._page(number)[low:high] = b"\1" * (high - low)

    def discard_range(self, start: int, end: int) -> None:
        """Remove the addresses in ``[start, end)`` that are there."""
        for number, low, high in self._parts(start, end):
            if number in self._pages:
                self._page(number)[low:high] = bytes(high - low)


class AddressCounts(_Pages):
    """How often addresses are used that lie close together; what is used too often to be counted stays used."""

    __slots__ = ()

    def __getitem__(self, address: int) -> int:
        """Return how often an address is used."""
        page = self._pages.get(address >> _BITS)
        return 0 if page is None else page[address & _REST]

    def __eq__(self, other: object) -> bool:
        """Return whether the same addresses are used as often."""
        return isinstance(other, AddressCounts) and [*self.items()] == [*other.items()]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show the counts."""
        return f"AddressCounts({ {hex(address): count for address, count in self.items()} })"

    def items(self) -> Iterator[tuple[int, int]]:
        """Yield the addresses that are used, ascending, and how often."""
        return ((address, self[address]) for address in self)

    def has_any(self, start: int, end: int) -> bool:
        """Return whether any address in ``[start, end)`` is used."""
        pages = self._pages
        low, high = start & _REST, (start & _REST) + end - start
        if high <= _SIZE:
            page = pages.get(start >> _BITS)
            return page is not None and page.count(0, low, high) < high - low
        parts = self._parts(start, end)
        return any(number in pages and any(pages[number][low:high]) for number, low, high in parts)

    def add_range(self, start: int, end: int) -> None:
        """Count one use more of the addresses in ``[start, end)``."""
        for number, low, high in self._parts(start, end):
            page = self._page(number)
            page[low:high] = bytes(min(count + 1, _MOST) for count in page[low:high])

    def discard_range(self, start: int, end: int) -> None:
        """Count one use less of the addresses in ``[start, end)`` that are used."""
        for number, low, high in self._parts(start, end):
            if number in self._pages:
                page = self._page(number)
                page[low:high] = bytes(count - (0 < count < _MOST) for count in page[low:high])

    def keep_range(self, start: int, end: int) -> None:
        """Take the addresses in ``[start, end)`` for used from now on, whatever is given back."""
        for number, low, high in self._parts(start, end):
            self._page(number)[low:high] = bytes([_MOST]) * (high - low)
