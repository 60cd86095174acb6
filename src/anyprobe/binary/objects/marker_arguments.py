"""Arguments of USDT markers: each a size and an operand in the assembler's syntax, as ``-4@8(%rbp,%rax,4)``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from anyprobe.isa.registers import NUMBERS, part_of

_START = re.compile(r"(?:^|(?<=\s))(?=-?\d+f?@)")
_ARGUMENT = re.compile(r"(?P<sign>-?)(?P<size>\d+)(?P<float>f?)@(?P<operand>.*)", re.DOTALL)
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|\d+")
_TERM = re.compile(r"\s*([+-])?\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_.$][\w.$]*)\s*")
_MEMORY = re.compile(r"(?P<displacement>[^()]*)\((?P<inside>[^()]*)\)|(?P<alone>[^()]+)")
_VECTOR = re.compile(r"[xyz]mm(\d+)")
_SCALES = ("1", "2", "4", "8")
_WORD, _LARGEST = 8, 1 << 20


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that stands in the note, or the address of something where ``symbol`` names it."""

    value: int
    symbol: str = ""


@dataclass(frozen=True, slots=True)
class InRegister:
    """A value in a general purpose register, from bit ``shift`` on (8: ``%ah`` and its like), or in an ``xmm``."""

    name: str
    """As it is called in 64 bits: ``rax`` of ``%eax``."""
    shift: int = 0

    @property
    def is_vector(self) -> bool:
        """Whether it is a vector register."""
        return self.name not in NUMBERS


@dataclass(frozen=True, slots=True)
class InMemory:
    """A value in memory: at base + index * scale + displacement, each of which may be missing, or at a symbol."""

    base: str = ""
    index: str = ""
    scale: int = 1
    displacement: int = 0
    symbol: str = ""
    """What the address counts from, where that has a name: ``counter+8(%rip)``."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What addresses in memory lead to, from a register on: only descriptions of markers have it, notes do not."""

    base: str
    offsets: tuple[int, ...]
    """The first is added to the register; each further one to the address that is read there."""
    is_read: bool
    """Whether the value is what is in memory there, and not the address itself."""


Operand = Constant | InRegister | InMemory | Followed


@dataclass(frozen=True, slots=True)
class MarkerArgument:
    """One argument of a marker; where ``problem`` says what is not understood, there is no operand."""

    text: str
    size: int
    """In bytes; of a struct passed by value any number."""
    signed: bool
    is_float: bool
    operand: Operand | None
    problem: str = ""
    name: str = ""
    """What a description calls it; notes have no names."""
    is_text: bool = False
    """Whether it is known to be the address of a text."""

    @property
    def is_by_address(self) -> bool:
        """Whether what is known of the value is its address: it is larger than a register."""
        return self.size > _WORD and isinstance(self.operand, InMemory)

    def __str__(self) -> str:
        """Return the argument as it stands in the note."""
        return self.text


def parse_arguments(text: str) -> tuple[MarkerArgument, ...]:
    """Return the arguments of a marker's note, one for each that stands there, whatever is understood of it."""
    return tuple(_argument(part) for part in _parts(text))


