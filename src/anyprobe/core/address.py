"""Ranges and pages of the target's addresses, which are plain integers."""

from dataclasses import dataclass

PAGE = 4096
"""Bytes in a page of x86-64 Linux text."""


@dataclass(frozen=True, slots=True, order=True)
class AddressRange:
    """A half-open range ``[start, end)`` of target addresses."""

    start: int
    end: int

    def __contains__(self, address: object) -> bool:
        """Return whether an address lies in the range."""
        return isinstance(address, int) and self.start <= address < self.end

    def __len__(self) -> int:
        """Return the number of bytes in the range."""
        return self.end - self.start

    def __str__(self) -> str:
        """Return the range in the notation of ``/proc/PID/maps``."""
        return f"{self.start:x}-{self.end:x}"


def page_floor(address: int) -> int:
    """Return the first address of the page that holds ``address``."""
    return address & ~(PAGE - 1)


def page_ceil(address: int) -> int:
    """Return ``address`` rounded up to a page boundary."""
    return (address + PAGE - 1) & ~(PAGE - 1)
