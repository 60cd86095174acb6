"""What a process's memory looks like from outside: compared before and after a session."""

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mapping:
    """One line of ``/proc/PID/maps``."""

    start: int
    end: int
    permissions: str
    offset: int
    name: str

    @property
    def executable(self) -> bool:
        """Whether its bytes can be run."""
        return "x" in self.permissions


def mappings(pid: int) -> list[Mapping]:
    """Return the mappings of a process."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        where, permissions, offset, _device, _inode, *name = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in where.split("-"))
        found.append(Mapping(start, end, permissions, int(offset, 16), name[0] if name else ""))
    return found


def lasting(pid: int) -> set[Mapping]:
    """Return the mappings that only a tool would change: everything but stacks, heap and anonymous memory."""
    return {m for m in mappings(pid) if m.name and not m.name.startswith(("[heap", "[stack", "[v"))}


def foreign_executable(pid: int) -> list[Mapping]:
    """Return executable mappings that belong to no file of the program: ours."""
    return [
        m
        for m in mappings(pid)
        if m.executable and not m.name.startswith("[v") and (not m.name.startswith("/") or m.name.startswith("/memfd"))
    ]


def text(pid: int) -> dict[tuple[int, str], bytes]:
    """Return all bytes of executable file mappings."""
    found = {}
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        for m in mappings(pid):
            if m.executable and m.name.startswith("/") and not m.name.startswith("/memfd"):
                found[m.start, m.name] = os.pread(memory, m.end - m.start, m.start)
    finally:
        os.close(memory)
    return found


def private_kb(pid: int, *, code_only: bool = False) -> int:
    """Return the private memory of a process, of its executable file mappings only if asked."""
    total, counted = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counted = not code_only or "x" in line.split()[1]
        elif (
            counted
            and line.startswith(("Private_Dirty:", "Private_Clean:"))
            and (not code_only or line.startswith("Private_Dirty:"))
        ):
            total += int(line.split()[1])
    return total


def writable_and_executable(pid: int) -> list[Mapping]:
    """Return mappings that break W^X."""
    return [m for m in mappings(pid) if m.executable and "w" in m.permissions]


@dataclass(frozen=True)
class Image:
    """What must be the same after a session as before it."""

    maps: frozenset[Mapping]
    text: dict[tuple[int, str], bytes]
    private_code_kb: int

    @classmethod
    def of(cls, pid: int) -> "Image":
        """Take the picture."""
        return cls(frozenset(lasting(pid)), text(pid), private_kb(pid, code_only=True))

    def assert_restored(self, pid: int) -> None:
        """Compare with now."""
        now = Image.of(pid)
        for (start, name), before in self.text.items():
            after = now.text.get((start, name))
            assert after is not None, f"{name} is no longer mapped"
            if after != before:
                at = next(i for i in range(len(before)) if before[i] != after[i])
                raise AssertionError(f"{name}: byte at {start + at:#x} is {after[at]:02x}, was {before[at]:02x}")
        extra, gone = now.maps - self.maps, self.maps - now.maps
        assert not extra, f"mappings added: {extra}"
        assert not gone, f"mappings gone: {gone}"
        assert not foreign_executable(pid)
        assert now.private_code_kb <= self.private_code_kb + 64
