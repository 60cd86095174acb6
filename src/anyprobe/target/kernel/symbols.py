"""The kernel's functions and their addresses, as ``/proc/kallsyms`` tells them."""

import fnmatch
import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from typing import NamedTuple

from anyprobe.core.errors import PermissionDenied
from anyprobe.target.kernel import kept_content
from anyprobe.target.kernel.descriptors import made
from anyprobe.target.kernel.listing import NO_MODULES, functions_in
from anyprobe.target.kernel.name_table import NameTable

KERNEL = "vmlinux"
"""What the kernel itself is called where modules have their names."""
_ADDRESS = rb"\n([0-9a-f]+) "
_PADDING = ("__pfx_", "__cfi_")
_HIGHEST, _UPPER = 1 << 64, 1 << 63
_MODULE_FUNCTION_LIMIT = 1 << 16
"""Bytes of a module's last function at most: what lies after a module belongs to nothing."""
_PATH, _MODULES, _BOOT = "/proc/kallsyms", "/proc/modules", "/proc/sys/kernel/random/boot_id"
_KIND = "functions"
_HEAD = struct.Struct("<II")
"""How many functions there are, and the bytes of the names of modules."""
_ADDRESS_BYTES, _MODULE_BYTES = 8, 2


_LONGEST_VARIABLE = 1 << 16
"""Further from its beginning there may be something else that has no name."""


class KernelFunction(NamedTuple):
    """A function of the kernel or of one of its modules."""

    name: str
    module: str
    address: int


class _Functions:
    """The functions of a listing by number, in the order of their addresses; few of some hundred thousand are made."""

    def __init__(self, content: memoryview) -> None:
        """Take what ``packed`` has made."""
        count, named = _HEAD.unpack_from(content)
        parts = list(accumulate((named, count * _ADDRESS_BYTES, count * _MODULE_BYTES), initial=_HEAD.size))
        self._modules = bytes(content[parts[0] : parts[1]]).decode().split("\n")
        self.addresses = content[parts[1] : parts[2]].cast("Q")
        self._module_of = content[parts[2] : parts[3]].cast("H")
        self.names = NameTable(content[parts[3] :])

    @staticmethod
    def packed(listing: bytes) -> bytes:
        """Return the functions of a text of kallsyms."""
        found = functions_in(listing)
        count = len(found.names)
        numbers = {b"": 0}
        module_of = array("H", bytes(_MODULE_BYTES * count))
        for place, module in sorted(found.modules.items()):
            module_of[place] = numbers.setdefault(module, len(numbers))
        named = b"\n".join([KERNEL.encode(), *list(numbers)[1:]])
        parts = (named, found.addresses.tobytes(), module_of.tobytes(), NameTable.packed(found.names))
        return b"".join([_HEAD.pack(count, len(named)), *parts])

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.addresses)

    def made(self, number: int, name: str | None = None) -> KernelFunction:
        """Return one of them, by its name if that is known."""
        module = self._modules[self._module_of[number]]
        return KernelFunction(self.names.name(number) if name is None else name, module, self.addresses[number])

    def in_modules(self, pattern: str) -> Callable[[int], bool] | None:
        """Return what tells by its number whether one is in a module that matches; None: there is no such module."""
        wanted = {number for number, name in enumerate(self._modules) if fnmatch.fnmatchcase(name, pattern)}
        module_of = self._module_of
        return (lambda number: module_of[number] in wanted) if wanted else None

    def at(self, address: int) -> range:
        """Return the numbers of those at an address."""
        return range(bisect_left(self.addresses, address), bisect_right(self.addresses, address))


