"""The kernel's functions and their addresses, as ``/proc/kallsyms`` tells them."""

import fnmatch
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from anyprobe.core.errors import PermissionDenied
from anyprobe.target.kernel import kept_content

KERNEL = "vmlinux"
"""What the kernel itself is called where modules have their names."""
_KERNEL = KERNEL.encode()
_LINE = re.compile(rb"([0-9a-f]+) [tTwW] (\S+)(?:\t\[(\S+)\])?")
_FUNCTIONS = re.compile(rb"\n([0-9a-f]+) [tTwW] (\S+)(?:\t\[(\S+)\])?")
_ADDRESS = re.compile(rb"\n([0-9a-f]+) ")
_NO_MODULES = (b"bpf", b"__builtin__")
"""What the kernel has made itself: programs, trampolines."""
_PADDING = ("__pfx_", "__cfi_")
_HIGHEST = 1 << 64
_MODULE_FUNCTION_LIMIT = 1 << 16
"""Bytes of a module's last function at most: what lies behind a module belongs to nothing."""
_PATH, _MODULES, _BOOT = "/proc/kallsyms", "/proc/modules", "/proc/sys/kernel/random/boot_id"
_KIND = "symbols"


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

    def __init__(self, listing: bytes, ends: Mapping[str, int] | None = None) -> None:
        """Take the text of kallsyms; ``ends``: the address behind each module, as far as that is known."""
        self._ends = ends or {}
        self._text = b"\n" + listing
        if re.search(rb"\n[0-9a-f]", self._text) and not re.search(rb"\n0*[1-9a-f]", self._text):
            detail = "the kernel does not tell the addresses of its functions"
            raise PermissionDenied("kptr_restrict", detail, "be root, or set kernel.kptr_restrict to 0")

    @property
    def listing(self) -> bytes:
        """The text of kallsyms."""
        return self._text[1:]

    def data(self, name: str) -> int | None:
        """Return the address of a variable of the kernel."""
        found = re.search(rb"\n([0-9a-f]+) [bBdDrR] %s\n" % re.escape(name.encode()), self._text)
        return None if found is None else int(found[1], 16)

    def module_structure(self, module: str) -> int | None:
        """Return where the kernel's description of a module (``struct module``) lies."""
        found = re.search(rb"\n([0-9a-f]+) \S __this_module\t\[%s\]" % re.escape(module.encode()), self._text)
        return None if found is None else int(found[1], 16)

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

    @cached_property
    def _index(self) -> tuple[dict[str, list[KernelFunction]], dict[int, list[str]]]:
        """All functions by name, and all names by address: worth a pass over the whole where many are asked for."""
        by_name: dict[str, list[KernelFunction]] = {}
        by_address: dict[int, list[str]] = {}
        for digits, name, module in _FUNCTIONS.findall(self._text):
            if not module.startswith(_NO_MODULES):
                made = KernelFunction(name.decode(), (module or _KERNEL).decode(), int(digits, 16))
                by_name.setdefault(made.name, []).append(made)
                by_address.setdefault(made.address, []).append(made.name)
        return by_name, by_address

    @cached_property
    def _ordered(self) -> tuple[list[int], list[KernelFunction]]:
        """All functions in the order of their addresses, one of each address."""
        found = {each.address: each for functions in self._index[0].values() for each in functions}
        addresses = sorted(found)
        return addresses, [found[address] for address in addresses]

    @cached_property
    def _end(self) -> int:
        """Where the kernel's own text ends: addresses behind it belong to modules, or to what the kernel has made."""
        ends = [each.address for name in ("_etext", "_einittext") for each in self.named(name)]
        return max(ends, default=self._ordered[0][-1] if self._ordered[0] else 0)

    def containing(self, address: int) -> KernelFunction | None:
        """Return the function that an address lies in, as far as the next one's beginning bounds it."""
        addresses, functions = self._ordered
        at = bisect_right(addresses, address) - 1
        if at < 0:
            return None
        found = functions[at]
        if found.module == KERNEL:
            return found if address < self._end else None
        end = min(found.address + _MODULE_FUNCTION_LIMIT, self._ends.get(found.module, _HIGHEST))
        return found if address < end else None

    def named(self, name: str) -> list[KernelFunction]:
        """Return all functions of a name, which several files may have each one of."""
        if "_index" in self.__dict__:
            return self._index[0].get(name, [])
        return [each for each in self._lines_with(f" {name}".encode()) if each.name == name]

    def matching(self, pattern: str) -> list[KernelFunction]:
        """Return the functions of which the name matches a shell's pattern, in the order of their names."""
        matches = re.compile(fnmatch.translate(pattern)).match
        names = (name for name in self._index[0] if matches(name) and not name.startswith(_PADDING))
        return [each for name in sorted(names) for each in self._index[0][name]]

    def aliases(self, function: KernelFunction) -> list[str]:
        """Return all names of a function, its own first."""
        if "_index" in self.__dict__:
            same = self._index[1].get(function.address, [])
        else:
            same = [each.name for each in self._lines_with(b"\n%016x " % function.address)]
        return [function.name, *(name for name in same if name != function.name)]

    def names(self) -> list[str]:
        """Return the names of all functions, each once, in order; the padding before functions has names too."""
        return sorted(name for name in self._index[0] if not name.startswith(_PADDING))

    def next_after(self, function: KernelFunction) -> int | None:
        """Return where the next symbol of the same module begins, which bounds the size of a function."""
        return next((address for address in self._from(function) if address > function.address), None)

    def _from(self, function: KernelFunction) -> Iterable[int]:
        """Return the addresses of a module's symbols in order, from a function on or from the first."""
        if function.module == KERNEL:  # whose lines are in order
            at = self._text.find(b"\n%016x " % function.address)
            return (int(line[1], 16) for line in _ADDRESS.finditer(self._text, at))
        return sorted(each.address for each in self._lines_with(f"\t[{function.module}]".encode()))


