"""One line per hit, for people."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyprobe.core.printable import printable

_PLAIN = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True, slots=True)
class Hit:
    """What is known of one hit; what is None is not known there, or is missing."""

    seconds: float
    thread: str
    place: str
    arguments: Sequence[tuple[str, Any]] | None = None
    """Names (empty where there are none) and values."""
    has_result: bool = False
    result: Any = None
    printed: Mapping[str, Any] | None = None
    more: bool = False
    """Whether there are more arguments, which were not asked for."""
    name: str = ""
    """The thread's."""
    depth: int = 0
    """In how many other calls that have lines."""


def heading(zero: float) -> str:
    """Return what stands above the lines: from when times count, and what the columns are."""
    moment = time.strftime("%H:%M:%S", time.localtime(zero)) + f"{zero % 1:.6f}"[1:]
    return f"time 0 is {moment}, before the probes were placed\n{'seconds':>12} {'thread':>15} {'tid':>8} place"


def line(hit: Hit) -> str:
    """Return the line of a hit: time, thread, place, arguments, result, and what else was asked for."""
    text = f"{hit.seconds:12.6f} {printable(hit.name):>15} {hit.thread:>8} {'  ' * hit.depth}{printable(hit.place)}"
    if hit.arguments is not None:
        shown = [f"{printable(name)}={value(given)}" if name else value(given) for name, given in hit.arguments]
        text += f"({', '.join([*shown, *['…'] * hit.more])})"
    if hit.has_result:
        text += f" = {value(hit.result)}"
    for label, given in (hit.printed or {}).items():
        text += f"  {printable(label)}={value(given)}"
    return text


def value(given: Any) -> str:  # noqa: ANN401 - whatever a record has
    """Return a value: numbers of 32 bits as they are, wider ones, addresses as a rule, in hexadecimal digits."""
    if given is None:
        return "?"
    if isinstance(given, bool | float):
        return str(given)
    if isinstance(given, str):
        return f'"{printable(given)}"'
    return str(given) if given in _PLAIN else f"{given:#x}"