class Symbols:
    """All functions at one moment; modules may come and go afterwards."""

    def __init__(
        self,
        listing: bytes | Callable[[], bytes],
        ends: Mapping[str, int] | None = None,
        functions: memoryview | None = None,
    ) -> None:
        """Take the text of kallsyms.

        Args:
            listing: the text, or what returns it when it is asked for.
            ends: the address after each module, as far as that is known.
            functions: what is already known of the text.
        """
        self._ends = ends or {}
        self._listing = listing
        self._known = functions
        if functions is None:
            text = self._text
            if re.search(rb"\n[0-9a-f]", text) and not re.search(rb"\n0*[1-9a-f]", text):
                detail = "the kernel does not tell the addresses of its functions"
                raise PermissionDenied("kptr_restrict", detail, "be root, or set kernel.kptr_restrict to 0")

    @cached_property
    def _text(self) -> bytes:
        return b"\n" + (self._listing if isinstance(self._listing, bytes) else self._listing())

    @property
    def listing(self) -> bytes:
        """The text of kallsyms."""
        return self._text[1:]

    @cached_property
    def functions(self) -> bytes | memoryview:
        """What is known of the text, to be kept."""
        return _Functions.packed(self.listing) if self._known is None else self._known

    @cached_property
    def _functions(self) -> _Functions:
        return _Functions(memoryview(self.functions))

    def data(self, name: str) -> int | None:
        """Return the address of a variable of the kernel."""
        return self._address_before(b" %s\n" % name.encode(), b"bBdDrR")

    def variables_at(self, addresses: Iterable[int]) -> dict[int, str]:
        """Return the names of the variables of the kernel that addresses are in, ``name+0x8`` of what is within one.

        Of a kernel that does not list its variables (``CONFIG_KALLSYMS_ALL``) nothing is known.
        """
        found: dict[int, str] = {}
        listed = self.data("init_task") is not None
        for address in addresses if listed else ():
            at = bisect_right(self._data, (address, "\U0010ffff")) - 1
            before, name = self._data[at] if at >= 0 else (0, "")
            if name and address - before < _LONGEST_VARIABLE:
                found[address] = name if address == before else f"{name}+{address - before:#x}"
        return found

    @cached_property
    def _data(self) -> list[tuple[int, str]]:
        """All addresses that have a name, in ascending order; without the name of what is no variable."""
        found: dict[int, str] = {}
        for line in self.listing.decode().splitlines():
            digits, kind, name = line.partition("\t")[0].split(" ", 2)
            is_data, address = kind in "bBdDrR", int(digits, 16)
            if is_data or address not in found:
                found[address] = name if is_data else ""
        return sorted(found.items())

    def of_processor(self, name: str) -> int | None:
        """Return the offset from ``gs`` of a variable that each processor has for itself."""
        found = self._address_before(b" %s\n" % name.encode(), b"aAbBdDrRvV")
        # in later kernels such variables have addresses as all others, relative to those of the code
        return None if found is None or found >= _UPPER else found

    def module_structure(self, module: str) -> int | None:
        """Return where the kernel's description of a module (``struct module``) lies."""
        return self._address_before(b" __this_module\t[%s]" % module.encode())

    def _address_before(self, ending: bytes, letters: bytes = b"") -> int | None:
        """Return the address in the first line of some kinds, or of any, that has a text after the kind's letter."""
        text = self._text
        at = text.find(ending)
        while at >= 0:
            digits, _, letter = text[text.rfind(b"\n", 0, at) + 1 : at].partition(b" ")
            if len(letter) == 1 and (letter in letters or not letters):
                return int(digits, 16)
            at = text.find(ending, at + 1)
        return None

    @cached_property
    def _end(self) -> int:
        """Where the kernel's own text ends: addresses after it belong to modules, or to what the kernel has made."""
        ends = [each.address for name in ("_etext", "_einittext") for each in self.named(name)]
        return max(ends, default=self._functions.addresses[-1] if len(self._functions) else 0)

    def containing(self, address: int) -> KernelFunction | None:
        """Return the function that an address lies in, as far as the next one's beginning bounds it."""
        before = bisect_right(self._functions.addresses, address)
        if not before:
            return None
        found = self._functions.made(before - 1)
        if found.module == KERNEL:
            return found if address < self._end else None
        end = min(found.address + _MODULE_FUNCTION_LIMIT, self._ends.get(found.module, _HIGHEST))
        return found if address < end else None

    def named(self, name: str) -> list[KernelFunction]:
        """Return all functions of a name, which several files may have each one of."""
        return [self._functions.made(number, name) for number in self._functions.names.numbers(name)]

    def matching(self, pattern: str, module: str = "*") -> list[KernelFunction]:
        """Return the functions of which name and module match a shell's patterns, in the order of their names."""
        inside = self._functions.in_modules(module)
        if inside is None:  # all names would be looked at in vain
            return []
        matches = re.compile(fnmatch.translate(pattern)).match
        begin = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
        starting = self._functions.names.starting(begin)
        found = [(name, number) for number, name in starting if inside(number) and matches(name)]
        return [self._functions.made(number, name) for name, number in sorted(found) if not name.startswith(_PADDING)]

    def aliases(self, function: KernelFunction) -> list[str]:
        """Return all names of a function, its own first."""
        same = map(self._functions.names.name, self._functions.at(function.address))
        return [function.name, *(name for name in same if name != function.name)]

    def names(self) -> list[str]:
        """Return the names of all functions, each once, in order; the padding before functions has names too."""
        return sorted({name for name in self._functions.names.names() if not name.startswith(_PADDING)})

    def next_after(self, function: KernelFunction) -> int | None:
        """Return where the next symbol of the same module begins, which bounds the size of a function."""
        return next((address for address in self._from(function) if address > function.address), None)

    def _from(self, function: KernelFunction) -> Iterable[int]:
        """Return the addresses of a module's symbols in order, from a function on or from the first."""
        if function.module == KERNEL:  # whose lines are in order
            at = self._text.find(b"\n%016x " % function.address)
            return (int(line[1], 16) for line in re.compile(_ADDRESS).finditer(self._text, at))
        after = range(bisect_right(self._functions.addresses, function.address), len(self._functions))
        return (each.address for each in map(self._functions.made, after) if each.module == function.module)