def running() -> Symbols:
    """Return the functions of the running kernel; they are read again when its modules have changed."""
    try:
        with open(_MODULES, "rb") as file:
            modules = file.read()
    except FileNotFoundError:  # a kernel without modules
        modules = b""
    return _running(b"\n".join(map(_identity, modules.splitlines())))


def _identity(line: bytes) -> bytes:
    """Return what says that a module is the same one, loaded once: its name and size, its state, where it is."""
    name, size, _, _, state, address, *_ = line.split()
    return b" ".join([name, size, state, address])


@lru_cache(maxsize=1)
def _running(modules: bytes) -> Symbols:
    """Return the functions with some modules, kept since the boot: the kernel takes long to write them out."""
    with open(_BOOT, "rb") as file:
        state = file.read() + modules
    ends = _ends_of(modules)
    known = kept_content.load(_KIND, state)
    if known is not None:
        return Symbols(known, ends)
    with open(_PATH, "rb", buffering=0) as listed:
        listing = listed.readall()
    found = Symbols(listing, ends)  # which refuses one without addresses
    kept_content.store(_KIND, state, _lasting(listing))
    return found


def _ends_of(modules: bytes) -> dict[str, int]:
    """Return the address behind each module: what the kernel has made itself, such as trampolines, may be there."""
    ends = {}
    for name, size, _, address in map(bytes.split, modules.splitlines()):
        start = int(address, 16)
        if start:  # 0 for those who may not know
            ends[name.decode()] = start + int(size)
    return ends


def _lasting(listing: bytes) -> bytes:
    """Return a listing without its end, which has what the kernel makes itself all the time."""
    first = min((at for name in _NO_MODULES if (at := listing.find(b"\t[" + name)) >= 0), default=len(listing))
    return listing[: listing.rfind(b"\n", 0, first) + 1]
