"""The kernel's functions and their addresses, as ``/proc/kallsyms`` tells them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from anyprobe.core.errors import PermissionDenied

KERNEL = "vmlinux"
"""What the kernel itself is called where modules have their names."""
_KERNEL = KERNEL.encode()
_LINE = re.compile(rb"([0-9a-f]+) [tTwW] (\S+)(?:\t\[(\S+)\])?")
_NAMES = re.compile(rb"\n[0-9a-f]+ [tTwW] (\S+)")
_ADDRESS = re.compile(rb"\n([0-9a-f]+) ")
_NO_MODULES = (b"bpf", b"__builtin__")
"""What the kernel has made itself: programs, trampolines."""
_PADDING = (b"__pfx_", b"__cfi_")
_PATH = "/proc/kallsyms"


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """A function of the kernel or of one of its modules."""

    name: str
    module: str
    address: int


class Symbols:
    """All functions at one moment; modules may come and go afterwards.

    The listing has some hundred thousand lines, of which few are asked for: it is searched as it is.
    """

    def __init__(self, listing: bytes) -> None:
        """Take the text of kallsyms."""
        self._text = b"\n" + listing
        if re.search(rb"\n[0-9a-f]", self._text) and not re.search(rb"\n0*[1-9a-f]", self._text):
            detail = "the kernel does not tell the addresses of its functions"
            raise PermissionDenied("kptr_restrict", detail, "be root, or set kernel.kptr_restrict to 0")

    @classmethod
    def running(cls) -> "Symbols":
        """Return those of the running kernel."""
        with open(_PATH, "rb") as file:
            return cls(file.read())

    def _lines_with(self, part: bytes) -> Iterator[KernelFunction]:
        """Yield the functions in whose lines some text stands, which has no end of a line but at its beginning."""
        at = self._text.find(part)
        while at >= 0:
            start = self._text.rfind(b"\n", 0, at + 1) + 1
            end = self._text.find(b"\n", at + 1)
            line = _LINE.fullmatch(self._text, start, end if end >= 0 else len(self._text))
            if line is not None and not (line[3] or b"").startswith(_NO_MODULES):
                yield KernelFunction(line[2].decode(), (line[3] or _KERNEL).decode(), int(line[1], 16))
            at = self._text.find(part, at + 1)

    def named(self, name: str) -> list[KernelFunction]:
        """Return all functions of a name, which several files may have each one of."""
        return [each for each in self._lines_with(f" {name}".encode()) if each.name == name]

    def aliases(self, function: KernelFunction) -> list[str]:
        """Return all names of a function, its own first."""
        same = [each.name for each in self._lines_with(b"\n%016x " % function.address)]
        return [function.name, *(name for name in same if name != function.name)]

    def names(self) -> list[str]:
        """Return the names of all functions, each once, in order; the padding before functions has names too."""
        names = {name for name in _NAMES.findall(self._text) if not name.startswith(_PADDING)}
        return sorted(name.decode() for name in names)

    def next_after(self, function: KernelFunction) -> int | None:
        """Return where the next symbol of the same module begins, which bounds the size of a function."""
        return next((address for address in self._from(function) if address > function.address), None)

    def _from(self, function: KernelFunction) -> Iterable[int]:
        """Return the addresses of a module's symbols in order, from a function on or from the first."""
        if function.module == KERNEL:  # whose lines are in order
            at = self._text.find(b"\n%016x " % function.address)
            return (int(line[1], 16) for line in _ADDRESS.finditer(self._text, at))
        return sorted(each.address for each in self._lines_with(f"\t[{function.module}]".encode()))
