"""Handlers of events: the source that a definition's fetch arguments come to, and how their records are shown."""

import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from anyprobe.handlers.frontend.values import Alias
from anyprobe.handlers.intrinsics import cstr, emit_partial
from anyprobe.handlers.types.annotations import i32, ptr, u8, u16, u32, u64
from anyprobe.kprobes.events.definition import Definition
from anyprobe.kprobes.events.fetch import (
    Argument,
    Comm,
    Dereference,
    Fetch,
    FetchArgument,
    Immediate,
    Register,
    ReturnValue,
    StackPointer,
    StackWord,
    Symbol,
)

TEXT_BYTES, ALL_TEXT_BYTES = 64, 256
"""The most bytes of one text, and of all texts of an event."""
_HIT = type("hit", (), {name: Alias((name,)) for name in ("tid", "cpu", "comm")})
_NAMES = {
    "hit": _HIT, "emit_partial": emit_partial, "cstr": cstr, "ptr": ptr, "i32": i32, "u8": u8, "u16": u16, "u32": u32,
    "u64": u64,
}  # fmt: skip
_IN_REGISTERS = ("di", "si", "dx", "cx", "r8", "r9")
_ALL_ONES = (1 << 64) - 1
_numbers = count(1)


@dataclass
class Program:
    """The handlers of a definition: one for a kprobe, two for a kretprobe."""

    handler: Callable[..., Any]
    entry_handler: Callable[..., Any] | None
    fields: tuple[str, ...]
    """The fields of the record, in order: bits of what is missing."""


