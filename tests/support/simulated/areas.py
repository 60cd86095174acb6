"""The address space of a simulated target: areas of host memory, mapped and unmapped as the kernel does it."""

import ctypes
import mmap
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from anyprobe.core.address import PAGE, page_ceil
from anyprobe.core.memory import MemoryFault
from anyprobe.target.system.procfs import Mapping


class Watcher(Protocol):
    """What has to know which areas there are: the emulator."""

    def added(self, area: "Area") -> None: ...

    def removed(self, area: "Area") -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Area:
    """One mapping, and the host memory that it shows."""

    mapping: Mapping
    host: mmap.mmap
    at: int = 0
    """Where in the host memory it begins."""
    written: set[int] = field(default_factory=set)
    """Pages of a file that have become copies, by address."""

    @property
    def pointer(self) -> int:
        """Address of its first byte in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.host, self.at))

    def part(self, start: int, end: int) -> "Area":
        """Return a part of it, in the same host memory."""
        mapping, skip = self.mapping, start - self.mapping.start
        shown = mapping._replace(start=start, end=end, offset=mapping.offset + skip)
        return replace(self, mapping=shown, at=self.at + skip)


class SimulatedMemory:
    """Plain memory at addresses: what ``/proc/PID/mem`` and ``/proc/PID/maps`` are for a process."""

    def __init__(self) -> None:
        """Map nothing yet."""
        self._areas: list[Area] = []
        self._watchers: list[Watcher] = []
        self.fail_at: int | None = None
        """The page to which the next write of text fails."""
        self.after_write: Callable[[], None] = lambda: None
        """Called after each write of text, as if threads ran just then."""

    def watch(self, watcher: Watcher) -> None:
        """Tell of the areas that there are, and of changes."""
        self._watchers.append(watcher)
        for area in self._areas:
            watcher.added(area)

    def mappings(self) -> list[Mapping]:
        """Return the memory map."""
        return [area.mapping for area in self._areas]

    # -- mapping

    def add(
        self, start: int, size: int, perms: str, path: str = "", *, inode: int = 0, offset: int = 0, fd: int = -1
    ) -> None:
        """Map memory: a file's, if ``fd`` is given, shared or copied as ``perms`` says. What is there is replaced."""
        size = page_ceil(size)
        self.remove(start, start + size)
        flags = mmap.MAP_SHARED if perms[3] == "s" else mmap.MAP_PRIVATE
        flags |= mmap.MAP_ANONYMOUS if fd < 0 else 0
        host = mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)
        device = "00:00" if not inode else "00:01"
        self._insert(Area(Mapping(start, start + size, perms, offset, device, inode, path, deleted=False), host))

    def remove(self, start: int, end: int) -> None:
        """Unmap a range, parts of areas too."""
        for area in [each for each in self._areas if each.mapping.start < end and start < each.mapping.end]:
            self._areas.remove(area)
            for watcher in self._watchers:
                watcher.removed(area)
            if area.mapping.start < start:
                self._insert(area.part(area.mapping.start, start))
            if end < area.mapping.end:
                self._insert(area.part(end, area.mapping.end))

    def is_free(self, start: int, end: int) -> bool:
        """Return whether nothing is mapped in a range."""
        return not any(m.start < end and start < m.end for m in self.mappings())

    def _insert(self, area: Area) -> None:
        self._areas.append(area)
        self._areas.sort(key=lambda each: each.mapping.start)
        for watcher in self._watchers:
            watcher.added(area)

    # -- content

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at ``address``; raise ``MemoryFault`` if any of them is not mapped."""
        return b"".join(bytes(area.host[low:high]) for area, low, high in self._pieces(address, size))

    def write(self, address: int, content: bytes) -> None:
        """Write to data, also where the program may not."""
        done = 0
        for area, low, high in list(self._pieces(address, len(content))):
            area.host[low:high] = content[done : done + high - low]
            done += high - low

    def write_text(self, address: int, content: bytes) -> None:
        """Write to text, page by page; fail where a test has asked for it."""
        for page in range(address & -PAGE, address + len(content), PAGE):
            low, high = max(page, address), min(page + PAGE, address + len(content))
            if page == self.fail_at and high - low > 1:
                self.fail_at = None
                raise OSError("the test wants this write to fail")
            self.write(low, content[low - address : high - address])
            self.area_at(page).written.add(page)
            self.after_write()

    def area_at(self, address: int) -> Area:
        """Return the area that an address lies in; raise ``MemoryFault`` if there is none."""
        starts = [area.mapping.start for area in self._areas]
        index = bisect_right(starts, address) - 1
        if index < 0 or address >= self._areas[index].mapping.end:
            raise MemoryFault(address, 1)
        return self._areas[index]

    def _pieces(self, address: int, size: int) -> Iterator[tuple[Area, int, int]]:
        """Yield the areas of a range, and which bytes of their host memory it is."""
        end = address + size
        while address < end:
            try:
                area = self.area_at(address)
            except MemoryFault as fault:
                raise MemoryFault(address, end - address) from fault
            here = min(end, area.mapping.end)
            low = area.at + address - area.mapping.start
            yield area, low, low + here - address
            address = here
