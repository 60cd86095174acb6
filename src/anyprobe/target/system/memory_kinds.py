"""Which memory of a process is served by programs: regions of userfaultfd, and files of file systems in user space."""

import os
from collections.abc import Iterator
from contextlib import suppress

from anyprobe.target.system.procfs import read_file, read_mappings

_REGISTERED = frozenset({"um", "uw", "ui"})
"""Flags of regions whose faults go to a userfaultfd: missing pages, writes to protected ones, minor faults."""
_MINOR = "ui"
_USERFAULTFD = "anon_inode:[userfaultfd]"
_FUSE = "/dev/fuse"
"""What a program has open that serves a file system, before it maps files of it."""
_SERVED = ("fuse", "9p")
"""Types of file systems that a program may serve; of FUSE there are sub-types, as ``fuse.sshfs``, and ``fuseblk``."""


def served_memory(pid: int, *, thoroughly: bool) -> tuple[bool, list[tuple[int, int]]]:
    """Return whether a process has such memory, and where residence says nothing of whether reading it waits.

    ``thoroughly``: registered regions are looked for even where it has no descriptor of a userfaultfd itself.
    """
    found, never = False, list[tuple[int, int]]()
    with suppress(OSError, ValueError):
        served = {device for device, kind in _file_systems(pid) if kind.startswith(_SERVED)}
        for mapping in read_mappings(pid) if served else ():
            if mapping.device in served:
                found = True
                if not _sees_residence(pid):
                    never.append((mapping.start, mapping.end))
        opened = _opened(pid)
        found |= _FUSE in opened
        if thoroughly or _USERFAULTFD in opened:
            for start, end, flags in _flags_of_memory(pid):
                found |= not _REGISTERED.isdisjoint(flags)
                if _MINOR in flags:
                    never.append((start, end))
    return found, never


def _sees_residence(pid: int) -> bool:
    """Return whether ``mincore`` tells a process the truth of any file: of others' files it does not."""
    status = read_file(f"/proc/{pid}/status").decode(errors="replace")
    uids = next((line.split() for line in status.splitlines() if line.startswith("Uid:")), [])
    return len(uids) > 4 and uids[4] == "0"


def _file_systems(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the device and the type of each mounted file system, the device as in maps."""
    for line in os.fsdecode(read_file(f"/proc/{pid}/mountinfo")).splitlines():
        fields, _, rest = line.partition(" - ")
        major, _, minor = fields.split()[2].partition(":")
        yield f"{int(major):02x}:{int(minor):02x}", rest.split()[0]


def _opened(pid: int) -> set[str]:
    """Return what the descriptors of a process are."""
    folder, found = f"/proc/{pid}/fd", set[str]()
    for name in os.listdir(folder):
        with suppress(OSError):
            found.add(os.readlink(f"{folder}/{name}"))
    return found


def _flags_of_memory(pid: int) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the flags of each mapping."""
    start = end = 0
    for line in os.fsdecode(read_file(f"/proc/{pid}/smaps")).splitlines():
        word, _, rest = line.partition(" ")
        if word == "VmFlags:":
            yield start, end, rest.split()
        elif not word.endswith(":"):
            low, _, high = word.partition("-")
            start, end = int(low, 16), int(high, 16)
