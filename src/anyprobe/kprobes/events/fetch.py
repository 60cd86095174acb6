"""Fetch arguments: ``[NAME=]FETCH[:TYPE]``, from the text to a tree."""

import re
from dataclasses import dataclass
from typing import NoReturn

from anyprobe.kprobes.events.errors import DefinitionError, Problem

MAX_NAME, MAX_BODY, MAX_ARRAY, MAX_OPERATIONS = 32, 63, 64, 16
MAX_STACK = 2048
REGISTERS = (
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "orig_ax", "ip",
    "cs", "flags", "sp", "ss",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE = re.compile(r"[suxb]?(?P<bits>8|16|32|64)")
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|[0-9]+)")
_BITFIELD = re.compile(r"b(?P<width>[0-9]+)@(?P<offset>[0-9]+)/(?P<container>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Register:
    """``%di``."""

    name: str


@dataclass(frozen=True, slots=True)
class Argument:
    """``$arg1``: a parameter of the function."""

    number: int


@dataclass(frozen=True, slots=True)
class ReturnValue:
    """``$retval``."""


@dataclass(frozen=True, slots=True)
class StackPointer:
    """``$stack``."""


@dataclass(frozen=True, slots=True)
class StackWord:
    """``$stack3``."""

    number: int


@dataclass(frozen=True, slots=True)
class Comm:
    """``$comm``: the name of the thread."""


@dataclass(frozen=True, slots=True)
class Immediate:
    r"""``\\123`` or ``\\"text"``."""

    value: int | str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a symbol."""

    name: str
    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class Dereference:
    """``+8(FETCH)``: the memory at an address."""

    offset: int
    inner: "Fetch"


Fetch = Register | Argument | ReturnValue | StackPointer | StackWord | Comm | Immediate | Symbol | Dereference


@dataclass(frozen=True, slots=True)
class ValueType:
    """How a value is read and shown."""

    name: str
    """As it was written, without brackets."""
    bits: int = 64
    count: int = 0
    """Elements of an array; 0: none."""
    width: int = 0
    """Bits of a bit-field."""
    shift: int = 0

    @property
    def is_text(self) -> bool:
        """Whether it is a text."""
        return self.name in {"string", "ustring"}


@dataclass(frozen=True, slots=True)
class FetchArgument:
    """One argument of an event."""

    name: str
    fetch: Fetch
    type: ValueType
    text: str


class FetchParser:
    """Reads the arguments of one line."""

    def __init__(self, line: str, *, returns: bool) -> None:
        """Read for a probe of returns, or of an instruction."""
        self._line, self._returns = line, returns

    def argument(self, text: str, position: int, number: int, used: set[str]) -> FetchArgument:
        """Read one argument."""
        name, equals, body = text.partition("=")
        if not equals:
            name, body = f"arg{number}", text
        elif len(name) > MAX_NAME:
            self._fail(position, Problem.ARG_NAME_TOO_LONG)
        elif not name:
            self._fail(position, Problem.NO_ARG_NAME)
        if not _NAME.fullmatch(name):
            self._fail(position, Problem.BAD_ARG_NAME)
        if name in used:
            self._fail(position, Problem.USED_ARG_NAME)
        begin = position + len(text) - len(body)
        if len(body) > MAX_BODY:
            self._fail(begin, Problem.ARG_TOO_LONG)
        if not body:
            self._fail(begin, Problem.NO_ARG_BODY)
        at = self._type_at(body)
        fetch_text = body if at < 0 else body[:at]
        type_at = begin + at + 1 if at >= 0 else begin
        kind = self._type(None if at < 0 else body[at + 1 :], type_at, fetch_text)
        fetch, _ = self._fetch(fetch_text, begin)
        self._check(fetch, kind, begin, type_at)
        return FetchArgument(name, fetch, kind, body)

    @staticmethod
    def _type_at(body: str) -> int:
        if body.startswith('\\"'):
            closed = body.find('"', 2)
            return -1 if closed < 0 else body.find(":", closed)
        return body.find(":")

    def _fail(self, position: int, problem: Problem) -> NoReturn:
        raise DefinitionError(self._line, position, problem)

    # -- types

    def _type(self, text: str | None, position: int, fetch: str) -> ValueType:
        is_text = fetch == "$comm" or fetch.startswith('\\"')
        if text is None:
            return ValueType("string" if is_text else "x64")
        name, bracket, rest = text.partition("[")
        count = self._count(rest, position + len(name) + 1) if bracket else 0
        if is_text:
            if name != "string" or count:
                self._fail(position, Problem.NEED_STRING_TYPE)
            return ValueType("string")
        if name in {"string", "ustring", "symbol", "symstr"}:
            return ValueType("symbol" if name == "symstr" else name, count=count)
        if name == "char":
            return ValueType("char", bits=8, count=count)
        if name.startswith("b") and "/" in name:
            return self._bitfield(name, position, count)
        found = _TYPE.fullmatch(name)
        if found is None or name[0] in "b0123456789":
            self._fail(position, Problem.BAD_TYPE)
        return ValueType(name, bits=int(found["bits"]), count=count)

    def _count(self, rest: str, position: int) -> int:
        number, bracket, more = rest.partition("]")
        if not bracket:
            self._fail(position + len(rest), Problem.ARRAY_NO_CLOSE)
        if more:
            self._fail(position + len(number) + 1, Problem.BAD_ARRAY_SUFFIX)
        if not number.isdigit() or int(number) == 0:
            self._fail(position, Problem.BAD_ARRAY_NUM)
        if int(number) > MAX_ARRAY:
            self._fail(position, Problem.ARRAY_TOO_BIG)
        return int(number)

    def _bitfield(self, name: str, position: int, count: int) -> ValueType:
        container = name.rpartition("/")[2]
        if container not in {"8", "16", "32", "64"}:
            self._fail(position, Problem.BAD_TYPE)
        found = _BITFIELD.fullmatch(name)
        if found is None or not 0 < int(found["width"]) <= int(container) - int(found["offset"]):
            self._fail(position, Problem.BAD_BITFIELD)
        return ValueType(name, int(container), count, int(found["width"]), int(found["offset"]))

    # -- what is fetched

    def _fetch(self, text: str, position: int) -> tuple[Fetch, int]:
        """Return the tree of a fetch, and how many operations it takes."""
        match text[:1]:
            case "$":
                return self._variable(text[1:], position), 1
            case "%" if text[1:] in REGISTERS:
                return Register(text[1:]), 1
            case "@":
                return Dereference(0, self._address(text[1:], position)), 2
            case "+" | "-":
                return self._dereference(text, position)
            case "\\":
                return self._immediate(text[1:], position), 1
        problem = Problem.BAD_REG_NAME if text.startswith("%") else Problem.BAD_FETCH_ARG
        raise DefinitionError(self._line, position, problem)

    def _variable(self, name: str, position: int) -> Fetch:
        if name == "retval":
            if not self._returns:
                self._fail(position, Problem.RETVAL_ON_PROBE)
            return ReturnValue()
        if name in {"stack", "comm"}:
            return StackPointer() if name == "stack" else Comm()
        found = re.fullmatch(r"(stack|arg)([0-9]+)", name)
        if found is None:
            self._fail(position, Problem.BAD_VAR)
        number = int(found[2])
        if found[1] == "stack":
            if number > MAX_STACK:
                self._fail(position, Problem.BAD_STACK_NUM)
            return StackWord(number)
        if not 1 <= number <= MAX_STACK:
            self._fail(position, Problem.BAD_ARG_NUM)
        return Argument(number)

    def _address(self, text: str, position: int) -> Fetch:
        if text[:1].isdigit():
            if not _NUMBER.fullmatch(text):
                self._fail(position, Problem.BAD_MEM_ADDR)
            return Immediate(int(text, 0) if text[:2].lower() == "0x" else int(text))
        if text.startswith("+"):
            self._fail(position, Problem.FILE_ON_KPROBE)
        found = re.fullmatch(r"(?P<name>[A-Za-z_.][\w.$@:]*)(?P<offset>[+-][0-9][0-9a-fA-Fx]*)?", text)
        if found is None or (found["offset"] and not _NUMBER.fullmatch(found["offset"].lstrip("+"))):
            self._fail(position, Problem.BAD_MEM_ADDR)
        return Symbol(found["name"], _signed(found["offset"] or "0"), position)

    def _dereference(self, text: str, position: int) -> tuple[Fetch, int]:
        sign, rest = text[0], text[1:].removeprefix("u")
        opened = rest.find("(")
        if opened < 0:
            self._fail(position, Problem.DEREF_NEED_BRACE)
        number = rest[:opened]
        if not _NUMBER.fullmatch(number) or number.startswith("-"):
            self._fail(position, Problem.BAD_DEREF_OFFS)
        begin = position + len(text) - len(rest) + opened + 1
        inside = rest[opened + 1 :]
        closed = inside.rfind(")")
        if closed < 0:
            self._fail(begin + len(inside), Problem.DEREF_OPEN_BRACE)
        if inside[closed + 1 :]:
            self._fail(begin + closed + 1, Problem.BAD_FETCH_ARG)
        inner, operations = self._fetch(inside[:closed], begin)
        if isinstance(inner, Comm) or (isinstance(inner, Immediate) and isinstance(inner.value, str)):
            self._fail(begin, Problem.COMM_CANT_DEREF)
        if operations + 1 >= MAX_OPERATIONS:
            self._fail(begin, Problem.TOO_MANY_OPS)
        return Dereference(_signed(sign + number), inner), operations + 1

    def _immediate(self, text: str, position: int) -> Fetch:
        if text.startswith('"'):
            if len(text) < 2 or not text.endswith('"'):
                self._fail(position + 1 + len(text), Problem.IMMSTR_NO_CLOSE)
            return Immediate(text[1:-1])
        if not _NUMBER.fullmatch(text):
            self._fail(position + 1, Problem.BAD_IMM)
        return Immediate(_signed(text))

    def _check(self, fetch: Fetch, kind: ValueType, begin: int, type_at: int) -> None:
        in_memory = isinstance(fetch, Dereference | Comm) or (
            isinstance(fetch, Immediate) and isinstance(fetch.value, str)
        )
        if kind.is_text and not in_memory:
            self._fail(type_at, Problem.BAD_STRING)
        if kind.count and not isinstance(fetch, Dereference):
            self._fail(begin, Problem.BAD_FETCH_ARG)


def _signed(text: str) -> int:
    number = text.lstrip("+-")
    value = int(number, 16) if number[:2].lower() == "0x" else int(number)
    return -value if text.startswith("-") else value
