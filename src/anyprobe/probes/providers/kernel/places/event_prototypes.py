"""Parameters of system calls and of tracepoints by name: what the kernel's events and types say of them."""

import re
from dataclasses import dataclass

from anyprobe.core.errors import TargetError, UnsupportedTarget
from anyprobe.handlers.bpf.layouts import RecordPlace, argument_place
from anyprobe.handlers.types.annotations import (
    AnyType,
    IntegerType,
    Layout,
    PointerType,
    boolean,
    i8,
    i16,
    i32,
    i64,
    ptr,
    u8,
    u16,
    u32,
    u64,
)
from anyprobe.handlers.types.btf_types import BtfTypes, types_of
from anyprobe.handlers.types.calling_convention import Prototype
from anyprobe.handlers.types.layouts import ArrayType
from anyprobe.probes.providers.kernel.places.sites import KernelNames, KernelSite
from anyprobe.probes.providers.kernel.places.user_pointers import of_programs
from anyprobe.target.kernel import tracefs
from anyprobe.target.kernel.btf import TypesUnavailable
from anyprobe.target.kernel.tracefs import Field

_KNOWN: dict[str, AnyType] = {
    "char": i8, "signed char": i8, "unsigned char": u8, "short": i16, "unsigned short": u16, "int": i32,
    "unsigned": u32, "unsigned int": u32, "long": i64, "unsigned long": u64, "long long": i64,
    "unsigned long long": u64, "size_t": u64, "bool": boolean, "u8": u8, "u16": u16, "u32": u32, "u64": u64,
    "__u64": u64, "pid_t": i32,
}  # fmt: skip
"""Types that are the same on every kernel for this machine."""
_CALLS = "syscalls"
"""The tracepoints of system calls."""
_TEXT_LIMIT = 64
"""Bytes that are read of a text whose length the record says."""
_ARRAY = r"(?P<dynamic>__data_loc )?(?P<element>.*?)(\[\w*\])+"
"""Where the record only says where in it the array is, its type begins so."""


@dataclass(frozen=True, slots=True)
class PlacedPrototype(Prototype):
    """A prototype whose parameters are where an event has them."""

    where: tuple[str, ...] = ()

    @property
    def places(self) -> list[tuple[str, ...]]:
        """Where each parameter is."""
        return [(each,) for each in self.where]


class EventPrototypes:
    """What the kernel says of its events."""

    def __init__(self, names: KernelNames) -> None:
        """Look types up by ``names``."""
        self._names = names

    @property
    def _types(self) -> BtfTypes | None:
        try:
            return types_of(self._names.types.kernel)
        except TypesUnavailable:
            return None

    def of_call(self, site: KernelSite) -> Prototype:
        """Return the parameters of a system call, as its saved registers have them."""
        assert site.tracepoint is not None
        name = site.tracepoint[1].removeprefix("sys_exit_").removeprefix("sys_enter_")
        fields = self._fields(site, f"sys_enter_{name}")
        kinds = of_programs([(each.name, self._kind(each)) for each in fields])
        return PlacedPrototype(site.name, kinds, i64, where=tuple(map(argument_place, range(len(kinds)))))

    def of_record(self, site: KernelSite) -> Prototype:
        """Return the fields of a tracepoint's record."""
        assert site.tracepoint is not None
        fields = self._fields(site, site.tracepoint[1])
        kinds = tuple((each.name, self._kind(each)) for each in fields)
        if site.tracepoint[0] == _CALLS:
            kinds = of_programs(kinds)
        return PlacedPrototype(site.name, kinds, None, where=tuple(str(_place(each)) for each in fields))

    def of_raw(self, site: KernelSite) -> Prototype:
        """Return what a tracepoint passes, by the type of the function that it calls for each who listens."""
        try:
            found = self._names.types.kernel.function(f"__traceiter_{site.raw}")
        except TypesUnavailable as error:
            raise UnsupportedTarget(str(error)) from None
        if found is None:
            raise UnsupportedTarget(f"BTF has no type of the tracepoint {site.raw}")
        whole = types_of(self._names.types.kernel).prototype(site.name, found[1])
        return Prototype(site.name, whole.parameters[1:], None)  # without the listener's own

    def _fields(self, site: KernelSite, event: str) -> list[Field]:
        assert site.tracepoint is not None
        try:
            return tracefs.fields(site.tracepoint[0], event)
        except TargetError as error:
            raise UnsupportedTarget(str(error)) from None

    def _kind(self, field: Field) -> AnyType:
        """Return the type of a field."""
        array = re.fullmatch(_ARRAY, field.type)
        if array is not None:
            element = self._named(array["element"]) or u8
            size = max(element.size, 1)
            return ArrayType(element, _TEXT_LIMIT // size if array["dynamic"] else field.size // size)
        found = self._named(field.type)
        if found is None or isinstance(found, Layout):
            return _number(field.size, signed=field.is_signed)
        return found

    def _named(self, text: str) -> AnyType | None:
        """Return a type as C writes it, None where nothing is known of it."""
        words = [each for each in text.replace("*", " * ").split() if each not in {"const", "volatile", "__user"}]
        plain = " ".join(words)
        if plain.endswith("*"):
            target = self._named(plain[:-1].strip())
            return ptr if target is None else PointerType(target)
        if plain in _KNOWN:
            return _KNOWN[plain]
        types = self._types
        if types is None or plain in {"void", ""}:
            return None
        try:
            return types.named(plain)
        except UnsupportedTarget:
            return None


def _number(size: int, *, signed: bool) -> AnyType:
    return IntegerType(8 * size, signed=signed) if size in {1, 2, 4, 8} else ArrayType(u8, size)


def _place(field: Field) -> RecordPlace:
    array = re.fullmatch(_ARRAY, field.type)
    if array is not None or field.size not in {1, 2, 4, 8}:
        return RecordPlace(field.offset, dynamic=array is not None and bool(array["dynamic"]))
    return RecordPlace(field.offset, field.size, field.is_signed)
