"""tracefs and debugfs: the kernel's tracepoints, and which of its functions may be probed."""

import os
from collections.abc import Iterator, Sequence
from functools import cache

from anyprobe.core.errors import TargetError

_PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_ENDBR_BYTES = 4
_BLACKLIST = "/sys/kernel/debug/kprobes/blacklist"


@cache
def root() -> str:
    """Return where tracefs is mounted; raise ``TargetError`` where it is not or may not be read."""
    for place in _PLACES:
        if os.path.isdir(f"{place}/events"):
            return place
    raise TargetError("tracefs cannot be read; be root, or mount it: mount -t tracefs tracefs /sys/kernel/tracing")


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


def traceable(addresses: Sequence[int]) -> list[bool] | None:
    """Return of functions whether ftrace can trace them; None where it tells no addresses (before Linux 6.5).

    A function's call of ftrace may be preceded by an ``endbr64``.
    """
    try:
        with open(f"{root()}/available_filter_functions_addrs", "rb") as file:
            listed = {int(line.partition(b" ")[0], 16) for line in file}
    except (OSError, ValueError):
        return None
    return [address in listed or address + _ENDBR_BYTES in listed for address in addresses]