def _parts(text: str) -> Sequence[str]:
    """Cut at the beginning of each ``SIZE@``: an operand may have blanks; without any, cut at blanks."""
    text = text.strip()
    starts = [found.start() for found in _START.finditer(text)]
    if not starts or starts[0]:
        return text.split()
    return [text[start:end].strip() for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _argument(text: str) -> MarkerArgument:
    found = _ARGUMENT.fullmatch(text)
    if found is None:
        return MarkerArgument(text, 0, signed=False, is_float=False, operand=None, problem="its size is missing")
    size, signed, is_float = int(found["size"]), bool(found["sign"]), bool(found["float"])
    operand = _operand(found["operand"].strip())
    problem = operand if isinstance(operand, str) else _misfit(size, operand, is_float=is_float)
    known = None if problem or isinstance(operand, str) else operand
    return MarkerArgument(text, size, signed, is_float, known, problem)


def _misfit(size: int, operand: Operand, *, is_float: bool) -> str:
    """Return why a value of some size cannot be where the operand says, or nothing."""
    if not 0 < size <= _LARGEST:
        return f"nothing has a size of {size} bytes"
    if isinstance(operand, InMemory):
        return ""
    if is_float and size not in (4, 8):  # the bits of others are in any register, or stand there as a number
        return f"a floating-point number of {size} bytes is not in a register like that"
    if isinstance(operand, InRegister) and size > _WORD - operand.shift // 8:
        return f"{size} bytes do not fit the register"
    return ""


def _operand(text: str) -> Operand | str:
    """Return what an operand means, or why that is not known."""
    if text.startswith("$"):
        return _sum_of(text[1:], Constant)
    if text.startswith("%"):
        if ":" in text:
            return f"memory in the segment {text.partition(':')[0]} cannot be read"
        return _register(text) or f"{text} is no register that can be read"
    return _in_memory(text)


def _sum_of(text: str, kind: type[Constant] | type[InMemory]) -> Operand | str:
    """Return the meaning of numbers and at most one symbol, added and subtracted."""
    value, symbol, at = 0, "", 0
    while at < len(text) or not text.strip():
        term = _TERM.match(text, at)
        if term is None or (at and not term[1]):
            return f"{text.strip() or 'nothing'} is neither a number nor a name"
        negative, word = term[1] == "-", term[2]
        if _NUMBER.fullmatch(word):
            value += (-1 if negative else 1) * (int(word, 16) if word[:2] in ("0x", "0X") else int(word))
        elif symbol or negative:
            return "more than one name is added up"
        else:
            symbol = word
        at = term.end()
    return Constant(value, symbol) if kind is Constant else InMemory(displacement=value, symbol=symbol)


def _in_memory(text: str) -> Operand | str:
    found = _MEMORY.fullmatch(text)
    if found is None:
        return "this form of an operand is not known"
    displacement, inside = found["displacement"] or found["alone"] or "", found["inside"]
    start = _sum_of(displacement, InMemory) if displacement.strip() else InMemory()
    if not isinstance(start, InMemory):
        return str(start)
    if inside is None:
        return start if start.symbol else "a number alone is neither a constant nor a place in memory"
    base, index, scale, *more = (each.strip() for each in (inside + ",," * (inside.count(",") < 2)).split(","))
    if any(more) or (scale or "1") not in _SCALES or not (base or index):
        return "this form of an address is not known"
    if base == "%rip":
        is_named = bool(start.symbol) and not index
        return start if is_named else "an address relative to %rip needs the name of what is there"
    names = [_address_register(each) for each in (base, index) if each]
    if None in names or index == "%rsp":
        return f"{inside} is no address in 64 bits"
    first, second = (_address_register(each) or "" for each in (base, index))
    return InMemory(first, second, int(scale or 1), start.displacement, start.symbol)


def _address_register(text: str) -> str | None:
    name = text.removeprefix("%")
    return name if text.startswith("%") and name in NUMBERS else None


def _register(text: str) -> InRegister | None:
    name = text.removeprefix("%")
    vector = _VECTOR.fullmatch(name)
    if vector is not None:
        number = int(vector[1])
        return InRegister(f"xmm{number}") if number < 16 else None
    if name in ("ah", "bh", "ch", "dh"):
        return InRegister(f"r{name[0]}x", shift=8)
    whole = _WHOLE.get(name)
    return None if whole is None else InRegister(whole)


_WHOLE = {alias: name for name in NUMBERS for alias in (*(part_of(name, bits) for bits in (64, 32, 16, 8)), f"{name}b")}
"""Registers by the names of their parts that begin with the lowest bit; those from ``r8`` on have two for a byte."""
