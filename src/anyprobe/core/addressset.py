"""A set of addresses that lie close together."""

from collections.abc import Iterable, Iterator, MutableSet

_BITS = 12
_SIZE = 1 << _BITS
_REST = _SIZE - 1


class AddressSet(MutableSet[int]):
    """A byte for each address of the pages that hold any: a tenth of what Python's sets of numbers need."""

    __slots__ = ("_pages",)

    def __init__(self, addresses: Iterable[int] = ()) -> None:
        """Start with some addresses."""
        self._pages: dict[int, bytearray] = {}
        for address in addresses:
            self.add(address)

    def __contains__(self, address: object) -> bool:
        """Return whether an address is in the set."""
        return isinstance(address, int) and self.has_any(address, address + 1)

    def __iter__(self) -> Iterator[int]:
        """Yield the addresses, ascending."""
        for number in sorted(self._pages):
            page, at = self._pages[number], -1
            while (at := page.find(1, at + 1)) >= 0:
                yield number << _BITS | at

    def __len__(self) -> int:
        """Return the number of addresses."""
        return sum(page.count(1) for page in self._pages.values())

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
        return any(page.find(1, low, high) >= 0 for page, low, high in self._parts(start, end))

    def copy(self) -> "AddressSet":
        """Return another set of the same addresses."""
        other = AddressSet()
        other._pages = {number: bytearray(page) for number, page in self._pages.items()}
        return other

    def add_range(self, start: int, end: int) -> None:
        """Add the addresses in ``[start, end)``."""
        while start < end:
            low = start & _REST
            size = min(end - start, _SIZE - low)
            self._page(start >> _BITS)[low : low + size] = b"\1" * size
            start += size

    def discard_range(self, start: int, end: int) -> None:
        """Remove the addresses in ``[start, end)`` that are there."""
        for page, low, high in self._parts(start, end):
            page[low:high] = bytes(high - low)

    def _page(self, number: int) -> bytearray:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = bytearray(_SIZE)
        return page

    def _parts(self, start: int, end: int) -> Iterator[tuple[bytearray, int, int]]:
        """Yield the pages that hold addresses in ``[start, end)``, with the places of those in them."""
        while start < end:
            low = start & _REST
            size = min(end - start, _SIZE - low)
            page = self._pages.get(start >> _BITS)
            if page is not None:
                yield page, low, low + size
            start += size
