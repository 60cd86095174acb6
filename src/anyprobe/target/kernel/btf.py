"""BTF: functions, their parameters and all types of the kernel and its modules.

The kernel's own is five megabytes with some hundred thousand records; one is decoded when it is asked for.
(Documentation/bpf/btf.rst)
"""

import errno
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Final

from anyprobe.core.errors import KernelRefused, TargetError
from anyprobe.target.kernel import bpf
from anyprobe.target.kernel.btf_records import HEAD_WORDS, FunctionNumbers, Records
from anyprobe.target.kernel.symbols import KERNEL
from anyprobe.target.kernel.types import (
    QUALIFIERS,
    Array,
    Enum,
    Float,
    Forward,
    Function,
    Int,
    Member,
    Other,
    Pointer,
    Prototype,
    Qualified,
    Struct,
    Tag,
    Type,
    Void,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

_MAGIC = 0xEB9F
_FIRST = _MAGIC.to_bytes(2, "little")
_HEADER = struct.Struct("<HBBIIIII")
_NEXT_ID, _OPEN = 23, 19
_FOLDER, _NOTES = "/sys/kernel/btf", "/sys/kernel/notes"
_POINTER_BYTES: Final = 8


class TypesUnavailable(TargetError):  # noqa: N818
    """The kernel tells no types, or they cannot be read."""


class Btf:
    """The types of the kernel, or those that a module adds; numbers count from 1 through both."""

    def __init__(
        self,
        data: bytes | Callable[[], bytes],
        base: "Btf | None" = None,
        name: str = KERNEL,
        build: bytes = b"",
        functions: FunctionNumbers | None = None,
    ) -> None:
        """Take the contents of a file of ``/sys/kernel/btf``, or what returns them where they are known to be whole.

        Args:
            data: the contents.
            base: the kernel's own types, for a module's.
            name: of the module.
            build: what no other kernel has: what is found out of the types is kept by it.
            functions: those that are kept.
        """
        self.name, self.base, self._build, self._kept = name, base, build, functions
        self._data = data
        if isinstance(data, bytes):
            _ = self._parts
        self.first: int = 1 if base is None else base.end
        self._first_text: int = 0 if base is None else base.end_of_texts

    @cached_property
    def _parts(self) -> tuple[bytes, bytes]:
        """The types and the texts."""
        data, name = self._data if isinstance(self._data, bytes) else self._data(), self.name
        if len(data) < _HEADER.size or struct.unpack_from("<H", data)[0] != _MAGIC:
            raise TypesUnavailable(f"the types of {name} are no BTF")
        _, version, _, head, at, length, text_at, text_length = _HEADER.unpack_from(data)
        if version != 1 or head + at + length > len(data) or head + text_at + text_length > len(data) or length % 4:
            raise TypesUnavailable(f"the types of {name} have a form that is not known (version {version}), or are cut")
        return data[head + at : head + at + length], data[head + text_at : head + text_at + text_length]

    @property
    def _texts(self) -> bytes:
        return self._parts[1]

    @cached_property
    def _records(self) -> Records:
        found = Records(self._parts[0], self._names, self._build)
        if not found.are_whole:
            raise TypesUnavailable(f"the last type of {self.name} is cut")
        return found

    @cached_property
    def _functions(self) -> FunctionNumbers:
        return self._kept or self._records.functions

    @property
    def end(self) -> int:
        """One more than the last type's number."""
        return self.first + len(self._records)

    @property
    def end_of_texts(self) -> int:
        """Where the texts of what is based on this begin."""
        return self._first_text + len(self._texts)

    def _name(self, offset: int) -> bytes:
        if offset < self._first_text:
            assert self.base is not None
            return self.base._name(offset)  # noqa: SLF001 - one table of texts in two parts
        start, texts = offset - self._first_text, self._texts
        return texts[start : texts.index(b"\0", start)]

    def _names(self, offsets: "NDArray[np.uint32]") -> list[bytes]:
        """Return the texts at many offsets."""
        texts, starts = self._texts, offsets.astype(np.int64) - self._first_text
        ends = np.flatnonzero(np.frombuffer(texts, np.uint8) == 0)
        ends = ends[np.minimum(np.searchsorted(ends, starts), len(ends) - 1)]
        bounds = zip(starts.tolist(), ends.tolist(), strict=True)
        return [texts[low:high] if low >= 0 else self._name(low + self._first_text) for low, high in bounds]

    def _text(self, offset: int) -> str:
        return self._name(offset).decode(errors="replace")

    def _offsets_of(self, name: str) -> list[int]:
        """Return where a text stands, also as the end of another one."""
        found, wanted = [], name.encode() + b"\0"
        at = self._texts.find(wanted)
        while at >= 0:
            found.append(at + self._first_text)
            at = self._texts.find(wanted, at + 1)
        return found + (self.base._offsets_of(name) if self.base is not None else [])  # noqa: SLF001 - as in _text

    def find(self, name: str, *tags: Tag) -> list[int]:
        """Return the numbers of the types of some kinds with a name, those of a module without the kernel's."""
        records = self._records
        found = {number for text in self._offsets_of(name) for number in records.with_text(text, tags)}
        return [number + self.first for number in sorted(found)]

    def names(self, *tags: Tag) -> Iterator[str]:
        """Yield the names of all types of some kinds."""
        for _, start in self._records.of(tags):
            yield self._text(self._records.words[start])

    def function(self, name: str) -> tuple[int, Prototype] | None:
        """Return the number and the prototype of a function, None if BTF has none of the name, or several."""
        number = self.number_of_function(name)
        prototype = None if number is None else self.prototype(number)
        return None if number is None or prototype is None else (number, prototype)

    def number_of_function(self, name: str) -> int | None:
        """Return the number of a function, None if BTF has none of the name, or several."""
        found = self._functions.of(name)
        return found[0] + self.first if len(found) == 1 else None

    def prototype(self, number: int) -> Prototype | None:
        """Return the prototype of a function by the function's number."""
        function = self.type(number)
        prototype = self.type(function.prototype) if isinstance(function, Function) else None
        return prototype if isinstance(prototype, Prototype) else None

    def passed_by_tracepoint(self, name: str) -> int | None:
        """Return how many parameters a tracepoint passes, by the type of its functions; None if there is none."""
        for number in self.find(f"btf_trace_{name}", Tag.TYPEDEF):
            pointer = self.bare(number)[1]
            found = self.bare(pointer.target)[1] if isinstance(pointer, Pointer) else None
            if isinstance(found, Prototype):
                return len(found.parameters) - 1  # the first is what the function was registered with
        return None

    @lru_cache(maxsize=1024)  # noqa: B019 - as of ``_type``
    def structure(self, name: str) -> Struct | None:
        """Return a structure or union by name; the first where several are called the same."""
        for number in self.find(name, Tag.STRUCT, Tag.UNION):
            found = self.type(number)
            if isinstance(found, Struct):
                return found
        return None if self.base is None else self.base.structure(name)

    def type(self, number: int) -> Type:
        """Return a type by its number."""
        if number < self.first and self.base is not None:
            return self.base.type(number)
        return self._type(number)

    @lru_cache(maxsize=4096)  # noqa: B019 - lives as long as the process: the kernel's types are read once
    def _type(self, number: int) -> Type:
        if number == 0:
            return Void()
        if not self.first <= number < self.end:
            raise TypesUnavailable(f"there is no type {number} in {self.name}")
        records = self._records
        start = records.start(number - self.first)
        text, information, last = records.words[start : start + HEAD_WORDS]
        tag, flag = Tag(information >> 24 & 31), bool(information >> 31)
        rest = records.rest(start)
        name = self._text(text)
        if tag in QUALIFIERS:
            return Qualified(name, tag, last)
        make = _MAKERS.get(tag)
        return make(self._text, name, last, rest, flag) if make is not None else Other(name, tag, last)

    def bare(self, number: int) -> tuple[int, Type]:
        """Return the number and the type without typedefs and qualifiers."""
        found = self.type(number)
        while isinstance(found, Qualified):
            number = found.target
            found = self.type(number)
        return number, found

    def size_of(self, number: int) -> int | None:
        """Return the bytes that a value of a type has, None if it has none or they are not known."""
        found = self.bare(number)[1]
        if isinstance(found, Pointer):
            return _POINTER_BYTES
        if isinstance(found, Array):
            each = self.size_of(found.element)
            return each if each is None else each * found.count
        return found.size if isinstance(found, Int | Float | Struct | Enum) else None

    def member(self, structure: Struct, name: str) -> Member | None:
        """Return a member by name, also one of a structure or union without a name inside."""
        for each in structure.members:
            if each.name == name:
                return each
            if each.name:
                continue
            inner = self.bare(each.type)[1]
            found = self.member(inner, name) if isinstance(inner, Struct) else None
            if found is not None:
                return Member(found.name, found.type, found.bit_offset + each.bit_offset, found.bits)
        return None

    def described(self, number: int) -> str:
        """Return a type as C writes it, for messages."""
        found = self.type(number)
        if isinstance(found, Pointer):
            inner = self.described(found.target)
            return inner + ("*" if inner.endswith("*") else " *")
        if isinstance(found, Array):
            return f"{self.described(found.element)}[{found.count}]"
        if isinstance(found, Qualified) and found.tag is not Tag.TYPEDEF:
            inner = self.described(found.target)
            return inner if found.tag is Tag.TYPE_TAG else f"{found.tag.name.lower()} {inner}"
        if isinstance(found, Struct | Forward):
            return f"{'union' if found.is_union else 'struct'} {found.name or '{...}'}"
        if isinstance(found, Enum):
            return f"enum {found.name or '{...}'}"
        return f"{self.described(found.result)} (*)()" if isinstance(found, Prototype) else found.name


Texts = Callable[[int], str]


def _int(_: Texts, name: str, size: int, rest: list[int], flag: bool) -> Type:
    del flag
    encoding = rest[0] >> 24 & 0xF
    return Int(name, size, bool(encoding & 1), is_char=bool(encoding & 2), is_bool=bool(encoding & 4))


def _struct(texts: Texts, name: str, size: int, rest: list[int], flag: bool) -> Struct:
    members = []
    for text, kind, place in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        offset, bits = (place & 0xFFFFFF, place >> 24) if flag else (place, 0)
        members.append(Member(texts(text), kind, offset, bits))
    return Struct(name, size, tuple(members))


def _union(texts: Texts, name: str, size: int, rest: list[int], flag: bool) -> Type:
    return Struct(name, size, _struct(texts, name, size, rest, flag).members, is_union=True)


def _enum(texts: Texts, name: str, size: int, rest: list[int], flag: bool) -> Type:
    values = zip(rest[::2], rest[1::2], strict=True)
    named = tuple((texts(text), value - (value >> 31 << 32 if flag else 0)) for text, value in values)
    return Enum(name, size, named, signed=flag)


def _enum64(texts: Texts, name: str, size: int, rest: list[int], flag: bool) -> Type:
    named = []
    for text, low, high in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        value = high << 32 | low
        named.append((texts(text), value - (value >> 63 << 64 if flag else 0)))
    return Enum(name, size, tuple(named), signed=flag)


def _prototype(texts: Texts, name: str, result: int, rest: list[int], flag: bool) -> Type:
    del flag
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    variadic = bool(pairs) and pairs[-1] == (0, 0)
    named = tuple((texts(text), kind) for text, kind in (pairs[:-1] if variadic else pairs))
    return Prototype(result, named, variadic, name)


_MAKERS: Mapping[Tag, Callable[[Texts, str, int, list[int], bool], Type]] = {
    Tag.INT: _int,
    Tag.PTR: lambda _, name, last, _rest, _flag: Pointer(last, name),
    Tag.ARRAY: lambda _, name, _last, rest, _flag: Array(rest[0], rest[2], name),
    Tag.STRUCT: _struct,
    Tag.UNION: _union,
    Tag.ENUM: _enum,
    Tag.ENUM64: _enum64,
    Tag.FWD: lambda _, name, _last, _rest, flag: Forward(name, flag),
    Tag.FUNC: lambda _, name, last, _rest, _flag: Function(name, last),
    Tag.FUNC_PROTO: _prototype,
    Tag.FLOAT: lambda _, name, last, _rest, _flag: Float(name, last),
}


class KernelTypes:
    """The types of the running kernel and its modules, each read when it is first asked for."""

    def __init__(self, folder: str = _FOLDER) -> None:
        """Read nothing yet."""
        self._folder = folder
        self._modules: dict[str, Btf | None] = {}

    @cached_property
    def kernel(self) -> Btf:
        """The kernel's own; raises ``TypesUnavailable`` where there are none."""
        build = _build() if self._folder == _FOLDER else b""
        functions = FunctionNumbers.kept(build) if self._begins_as_types() else None
        content = self._content(KERNEL) if functions is None else partial(self._content, KERNEL)
        return Btf(content, build=build, functions=functions)

    def _begins_as_types(self) -> bool:
        with suppress(OSError), open(f"{self._folder}/{KERNEL}", "rb", buffering=0) as file:
            return file.read(len(_FIRST)) == _FIRST
        return False

    def _content(self, name: str) -> bytes:
        try:
            with open(f"{self._folder}/{name}", "rb") as file:
                return file.read()
        except OSError as failure:
            why = "the kernel was built without CONFIG_DEBUG_INFO_BTF" if name == KERNEL else "it was built without"
            raise TypesUnavailable(f"{name} tells no types ({failure.strerror}); {why}") from None

    def module(self, name: str) -> Btf | None:
        """Return the types of a module, None where it has none; ``vmlinux`` is the kernel."""
        if name == KERNEL:
            return self.kernel
        if name not in self._modules:
            self._modules[name] = None
            with suppress(TypesUnavailable):
                self._modules[name] = Btf(self._content(name), self.kernel, name)
        return self._modules[name]

    def forget_modules(self) -> None:
        """Read the types of modules again when they are asked for: some have come or gone."""
        self._modules.clear()


def _build() -> bytes:
    """Return the notes of the running kernel, of which one is its build-id; empty where they cannot be read."""
    with suppress(OSError), open(_NOTES, "rb") as file:
        return file.read()
    return b""


@cache
def running() -> KernelTypes:
    """Return the types of the running kernel, which stay the same as long as it runs, and of its modules."""
    return KernelTypes()


def open_module(name: str) -> int:
    """Return a descriptor of a module's BTF, which programs for its functions are loaded with."""
    number = 0
    while True:
        following = bpf.next_number(_NEXT_ID, number)
        if following is None:
            raise TypesUnavailable(f"{name} tells no types")
        number = following
        descriptor = _opened(number)
        if descriptor is None:
            continue
        if bpf.name_of_types(descriptor) == name:
            return descriptor
        os.close(descriptor)


def name_by_number(number: int) -> str:
    """Return whose types an object of BTF has by its number: a module's name, or ``vmlinux``; empty: it has gone."""
    descriptor = _opened(number)
    if descriptor is None:
        return ""
    try:
        return bpf.name_of_types(descriptor)
    finally:
        os.close(descriptor)


def _opened(number: int) -> int | None:
    try:
        return bpf.call(_OPEN, struct.pack("<I", number))
    except KernelRefused as refusal:
        if refusal.errno != errno.ENOENT:  # else it has gone meanwhile
            raise
        return None
