"""The kernel's own lists: its kprobes, and the events that tracefs has made of some."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from anyprobe.core.errors import TargetError
from anyprobe.target.kernel import tracefs

_LIST = "/sys/kernel/debug/kprobes/list"
_LINE = re.compile(
    r"(?P<address>[0-9a-f]+)\s+(?P<type>[krj])\s+(?P<symbol>\S+?)(?:\+0x(?P<offset>[0-9a-f]+))?"
    r"(?:\s+(?P<module>[^\s\[]+))?\s*(?P<flags>(?:\s*\[\w+\])*)\s*$"
)
_FLAG = re.compile(r"\[(\w+)\]")
_EVENT = re.compile(
    r"(?P<type>[pr])(?P<maxactive>\d*):(?P<group>[^/\s]+)/(?P<name>\S+)\s+(?P<place>\S+)(?:\s+(?P<arguments>.*))?$"
)


@dataclass(frozen=True, slots=True)
class ListedKprobe:
    """A line of ``kprobes/list``; ``type`` is k for a kprobe and r for a kretprobe."""

    address: int
    type: str
    symbol: str
    offset: int
    module: str
    flags: tuple[str, ...]
    """The marks that are set: GONE, DISABLED, OPTIMIZED, FTRACE."""


@dataclass(frozen=True, slots=True)
class DynamicEvent:
    """An event that is defined in tracefs (``kprobe_events``, ``uprobe_events``)."""

    definition: str
    type: str
    """p for an entry or instruction, r for a return."""
    name: str
    """With its group: ``kprobes/opens``."""
    place: str
    enabled: bool
    hits: int | None
    """None where the kernel does not tell."""
    misses: int | None


def kprobes(text: str | None = None) -> list[ListedKprobe]:
    """Return the kernel's list of kprobes; raise ``TargetError`` where it cannot be read."""
    if text is None:
        try:
            with open(_LIST) as file:
                text = file.read()
        except OSError as failure:
            remedy = "be root, or mount debugfs: mount -t debugfs debugfs /sys/kernel/debug"
            raise TargetError(f"the kernel's list of kprobes cannot be read ({failure.strerror}); {remedy}") from None
    return [found for line in text.splitlines() if (found := _listed(line)) is not None]


def _listed(line: str) -> ListedKprobe | None:
    found = _LINE.match(line)
    if found is None:
        return None
    symbol, offset = found["symbol"], int(found["offset"] or "0", 16)
    flags = tuple(_FLAG.findall(found["flags"]))
    return ListedKprobe(int(found["address"], 16), found["type"], symbol, offset, found["module"] or "", flags)


def events() -> list[DynamicEvent]:
    """Return the events that were defined in tracefs; nothing where it is not mounted."""
    try:
        root = tracefs.root()
    except TargetError:
        return []
    profiles = _profiles(_lines(f"{root}/kprobe_profile")) | _profiles(_lines(f"{root}/uprobe_profile"), path=True)
    found = []
    for line in (*_lines(f"{root}/kprobe_events"), *_lines(f"{root}/uprobe_events")):
        event = _EVENT.match(line)
        if event is None:
            continue
        name = f"{event['group']}/{event['name']}"
        enabled = "".join(_lines(f"{root}/events/{name}/enable")).strip() not in {"0", ""}
        hits, misses = profiles.get(event["name"], (None, None))
        found.append(DynamicEvent(line, event["type"], name, event["place"], enabled, hits, misses))
    return found


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def _profiles(lines: Iterable[str], *, path: bool = False) -> dict[str, tuple[int | None, int | None]]:
    """Return hits and misses by event; those of uprobes have the path before, and no misses."""
    found: dict[str, tuple[int | None, int | None]] = {}
    for line in lines:
        words = line.split()
        if path and len(words) >= 3:
            found[words[-2]] = (int(words[-1]), None)
        elif not path and len(words) == 3:
            found[words[0]] = (int(words[1]), int(words[2]))
    return found
