"""tracefs and debugfs: the kernel's tracepoints, and which of its functions may be probed."""

import os
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import NamedTuple

from anyprobe.core.errors import TargetError
from anyprobe.target.kernel import kept_content, loaded_modules, symbols
from anyprobe.target.kernel.descriptors import locked_down
from anyprobe.target.kernel.listing import leading_addresses

_PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_ENDBR_BYTES = 4
_KIND = "traceable"
_FIELD = r"(?m)^\tfield:(.+);\toffset:(\d+);\tsize:(\d+);\tsigned:([01]);$"
_DECLARATION = r"(.*?)(\w+)((?:\[\w*\])*)"
_BLACKLIST = "/sys/kernel/debug/kprobes/blacklist"


@cache
def root() -> str:
    """Return where tracefs is mounted; raise ``TargetError`` where it is not or may not be read."""
    for place in _PLACES:
        if os.path.isdir(f"{place}/events"):
            return place
    remedy = locked_down() or "be root, or mount it: mount -t tracefs tracefs /sys/kernel/tracing"
    raise TargetError(f"tracefs cannot be read; {remedy}")


def tracepoint_number(category: str, name: str) -> int | None:
    """Return the number by which perf knows a tracepoint, None if there is none of this name."""
    try:
        with open(f"{root()}/events/{category}/{name}/id") as file:
            return int(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None


def categories() -> list[str]:
    """Return the categories of tracepoints."""
    return sorted(_directories(f"{root()}/events"))


def tracepoints(category: str) -> list[str]:
    """Return the names of the tracepoints of a category."""
    try:
        names = sorted(_directories(f"{root()}/events/{category}"))
    except FileNotFoundError:
        return []
    return [name for name in names if os.path.exists(f"{root()}/events/{category}/{name}/id")]


def _directories(path: str) -> Iterator[str]:
    with os.scandir(path) as entries:
        yield from (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def blacklist() -> list[tuple[int, int, str]]:
    """Return the ranges that kprobes may not touch, with the names of the functions; empty where it cannot be read."""
    try:
        with open(_BLACKLIST) as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        bounds, _, name = line.partition("\t")
        low, _, high = bounds.partition("-")
        found.append((int(low, 16), int(high, 16), name.strip()))
    return found


class Field(NamedTuple):
    """One field of an event's record, as C declares it."""

    name: str
    type: str
    offset: int
    size: int
    is_signed: bool


def fields(category: str, name: str) -> list[Field]:
    """Return what a tracepoint's event records of its own; raise ``TargetError`` where that is not told."""
    try:
        with open(f"{root()}/events/{category}/{name}/format") as file:
            text = file.read()
    except OSError as error:
        raise TargetError(f"the format of {category}:{name} cannot be read: {error.strerror}") from None
    found = [
        Field(*_declared(each[1]), int(each[2]), int(each[3]), each[4] == "1") for each in re.finditer(_FIELD, text)
    ]
    return [each for each in found if not each.name.startswith("common_") and each.name != "__syscall_nr"]


def _declared(text: str) -> tuple[str, str]:
    """Return name and type of a declaration: ``char comm[16]`` is ``comm``, of type ``char[16]``."""
    found = re.fullmatch(_DECLARATION, text)
    return (found[2], (found[1].rstrip() + found[3])) if found else (text, "")


class Traceable:
    """Tells which functions ftrace can trace: by address, or by name where it tells no addresses (before Linux 6.5)."""

    @cached_property
    def _addresses(self) -> Sequence[int] | None:
        """The addresses in order, kept as long as the kernel has the same modules: it takes long to write them out."""
        try:
            state = symbols.state_of_modules() if root() in _PLACES else b""
            known = kept_content.load(_KIND, state) if state else None
            if known is not None:
                return known.cast("Q")
            with open(f"{root()}/available_filter_functions_addrs", "rb", buffering=0) as file:
                found = array("Q", leading_addresses(file.readall()).tobytes())
        except (OSError, ValueError, TargetError):
            return None
        if state:
            kept_content.store(_KIND, state, found.tobytes())
        return found

    @cached_property
    def _names(self) -> frozenset[str] | None:
        try:
            with open(f"{root()}/available_filter_functions") as file:
                return frozenset(line.split()[0] for line in file if line.strip())
        except (OSError, TargetError):
            return None

    @property
    def tells_addresses(self) -> bool:
        """Whether it is known exactly."""
        return self._addresses is not None

    def has(self, address: int, names: Iterable[str]) -> bool | None:
        """Return whether the function at an address, with these names, can be traced; None where that is not told."""
        known = self._addresses
        if known is not None:
            at = bisect_left(known, address)
            return any(each in {address, address + _ENDBR_BYTES} for each in known[at : at + 2])
        return None if self._names is None else any(name in self._names for name in names)


class Restrictions:
    """Where the kernel takes no probes of some kinds, by lists of its own, of which each is read once."""

    @cached_property
    def traceable(self) -> Traceable:
        """Which functions ftrace can trace."""
        return Traceable()

    @cached_property
    def _blacklist(self) -> list[tuple[int, int, str]]:
        return blacklist()

    @cached_property
    def _modules(self) -> Container[str]:
        return loaded_modules.loaded()

    def has_gone(self, module: str) -> bool:
        """Return whether a module that a function was in is not loaded any more."""
        return module != symbols.KERNEL and module not in self._modules

    def blacklisted(self, address: int, names: Iterable[str]) -> str:
        """Return the function at an address that kprobes may not touch, nothing if they may.

        The kernel takes a part that the compiler made of a function (``name.part.0``) for the function itself.
        ``names`` are those of the function at the address.
        """
        wholes = {whole for whole, dot, _ in (each.partition(".") for each in names) if dot}
        lows, ends = self._bounds
        at = bisect_right(lows, address)
        if not (at and address < ends[at - 1]) and wholes.isdisjoint(self._blacklisted_names):
            return ""
        return next((name for low, high, name in self._blacklist if low <= address < high or name in wholes), "")

    @cached_property
    def _bounds(self) -> tuple[list[int], list[int]]:
        """Where the ranges begin, in order, and where the last of those up to each one ends."""
        ordered = sorted(self._blacklist)
        return [low for low, _, _ in ordered], list(accumulate((high for _, high, _ in ordered), max))

    @cached_property
    def _blacklisted_names(self) -> frozenset[str]:
        return frozenset(name for _, _, name in self._blacklist)


def traceable(addresses: Sequence[int]) -> list[bool] | None:
    """Return of functions whether ftrace can trace them; None where it tells no addresses (before Linux 6.5).

    A function's call of ftrace may be preceded by an ``endbr64``.
    """
    known = Traceable()
    return [bool(known.has(address, ())) for address in addresses] if known.tells_addresses else None
