"""Where the parameters and the result of a function are, by the conventions of System V and of Windows for x86-64."""

import keyword
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.types.annotations import AnyType, FloatType
from anyprobe.handlers.types.layouts import ArrayType, OpaqueType, StructType, alignment_of

INTEGER_REGISTERS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
WINDOWS_REGISTERS = ("rcx", "rdx", "r8", "r9")
WINDOWS_SIZES = frozenset({1, 2, 4, 8})
"""Bytes of what Windows' convention passes in a register; of all else it passes the address."""
VECTOR_REGISTERS = 8
INTEGER, SSE, SSEUP, X87, MEMORY, NOTHING = "INTEGER", "SSE", "SSEUP", "X87", "MEMORY", ""
_TAKEN = frozenset({"ctx", "retval", "latency_ns"})
_IN_REGISTERS = 16
"""Bytes that are passed in registers at most."""


class PassedOtherwise(UnsupportedTarget):
    """It is known that a function's parameters are not where the convention has them, so positions mean nothing."""


class PassedAsGo(UnsupportedTarget):
    """It is known that Go has compiled a function, and nothing else: positions are those of Go's convention."""


class Piece(NamedTuple):
    """A part of a value: in which register or place of the stack, from which bit of the value on, and how many bits."""

    place: str
    offset: int
    bits: int


Pieces = tuple[Piece, ...]


class Located(NamedTuple):
    """Where the parameters and the result of a function are that is not called as C's are."""

    language: str
    parameters: tuple[Pieces | None, ...]
    """``None``: it is not known where."""
    result: Pieces | None
    """``None``: in memory of the caller, at the address that the first register has at the entry."""


@dataclass(frozen=True, slots=True)
class Prototype:
    """What debug information says of a function; ``result`` is ``None`` where it returns nothing."""

    function: str
    parameters: tuple[tuple[str, AnyType], ...]
    result: AnyType | None
    windows: bool = False
    """Whether it has Windows' convention: ``__attribute__((ms_abi))``, what Wine and firmware are made of."""
    located: Located | None = None
    """Where everything is in functions of other languages than C and C++."""
    is_marker: bool = False
    """Whether it is a USDT marker, whose arguments are where its note says, and not where any convention has them."""

    @property
    def is_result_in_memory(self) -> bool:
        """Whether the result is in memory of the caller, and no register says at the return where."""
        return self.located is not None and self.result is not None and self.located.result is None

    @property
    def places(self) -> list[tuple[str, ...]]:
        """Where each parameter is."""
        if self.located is not None:
            return [tuple(piece.place for piece in each or ()) for each in self.located.parameters]
        if self.windows:
            by_address = isinstance(self.result, StructType) and bool(self.result.by_reference)
            return windows_places([kind for _, kind in self.parameters], hidden=by_address)
        hidden = self.result is not None and result_places(self.result) is None
        return places([kind for _, kind in self.parameters], hidden=hidden)


def parameter_name(name: str, at: int) -> str:
    """Return how handlers call a parameter, by its name and number: what else has the name gets a line after it."""
    if not name.isidentifier() or name == "_":
        return f"parameter{at}"
    is_taken = keyword.iskeyword(name) or name in _TAKEN or (name[:3] == "arg" and name[3:].isdigit())
    return f"{name}_" if is_taken else name


KnownPrototype = Callable[[], Prototype]
"""Returns what is known of the probed function; raises ``UnsupportedTarget`` with the reason if that is nothing."""


