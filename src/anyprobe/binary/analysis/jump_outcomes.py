"""Where an indirect jump goes: the values that the analysis of jump tables returns."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Table:
    """The proven targets of a jump through a table."""

    address: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pointer:
    """The jump goes to an address that was stored somewhere: one of the known entries, or out of the function."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Nothing is known, and why."""

    why: str


class JumpTables(NamedTuple):
    """Where the indirect jumps of one function go, by their addresses; all others go where pointers say."""

    tables: dict[int, Table]
    unresolved: dict[int, Unresolved]


Outcome = Table | Pointer | Unresolved
