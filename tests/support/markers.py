"""Semaphores of USDT markers in a process, read from outside."""

import os
import struct
from pathlib import Path

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.markers import read_markers


def semaphore_places(pid: int, path: str | Path) -> dict[str, int]:
    """Return the run-time addresses of an object's semaphores, by the names of their markers."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    elf = ElfFile.open(str(path))
    bias = min(int(line.split("-")[0], 16) for line in maps if line.endswith(str(path))) if elf.elf_type == 3 else 0
    return {each.name: bias + each.semaphore for each in read_markers(elf).found if each.semaphore}


def semaphores(pid: int, path: str | Path) -> dict[str, int]:
    """Return the values of an object's semaphores in a process, by the names of their markers."""
    places = semaphore_places(pid, path)
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        return {name: struct.unpack("<H", os.pread(memory, 2, at))[0] for name, at in places.items()}
    finally:
        os.close(memory)


def write_semaphore(pid: int, path: str | Path, name: str, value: int) -> None:
    """Set a semaphore, as another tool may do it."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    try:
        os.pwrite(memory, struct.pack("<H", value), semaphore_places(pid, path)[name])
    finally:
        os.close(memory)