def running() -> Symbols:
    """Return the functions of the running kernel; they are read again when its modules have changed."""
    return _running(state_of_modules())


def state_of_modules() -> bytes:
    """Return what says that the kernel has the same modules, at the same places, since the same boot."""
    modules = made("open", _modules)
    return made("open", partial(_content, _BOOT)) + b"\n".join(map(_identity, modules.splitlines()))


def _modules() -> bytes:
    try:
        return _content(_MODULES)
    except FileNotFoundError:  # a kernel without modules
        return b""


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _identity(line: bytes) -> bytes:
    """Return what says that a module is the same one, loaded once: its name and size, its state, where it is."""
    name, size, _, _, state, address, *_ = line.split()
    return b" ".join([name, size, state, address])


@lru_cache(maxsize=1)
def _running(state: bytes) -> Symbols:
    """Return the functions in some state, kept since the boot: the kernel takes long to write them out."""
    ends = _ends_of(state.partition(b"\n")[2])
    known = kept_content.load(_KIND, state)
    if known is not None:
        return Symbols(partial(_listing, state), ends, known)
    listing = _listed()
    lasting = _lasting(listing)
    found = Symbols(listing, ends)  # which refuses one without addresses
    kept_content.store(_KIND, state, found.functions, lasting)
    return found


def _listing(state: bytes) -> bytes:
    """Return the whole text in some state, as far as that lasts."""
    known = kept_content.load_second(_KIND, state)
    return bytes(known) if known is not None else _lasting(_listed())


def _listed() -> bytes:
    with open(_PATH, "rb", buffering=0) as file:
        return file.readall()


def _ends_of(modules: bytes) -> dict[str, int]:
    """Return the address after each module: what the kernel has made itself, such as trampolines, may be there."""
    ends = {}
    for name, size, _, address in map(bytes.split, modules.splitlines()):
        start = int(address, 16)
        if start:  # 0 for those who may not know
            ends[name.decode()] = start + int(size)
    return ends


def _lasting(listing: bytes) -> bytes:
    """Return a listing without its end, which has what the kernel makes itself all the time."""
    first = min((at for name in NO_MODULES if (at := listing.find(b"\t[" + name)) >= 0), default=len(listing))
    return listing[: listing.rfind(b"\n", 0, first) + 1]
