"""Pages of text that equal their file again: private memory that can be given back."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.address import PAGE
from anyprobe.target import gateway

if TYPE_CHECKING:
    from anyprobe.target.process import Process
    from anyprobe.target.procfs import Mapping


def droppable(process: "Process", pages: Sequence[int], mappings: "Sequence[Mapping]") -> list[tuple[int, int]]:
    """Return (address, size) of runs of restored pages that equal the file's and may be given back to it."""
    runs: list[tuple[int, int]] = []
    for mapping in mappings:
        inside = [page for page in pages if mapping.start <= page < mapping.end]
        if not inside or not mapping.path or mapping.writable or not mapping.private:
            continue
        fd = _mapped_file(process, mapping)
        if fd < 0:
            continue
        try:
            for low, size in _runs(inside):
                try:
                    content = gateway.pread(fd, size, mapping.offset + low - mapping.start)
                except OSError:  # a file that can be opened and not read (a stale handle): the pages stay copies
                    continue
                if content == process.mem.read(low, size):
                    runs.append((low, size))
                else:
                    runs += [
                        (page, PAGE) for page in range(low, low + size, PAGE) if _same(content, low, page, process)
                    ]
        finally:
            gateway.close(fd)
    return runs


def _same(content: bytes, low: int, page: int, process: "Process") -> bool:
    return content[page - low : page - low + PAGE] == process.mem.read(page, PAGE)


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Join adjacent pages."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and runs[-1][0] + runs[-1][1] == page:
            runs[-1] = (runs[-1][0], runs[-1][1] + PAGE)
        else:
            runs.append((page, PAGE))
    return runs


def _mapped_file(process: "Process", mapping: "Mapping") -> int:
    """Return a descriptor of the very file that is mapped, -1 where it cannot be opened."""
    for path in (f"/proc/{process.pid}/map_files/{mapping.start:x}-{mapping.end:x}", process.root + mapping.path):
        with suppress(OSError):
            fd = gateway.open_file(path, os.O_RDONLY | os.O_CLOEXEC)
            if gateway.fstat(fd).st_ino == mapping.inode:
                return int(fd)
            gateway.close(fd)
    return -1