@dataclass
class _Writer:
    """Writes one handler."""

    regs: str
    addresses: Mapping[Symbol, int]
    stored: bool
    """Whether arguments of the function are what the entry has stored."""
    lines: list[str] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    _variables: int = 0

    def variable(self, text: str) -> str:
        """Keep a value that may be missing; return what is there, or 0."""
        self._variables += 1
        name = f"v{self._variables}"
        self.lines.append(f"{name} = {text}")
        return f"(u64(0) if {name} is None else u64({name}))"

    def value(self, fetch: Fetch, kind: str = "u64") -> str:
        """Return the expression of a fetch; it may be missing."""
        match fetch:
            case Register("orig_ax"):
                return f"u64({_ALL_ONES})"
            case Register(name):
                return f"u64({self.regs}.{name})"
            case Argument(number) if self.stored:
                return f"ri.data.arg{number}"
            case Argument(number) if number <= len(_IN_REGISTERS):
                return f"u64({self.regs}.{_IN_REGISTERS[number - 1]})"
            case Argument(number):
                return self._read(f"u64({self.regs}.sp)", 8 * (number - len(_IN_REGISTERS)), kind)
            case ReturnValue():
                return f"{self.regs}.ax"
            case StackPointer():
                return f"u64({self.regs}.sp)"
            case StackWord(number):
                return self._read(f"u64({self.regs}.sp)", 8 * number, kind)
            case Immediate(int() as number):
                return f"u64({number & _ALL_ONES})"
            case Symbol():
                return f"u64({self.addresses[fetch]})"
            case Dereference(offset, inner):
                return self._read(self.address(inner), offset, kind)
        return "u64(0)"

    def address(self, fetch: Fetch) -> str:
        """Return the expression of a fetch as an address: 0 where it is missing."""
        text = self.value(fetch)
        return text if text.startswith("u64(") else self.variable(text)

    @staticmethod
    def _read(address: str, offset: int, kind: str) -> str:
        moved = f"{address} {'-' if offset < 0 else '+'} {abs(offset)}" if offset else address
        return f"ptr[{kind}]({moved})[0]"

    def argument(self, index: int, argument: FetchArgument, text_bytes: int) -> None:
        """Add the fields of one argument."""
        kind, fetch = argument.type, argument.fetch
        if isinstance(fetch, Immediate) and isinstance(fetch.value, str):
            return
        if isinstance(fetch, Comm):
            self.given[f"a{index}"] = "hit.comm"
            return
        width = f"u{kind.bits}" if isinstance(fetch, Dereference) else "u64"
        for element in range(kind.count or 1):
            name = f"a{index}_{element}" if kind.count else f"a{index}"
            if kind.is_text:
                assert isinstance(fetch, Dereference)
                self.given[name] = (
                    f"cstr(ptr({self._text_address(fetch, element, array=kind.count > 0)}), {text_bytes})"
                )
            elif kind.count:
                assert isinstance(fetch, Dereference)
                moved = Dereference(fetch.offset + element * kind.bits // 8, fetch.inner)
                self.given[name] = self.value(moved, width)
            else:
                self.given[name] = self.value(fetch, width)

    def _text_address(self, fetch: Dereference, element: int, *, array: bool) -> str:
        """Return where a text is: an array has pointers to texts."""
        if array:
            return self.address(Dereference(fetch.offset + 8 * element, fetch.inner))
        base = self.address(fetch.inner)
        return f"{base} {'-' if fetch.offset < 0 else '+'} {abs(fetch.offset)}" if fetch.offset else base

    def function(self, name: str, parameters: str, record: str, *, placed: bool) -> str:
        """Return the source of the handler."""
        given = ", ".join(f"{label}={text}" for label, text in self.given.items())
        where = f"u64({self.regs}.ip)" if placed else "u64(0)"
        emitted = f"emit_partial({record!r}, tid=i32(hit.tid), cpu=i32(hit.cpu), ip={where}, {given})"
        return "\n    ".join([f"def {name}({parameters}):", *self.lines, emitted, "return 0"]) + "\n"


def program(
    definition: Definition, record: str, addresses: Mapping[Symbol, int], *, knows_caller: bool = True
) -> Program:
    """Return the handlers of a definition, whose records have a name."""
    returns = definition.kind == "r"
    writer = _Writer("regs", addresses, stored=returns)
    texts = sum(each.type.count or 1 for each in definition.arguments if each.type.is_text)
    size = min(TEXT_BYTES, ALL_TEXT_BYTES // max(texts, 1) & -8)
    for index, argument in enumerate(definition.arguments):
        writer.argument(index, argument, size)
    fields = ("tid", "cpu", "ip", *writer.given)
    numbers = sorted({number for each in definition.arguments for number in _arguments_of(each.fetch)})
    handler = _compiled(
        "event",
        writer.function("event", "ri, regs" if returns else "p, regs", record, placed=knows_caller or not returns),
    )
    entry = _compiled("entry", _entry(numbers)) if returns and numbers else None
    return Program(handler, entry, fields)


def _entry(numbers: list[int]) -> str:
    """Return the source of the handler that keeps arguments for the return."""
    writer = _Writer("regs", {}, stored=False)
    lines = [f"ri.data.arg{number} = {writer.address(Argument(number))}" for number in numbers]
    return "\n    ".join(["def entry(ri, regs):", *writer.lines, *lines, "return 0"]) + "\n"


def _arguments_of(fetch: Fetch) -> list[int]:
    match fetch:
        case Argument(number):
            return [number]
        case Dereference(_, inner):
            return _arguments_of(inner)
        case _:
            return []


def _compiled(name: str, source: str) -> Callable[..., Any]:
    """Return the function of some source, so that the compiler of handlers finds that."""
    file = f"<kprobe_events {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    content: dict[str, Any] = dict(_NAMES)
    exec(compile(source, file, "exec"), content)  # noqa: S102 - source that was written here
    function: Callable[..., Any] = content[name]
    return function


def shown(
    argument: FetchArgument, index: int, row: Mapping[str, Any], missing: set[str], name: Callable[[int], str]
) -> str:
    """Return ``name=value`` as the kernel prints it; ``name`` says which function an address is in."""
    kind = argument.type
    if isinstance(argument.fetch, Immediate) and isinstance(argument.fetch.value, str):
        return f'{argument.name}="{argument.fetch.value}"'
    labels = [f"a{index}_{at}" for at in range(kind.count)] if kind.count else [f"a{index}"]
    values = [_value(argument, row[label], name) if label not in missing else "(fault)" for label in labels]
    return f"{argument.name}={'{' + ','.join(values) + '}' if kind.count else values[0]}"


def _value(argument: FetchArgument, value: Any, name: Callable[[int], str]) -> str:  # noqa: ANN401 - a field
    kind = argument.type
    if kind.is_text:
        return f'"{value.decode(errors="replace") if isinstance(value, bytes) else value}"'
    number = int(value) & (1 << kind.bits) - 1
    if kind.width:
        return f"{number >> kind.shift & (1 << kind.width) - 1}"
    match kind.name[0]:
        case "s" if kind.name == "symbol":
            return name(number)
        case "s":
            return str(number - (1 << kind.bits) if number >> kind.bits - 1 else number)
        case "c":
            return f"'{chr(number)}'"
        case "x":
            return f"{number:#x}"
        case _:
            return str(number)
