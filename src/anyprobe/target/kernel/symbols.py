"""The kernel's functions and their addresses, as ``/proc/kallsyms`` tells them."""

import bisect
from dataclasses import dataclass
from functools import cached_property

from anyprobe.core.errors import PermissionDenied

KERNEL = "vmlinux"
"""What the kernel itself is called where modules have their names."""
_TEXT = frozenset(b"tTwW")
_PATH = "/proc/kallsyms"


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """A function of the kernel or of one of its modules."""

    name: str
    module: str
    address: int


class Symbols:
    """All functions at one moment; modules may come and go afterwards."""

    def __init__(self, listing: bytes) -> None:
        """Take the text of kallsyms; what is no function is left out."""
        self._lines: list[tuple[bytes, bytes, bytes]] = []
        for line in listing.splitlines():
            words = line.split()
            if len(words) >= 3 and words[1][0] in _TEXT:
                self._lines.append((words[2], words[0], words[3][1:-1] if len(words) > 3 else b""))
        if self._lines and not any(address.strip(b"0") for _, address, _ in self._lines):
            detail = "the kernel does not tell the addresses of its functions"
            raise PermissionDenied("kptr_restrict", detail, "be root, or set kernel.kptr_restrict to 0")

    @classmethod
    def running(cls) -> "Symbols":
        """Return those of the running kernel."""
        with open(_PATH, "rb") as file:
            return cls(file.read())

    @staticmethod
    def _function(line: tuple[bytes, bytes, bytes]) -> KernelFunction:
        name, address, module = line
        return KernelFunction(name.decode(), module.decode() or KERNEL, int(address, 16))

    @cached_property
    def _by_name(self) -> dict[bytes, list[tuple[bytes, bytes, bytes]]]:
        found: dict[bytes, list[tuple[bytes, bytes, bytes]]] = {}
        for line in self._lines:
            found.setdefault(line[0], []).append(line)
        return found

    @cached_property
    def _by_address(self) -> dict[bytes, list[tuple[bytes, bytes, bytes]]]:
        found: dict[bytes, list[tuple[bytes, bytes, bytes]]] = {}
        for line in self._lines:
            found.setdefault(line[1], []).append(line)
        return found

    @cached_property
    def _sorted(self) -> list[int]:
        return sorted({int(address, 16) for _, address, _ in self._lines})

    def named(self, name: str) -> list[KernelFunction]:
        """Return all functions of a name, which several files may have each one of."""
        return [self._function(line) for line in self._by_name.get(name.encode(), ())]

    def aliases(self, function: KernelFunction) -> list[str]:
        """Return all names of a function, its own first."""
        same = [line[0].decode() for line in self._by_address.get(b"%016x" % function.address, ())]
        return [function.name, *(name for name in same if name != function.name)]

    def names(self) -> list[str]:
        """Return the names of all functions, each once, in order."""
        return sorted(name.decode() for name in self._by_name)

    def next_after(self, address: int) -> int | None:
        """Return where the next function begins, which bounds the size of the one at an address."""
        at = bisect.bisect_right(self._sorted, address)
        return self._sorted[at] if at < len(self._sorted) else None
