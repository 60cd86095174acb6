"""Sets and counts of addresses that lie close together."""

from collections.abc import Iterable, Iterator, MutableSet
from typing import Self

_BITS = 12
_SIZE = 1 << _BITS
_REST = _SIZE - 1
_GROUP_BITS = 6
_MOST = 255
_USED = bytes([0]) + bytes([1]) * _MOST


class _Pages:
    """A byte for each address of the pages that hold any: a tenth of what Python's sets and counters need.

    A copy shares its pages with the original until one of the two writes to them. Pages are kept by groups of
    neighbours, of which the same is true: a plan of one function copies what a whole library has claimed.
    """

    __slots__ = ("_groups", "_own", "_own_groups")

    def __init__(self, *, groups: dict[int, dict[int, bytearray]] | None = None) -> None:
        """Start with no page, or with some that others have."""
        self._groups = groups or {}
        self._own: set[int] = set()
        """The numbers of the pages that nothing else shares."""
        self._own_groups: set[int] = set()
        """The numbers of the groups that nothing else shares."""

    def copy(self) -> Self:
        """Return another one of the same content, which changes by itself from now on; it costs next to nothing."""
        self._own, self._own_groups = set(), set()
        return type(self)(groups=dict(self._groups))

    def __iter__(self) -> Iterator[int]:
        """Yield the addresses, ascending."""
        for _, group in sorted(self._groups.items()):
            for number, page in sorted(group.items()):
                for at, value in enumerate(page):
                    if value:
                        yield number << _BITS | at

    def __len__(self) -> int:
        """Return the number of addresses."""
        return sum(_SIZE - page.count(0) for group in self._groups.values() for page in group.values())

    def _known(self, number: int) -> bytearray | None:
        """Return a page to be read, None where it would have no address."""
        group = self._groups.get(number >> _GROUP_BITS)
        return None if group is None else group.get(number)

    def _page(self, number: int) -> bytearray:
        """Return a page to be written to."""
        at = number >> _GROUP_BITS
        if number in self._own:  # then its group is, too
            return self._groups[at][number]
        if at not in self._own_groups:
            self._groups[at] = dict(self._groups.get(at, {}))
            self._own_groups.add(at)
        group = self._groups[at]
        known = group.get(number)
        page = group[number] = bytearray(_SIZE) if known is None else known[:]
        self._own.add(number)
        return page

    def content(self, start: int, end: int) -> bytes:
        """Return a byte for each address in ``[start, end)``: zero where it is not used, else one."""
        parts = [(self._known(number), low, high) for number, low, high in self._parts(start, end)]
        content = [bytes(high - low) if page is None else bytes(page[low:high]) for page, low, high in parts]
        return b"".join(content).translate(_USED)

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

    def __init__(self, addresses: Iterable[int] = (), *, groups: dict[int, dict[int, bytearray]] | None = None) -> None:
        """Start with some addresses."""
        super().__init__(groups=groups)
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
        if size <= 0 or not self._groups:
            return False
        if low + size <= _SIZE:
            number = start >> _BITS
            group = self._groups.get(number >> _GROUP_BITS)
            page = None if group is None else group.get(number)
            return page is not None and page.find(1, low, low + size) >= 0
        parts = ((self._known(number), low, high) for number, low, high in self._parts(start, end))
        return any(page is not None and page.find(1, low, high) >= 0 for page, low, high in parts)

    def add_range(self, start: int, end: int) -> None:
        """Add the addresses in ``[start, end)``."""
        low, size = start & _REST, end - start
        if 0 < size <= _SIZE - low:  # as nearly all lie on one page
            number = start >> _BITS
            page = self._groups[number >> _GROUP_BITS][number] if number in self._own else self._page(number)
            page[low : low + size] = b"\1" * size
            return
        for number, low, high in self._parts(start, end):
            self._page(number)[low:high] = b"\1" * (high - low)

    def take_range(self, start: int, end: int) -> bool:
        """Add the addresses in ``[start, end)`` if none of them is in the set; return whether they were added."""
        low, size, number = start & _REST, end - start, start >> _BITS
        if not 0 < size <= _SIZE - low or number not in self._own:
            taken = self.has_any(start, end)
            if not taken:
                self.add_range(start, end)
            return not taken
        page = self._groups[number >> _GROUP_BITS][number]  # as for nearly all of many
        if page.find(1, low, low + size) >= 0:
            return False
        page[low : low + size] = b"\1" * size
        return True

    def discard_range(self, start: int, end: int) -> None:
        """Remove the addresses in ``[start, end)`` that are there."""
        low, size = start & _REST, end - start
        if size <= 0:
            return
        if low + size <= _SIZE:
            number = start >> _BITS
            if number in self._own:
                self._groups[number >> _GROUP_BITS][number][low : low + size] = bytes(size)
            elif self._known(number) is not None:
                self._page(number)[low : low + size] = bytes(size)
            return
        for number, low, high in self._parts(start, end):
            if self._known(number) is not None:
                self._page(number)[low:high] = bytes(high - low)


class AddressCounts(_Pages):
    """How often addresses are used that lie close together; what is used too often to be counted stays used."""

    __slots__ = ()

    def __getitem__(self, address: int) -> int:
        """Return how often an address is used."""
        page = self._known(address >> _BITS)
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
        if not self._groups:
            return False
        low, high = start & _REST, (start & _REST) + end - start
        if high <= _SIZE:
            page = self._known(start >> _BITS)
            return page is not None and page.count(0, low, high) < high - low
        parts = ((self._known(number), low, high) for number, low, high in self._parts(start, end))
        return any(page is not None and any(page[low:high]) for page, low, high in parts)

    def add_range(self, start: int, end: int) -> None:
        """Count one use more of the addresses in ``[start, end)``."""
        for number, low, high in self._parts(start, end):
            page = self._page(number)
            page[low:high] = bytes(min(count + 1, _MOST) for count in page[low:high])

    def discard_range(self, start: int, end: int) -> None:
        """Count one use less of the addresses in ``[start, end)`` that are used."""
        for number, low, high in self._parts(start, end):
            if self._known(number) is not None:
                page = self._page(number)
                page[low:high] = bytes(count - (0 < count < _MOST) for count in page[low:high])

    def keep_range(self, start: int, end: int) -> None:
        """Take the addresses in ``[start, end)`` for used from now on, whatever is given back."""
        for number, low, high in self._parts(start, end):
            self._page(number)[low:high] = bytes([_MOST]) * (high - low)
