"""Pages of text that equal their file again: private memory that can be given back."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.address import PAGE
from anyprobe.target.system import gateway, procfs
from anyprobe.target.system.pagemap import IN_MEMORY, OF_FILE, PRESENT

if TYPE_CHECKING:
    from anyprobe.target.base import ProcessFacts
    from anyprobe.target.system.procfs import Mapping


def copied_pages(process: "ProcessFacts", mappings: "Sequence[Mapping]") -> list[int]:
    """Return the pages of text that are copies of the process's own, for any reason; nothing needs to be stopped.

    Raises ``OSError``. Of probes that were taken out one by one no journal knows any more where they were.
    """
    import numpy as np

    found: list[int] = []
    with process.page_map() as page_map:
        for mapping in mappings:
            if not (_is_private_file(mapping) and mapping.executable):
                continue
            for address, content in page_map.entries(mapping.start, mapping.end):
                entries = np.frombuffer(content, dtype=np.uint64)
                own = np.flatnonzero((entries & IN_MEMORY != 0) & (entries & OF_FILE == 0))
                found += [address + page * PAGE for page in own.tolist()]
    return found


def never_written(process: "ProcessFacts", pages: Iterable[int]) -> set[int]:
    """Return which pages that were just read are certainly the file's: no splice was ever written to these.

    So it is where a library was unmapped and another one has come, whose bytes may be like those of a splice.
    """
    found: set[int] = set()
    with suppress(OSError), process.page_map() as page_map:
        for page in pages:
            if page_map.entry(page) & (IN_MEMORY | OF_FILE) == PRESENT | OF_FILE:
                found.add(page)
    return found


def _is_private_file(mapping: "Mapping") -> bool:
    """Return whether what is mapped is a file's, and a process that writes to it gets a copy."""
    return bool(mapping.path) and mapping.inode > 0 and mapping.private and not mapping.writable


def droppable(process: "ProcessFacts", pages: Sequence[int], mappings: "Sequence[Mapping]") -> list[tuple[int, int]]:
    """Return (address, size) of runs of restored pages that equal the file's and may be given back to it."""
    runs: list[tuple[int, int]] = []
    for mapping in mappings:
        inside = [page for page in pages if mapping.start <= page < mapping.end] if _is_private_file(mapping) else []
        if not inside:
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


def _same(content: bytes, low: int, page: int, process: "ProcessFacts") -> bool:
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


def _mapped_file(process: "ProcessFacts", mapping: "Mapping") -> int:
    """Return a descriptor of the very file that is mapped, -1 where it cannot be opened."""
    files = f"/proc/{procfs.voice(process.pid)}/map_files"
    for path in (f"{files}/{mapping.start:x}-{mapping.end:x}", process.root + mapping.path):
        with suppress(OSError):
            fd = gateway.open_file(path, os.O_RDONLY | os.O_CLOEXEC)
            if gateway.fstat(fd).st_ino == mapping.inode:
                return int(fd)
            gateway.close(fd)
    return -1
