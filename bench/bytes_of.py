"""Looking at a target from outside, without the package under test."""

import os
from pathlib import Path


def executable_mappings(pid: int) -> list[tuple[int, int, str]]:
    """Return start, end and name of the mappings that can be run."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        where, permissions, _, _, _, *name = line.split(maxsplit=5)
        if "x" in permissions:
            start, end = (int(part, 16) for part in where.split("-"))
            found.append((start, end, name[0] if name else ""))
    return found


def text_bytes(pid: int) -> list[bytes]:
    """Return the bytes of all executable file mappings."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        return [
            os.pread(memory, end - start, start)
            for start, end, name in executable_mappings(pid)
            if name.startswith("/") and not name.startswith("/memfd")
        ]
    finally:
        os.close(memory)


def resident_kb(pid: int, names: tuple[str, ...]) -> int:
    """Return the resident memory of executable mappings whose name begins with one of ``names``."""
    total, counted = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = line.split()
        if head and "-" in head[0] and not head[0].endswith(":"):
            counted = "x" in head[1] and len(head) > 5 and head[5].startswith(names)
        elif counted and line.startswith("Rss:"):
            total += int(head[1])
    return total


def memfd_bytes(pid: int) -> int:
    """Return the memory of all that a process maps of memfds, whoever touches it: patches, counters, tables."""
    found = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[5].startswith("/memfd:"):
            low, high = (int(each, 16) for each in fields[0].split("-"))
            status = os.stat(f"/proc/{pid}/map_files/{low:x}-{high:x}")
            found[status.st_ino] = 512 * status.st_blocks
    return sum(found.values())


def changed_pages(before: list[bytes], after: list[bytes]) -> int:
    """Return how many pages of text differ."""
    return sum(
        old[at : at + 4096] != new[at : at + 4096]
        for old, new in zip(before, after, strict=True)
        for at in range(0, len(old), 4096)
    )