def classes(kind: AnyType) -> tuple[str, ...] | None:
    """Return the class of each eight bytes of a value, ``None`` if it is passed in memory."""
    if isinstance(kind, OpaqueType):
        if kind.classes is None:
            raise UnsupportedTarget(f"it is not known how {kind} is passed")
        return None if MEMORY in kind.classes else kind.classes
    if not isinstance(kind, StructType | ArrayType):
        return (SSE if isinstance(kind, FloatType) else INTEGER,)
    if kind.size > _IN_REGISTERS:
        return None
    found = [NOTHING] * -(-kind.size // 8)
    return tuple(found) if _classify(kind, 0, found) else None


def _classify(kind: AnyType, at: int, found: list[str]) -> bool:
    """Merge the classes of what begins at bit ``at``; return whether it may be passed in registers."""
    if isinstance(kind, StructType):
        for each in kind.fields:
            if each.bits:
                for index in range((at + each.offset) // 64, (at + each.offset + each.bits - 1) // 64 + 1):
                    _merge(found, index, INTEGER)
            elif (at + each.offset) % (8 * alignment_of(each.kind)) or not _classify(
                each.kind, at + each.offset, found
            ):
                return False
        return True
    if isinstance(kind, ArrayType):
        size = 8 * kind.element.size
        return all(_classify(kind.element, at + index * size, found) for index in range(kind.count))
    inner = classes(kind)
    if inner is None:
        return False
    for index, name in enumerate(inner):
        _merge(found, at // 64 + index, name)
    return True


def _merge(found: list[str], index: int, other: str) -> None:
    present = found[index]
    if other in {present, NOTHING}:
        return
    if present == NOTHING:
        found[index] = other
    elif INTEGER in {present, other}:
        found[index] = INTEGER
    else:
        found[index] = X87 if X87 in {present, other} else SSE


def places(kinds: Sequence[AnyType], *, hidden: bool = False) -> list[tuple[str, ...]]:
    """Return where each parameter is when a function is entered: a register or stack place for each eight bytes.

    ``hidden``: the function is given the address at which its result has to be.
    """
    found: list[tuple[str, ...]] = []
    registers, vectors, stack = list(INTEGER_REGISTERS[hidden:]), 0, 0
    for kind in kinds:
        if isinstance(kind, StructType) and kind.by_reference:
            wanted: tuple[str, ...] | None = (INTEGER,)
        else:
            wanted = classes(kind)
        whole, parts = (wanted or ()).count(INTEGER), (wanted or ()).count(SSE)
        fits = whole <= len(registers) and vectors + parts <= VECTOR_REGISTERS
        if wanted is None or X87 in wanted or not fits:
            size = 8 if isinstance(kind, StructType) and kind.by_reference else max(kind.size, 8)
            stack += -stack % max(alignment_of(kind), 8) if size > 8 else 0
            found.append(tuple(f"stack+{8 + stack + at}" for at in range(0, size, 8)))
            stack += size + -size % 8
            continue
        where = []
        for each in wanted:
            if each == INTEGER:
                where.append(registers.pop(0))
            elif each == SSE:
                where.append(f"xmm{vectors}")
                vectors += 1
            else:
                where.append("")
        found.append(tuple(where))
    return found


def windows_places(kinds: Sequence[AnyType], *, hidden: bool = False) -> list[tuple[str, ...]]:
    """Return the same by Windows' convention: one place for each parameter, of the four first in registers."""
    found: list[tuple[str, ...]] = []
    for slot, kind in enumerate(kinds, int(hidden)):
        if slot >= len(WINDOWS_REGISTERS):
            found.append((home(slot),))
        else:
            found.append((f"xmm{slot}" if isinstance(kind, FloatType) else WINDOWS_REGISTERS[slot],))
    return found


def home(slot: int) -> str:
    """Return the place on the stack that Windows' convention has for a parameter, also for one in a register."""
    return f"stack+{8 + 8 * slot}"


def result_places(kind: AnyType) -> tuple[str, ...] | None:
    """Return where a result is when a function returns, ``None`` if ``rax`` has its address."""
    if isinstance(kind, StructType) and kind.by_reference:
        return None
    wanted = classes(kind)
    if wanted is None:
        return None
    registers, vectors = ["rax", "rdx"], ["xmm0", "xmm1"]
    return tuple(
        registers.pop(0) if each == INTEGER else vectors.pop(0) if each == SSE else "st0" if each == X87 else ""
        for each in wanted
    )
