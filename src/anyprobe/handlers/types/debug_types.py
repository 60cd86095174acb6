"""Types and prototypes of functions from debug information, as handlers know them."""

from collections.abc import Iterator
from functools import partial

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.dwarf.debug_info import DebugInfo, foreign_language, is_cpp
from anyprobe.binary.dwarf.locations import is_at_address, pieces_at, place_at, register_at
from anyprobe.binary.objects.leb128 import read_uleb
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.types.annotations import (
    AnyType,
    BoolType,
    IntegerType,
    PointerType,
    boolean,
    f32,
    f64,
    ptr,
)  # fmt: skip
from anyprobe.handlers.types.calling_convention import (
    INTEGER,
    MEMORY,
    SSE,
    SSEUP,
    WINDOWS_REGISTERS,
    WINDOWS_SIZES,
    X87,
    PassedOtherwise,
    Prototype,
    classes,
    home,
)
from anyprobe.handlers.types.layouts import ArrayType, Field, OpaqueType, StructType

_BOOLEAN, _COMPLEX, _FLOAT, _SIGNED, _SIGNED_CHAR, _UNSIGNED, _UNSIGNED_CHAR, _DECIMAL, _UTF = (
    2, 3, 4, 5, 6, 7, 8, 15, 16,
)  # fmt: skip
_WHOLE = {_SIGNED: True, _SIGNED_CHAR: True, _UNSIGNED: False, _UNSIGNED_CHAR: False, _UTF: False, _BOOLEAN: False}
_TRANSPARENT = frozenset([dw.TYPEDEF, dw.CONST, dw.VOLATILE, dw.RESTRICT, dw.ATOMIC])
_POINTERS = frozenset([dw.POINTER, dw.REFERENCE, dw.RVALUE_REFERENCE])
_COMPOSITES = {dw.STRUCTURE: "struct", dw.UNION: "union", dw.CLASS: "class"}
_BY_VALUE, _BY_REFERENCE, _OF_ITS_OWN, _WINDOWS = 5, 4, 3, 0xC1
"""Calling conventions: of a type, of a function that only its own unit calls, and of what is called as Windows does."""
_OTHERS = {0xC0: "vectorcall", 0xCB: "regcall", 0xCD: "preserve_none"}
_GO_INTERFACE = 20
_PLUS_CONSTANT = 0x23
_COUNT_LIMIT = 1 << 32
_CLONES = (".isra.", ".constprop.", ".part.", ".cold", ".lto_priv.isra", ".specialized.")
_CHAIN_LIMIT = 64
_NAMELESS = "{…}"


class Seen:
    """What is said of where the parameters of one function are when it is entered."""

    def __init__(self, entry: dw.Entry, address: int) -> None:
        """Look at a function's entry, which is entered at an address."""
        self._entry, self._address, self._base = entry, address, entry.unit.base
        found = [each for each in entry.children() if each.tag == dw.PARAMETER]
        self._said = {(each.reference(dw.AT_ABSTRACT_ORIGIN) or each).key: each for each in found}

    def register(self, parameter: dw.Entry) -> str:
        """Return the register of a parameter, if that is said."""
        said = self._said.get(parameter.key)
        return register_at(said, self._address, self._base) if said is not None else ""

    def place(self, parameter: dw.Entry) -> str:
        """Return the place of a parameter, if that is said: see ``place_at``."""
        said = self._said.get(parameter.key)
        return place_at(said, self._entry, self._address, self._base) if said is not None else ""

    def pieces(self, parameter: dw.Entry) -> list[tuple[str, int]]:
        """Return the parts of a parameter, if that is said: see ``pieces_at``."""
        said = self._said.get(parameter.key)
        return pieces_at(said, self._address, self._base) if said is not None else []

    def is_at_address(self, parameter: dw.Entry) -> bool | None:
        """Return whether a parameter is passed by its address, if that is said."""
        said = self._said.get(parameter.key)
        return is_at_address(said, self._address, self._base) if said is not None else None


def _misplaced(prototype: Prototype, found: list[dw.Entry], seen: Seen) -> str:
    """Return why parameters are not where the convention has them, as far as debug information says; else nothing."""
    try:
        places = prototype.places
    except UnsupportedTarget:
        return ""  # the error comes when parameters are asked for
    kinds = [kind for _, kind in prototype.parameters]
    hidden = len(found) and prototype.windows and places[0][0] == WINDOWS_REGISTERS[1]
    for at, (each, kind, where) in enumerate(zip(found, kinds, places, strict=True)):
        place = seen.place(each)
        expected = {where[0], home(at + hidden)} if prototype.windows else {where[0]}
        if place.startswith("*") and (isinstance(kind, PointerType | OpaqueType) or _goes_by_reference(kind)):
            place = place[1:]
        if place and where[0] and place not in expected:
            how = f"the address of {each.name}" if place.startswith("*") else each.name
            return (
                f"the compiler passes {how} of {prototype.function} in {place.lstrip('*')}, not as other functions do"
            )
    return ""


def _goes_by_reference(kind: AnyType) -> bool:
    return isinstance(kind, StructType) and kind.by_reference is not False


class DebugTypes:
    """The types of one object; each is made once, so that equal types are one."""

    def __init__(self, info: DebugInfo) -> None:
        """Make types of what ``info`` says."""
        self._info = info
        self._made: dict[tuple[int, int], AnyType] = {}

    def prototype(self, address: int, name: str) -> Prototype:
        """Return the prototype of the function at a link-time address; ``UnsupportedTarget`` says what is missing."""
        try:
            return self._prototype(address, name)
        except RecursionError:
            raise self._info.dwarf.damaged() from None

    def _prototype(self, address: int, name: str) -> Prototype:
        clone = next((each for each in _CLONES if each in name), "")
        if clone:
            raise UnsupportedTarget(f"the compiler has made {name} of a function, with parameters of its own choice")
        entry = self._info.function(address)
        language = foreign_language(entry.unit)
        if language == "Go":
            from anyprobe.handlers.types.go_types import go_prototype

            return go_prototype(self, name, entry, Seen(entry, address))
        if language == "Rust":
            from anyprobe.handlers.types.rust_types import rust_prototype

            return rust_prototype(self, name, entry, Seen(entry, address))
        if language:
            raise UnsupportedTarget(f"{name} is written in {language}, which passes parameters in its own way")
        described = entry.reference(dw.AT_ABSTRACT_ORIGIN) or entry
        convention = entry.number(dw.AT_CALLING_CONVENTION) or described.number(dw.AT_CALLING_CONVENTION)
        if convention == _OF_ITS_OWN:
            raise PassedOtherwise(f"the compiler has given {name} a calling convention of its own")
        if convention in _OTHERS:
            raise PassedOtherwise(f"{name} has the calling convention {_OTHERS[convention]}")
        found = [each for each in described.children() if each.tag == dw.PARAMETER]
        seen = Seen(entry, address)
        if convention == _WINDOWS:
            return self._checked(self._windows(name, entry, found), found, seen)
        prototype = self._ordinary(name, entry, found, seen)
        if not _misplaced(prototype, found, seen):
            return prototype
        # GCC does not say which functions are called as Windows does, but where their parameters are
        other = self._windows(name, entry, found)
        return other if not _misplaced(other, found, seen) else self._checked(prototype, found, seen)

    def _checked(self, prototype: Prototype, found: list[dw.Entry], seen: "Seen") -> Prototype:
        if reason := _misplaced(prototype, found, seen):
            raise PassedOtherwise(reason)
        return prototype

    def _ordinary(self, name: str, entry: dw.Entry, found: list[dw.Entry], seen: "Seen") -> Prototype:
        """Return the prototype of a function that is called as all are on this system."""
        described = entry.reference(dw.AT_ABSTRACT_ORIGIN) or entry
        parameters = [(each.name or f"parameter{at}", self._passed(each, seen)) for at, each in enumerate(found)]
        if dw.AT_PROTOTYPED not in described.attributes and not is_cpp(entry.unit):
            # without a prototype, float is passed as double
            parameters = [(each, f64 if kind == f32 else kind) for each, kind in parameters]
        result = self.of(entry.type)
        if result is not None:
            result = self._given_back(result, seen.register(found[0]) if found else "")
        return Prototype(name, tuple(parameters), result)

    def _windows(self, name: str, entry: dw.Entry, found: list[dw.Entry]) -> Prototype:
        """Return the prototype of a function that is called as Windows does."""
        parameters = []
        for at, each in enumerate(found):
            kind = self.of(each.type)
            if kind is None:
                raise UnsupportedTarget(f"the debug information has no type of {each.name}")
            if isinstance(kind, StructType) and (kind.by_reference or kind.size not in WINDOWS_SIZES):
                kind = PointerType(kind)
            elif _goes_by_reference(kind):
                kind = OpaqueType(kind.name, kind.size, None)
            parameters.append((each.name or f"parameter{at}", kind))
        result = self.of(entry.type)
        if isinstance(result, StructType):
            result = _given_back_by_windows(result)
        elif isinstance(result, OpaqueType):
            result = OpaqueType(result.name, result.size, None)
        return Prototype(name, tuple(parameters), result, windows=True)

    def _passed(self, parameter: dw.Entry, seen: "Seen") -> AnyType:
        """Return the type of a parameter as it is passed: of a class, that may be its address."""
        kind = self.of(parameter.type)
        if kind is None:
            raise UnsupportedTarget(f"the debug information has no type of {parameter.name}")
        if not isinstance(kind, StructType):
            return kind
        if kind.by_reference is None:
            indirect = seen.is_at_address(parameter)
            if indirect is None:
                return OpaqueType(kind.name, kind.size, None)
            return PointerType(kind) if indirect else kind
        if kind.size and not kind.fields and not is_cpp(parameter.unit):
            # GCC says so little of transparent unions, which are passed as their first member; glibc's are pointers
            return OpaqueType(kind.name, kind.size, (INTEGER,) if kind.size == 8 else None)
        return kind

    def _given_back(self, kind: AnyType, first: str) -> AnyType:
        """Return the type of a result; ``first`` is the first parameter's register, ``rsi`` after an address."""
        if not isinstance(kind, StructType) or kind.by_reference is not None:
            return kind
        if classes(kind) is None or first == "rsi":
            return OpaqueType(kind.name, kind.size, (MEMORY,))
        return kind if first == "rdi" else OpaqueType(kind.name, kind.size, None)

    def named(self, name: str) -> AnyType:
        """Return a type by its name; ``UnsupportedTarget`` if nothing is known of it."""
        for keyword in ("struct ", "union ", "class ", "enum "):
            name = name.removeprefix(keyword)
        entry = self._info.named(name)
        found = self.of(entry)
        if entry is None or found is None:
            raise UnsupportedTarget(f"the debug information has no type {name}")
        return found

    # -- types

    def of(self, entry: dw.Entry | None) -> AnyType | None:
        """Return a type; ``None`` stands for ``void``."""
        alias = ""
        for _ in range(_CHAIN_LIMIT):
            if entry is not None and dw.AT_SIGNATURE in entry.attributes:
                entry = entry.reference(dw.AT_SIGNATURE)  # it stands for a type that has a unit of its own
            elif entry is None or entry.tag not in _TRANSPARENT or entry.number(dw.AT_GO_KIND) == _GO_INTERFACE:
                break
            else:
                alias = entry.name if entry.tag == dw.TYPEDEF else alias
                entry = entry.type
        if entry is None or entry.tag == dw.UNSPECIFIED_TYPE:
            return None
        if entry.key not in self._made:
            self._made[entry.key] = self._make(entry)
        found = self._made[entry.key]
        if isinstance(found, StructType) and alias and found.name.endswith(_NAMELESS):
            found.name = alias
        return found

    def _make(self, entry: dw.Entry) -> AnyType:
        if entry.tag in _POINTERS:
            return self._pointer(entry)
        if entry.tag in _COMPOSITES:
            return self._struct(entry)
        if entry.tag == dw.BASE:
            return _base(entry)
        if entry.tag == dw.ENUMERATION:
            return self._enumeration(entry)
        if entry.tag == dw.ARRAY:
            return self._array(entry)
        if entry.tag in _TRANSPARENT:
            from anyprobe.handlers.types.go_types import go_interface

            return go_interface(self, entry)
        if entry.tag == dw.SUBROUTINE and dw.AT_GO_KIND in entry.attributes:
            return ptr  # a value of the type is the address of a closure
        if entry.tag == dw.SUBROUTINE:
            return OpaqueType("function", 1, None)
        return OpaqueType(entry.name or "type", entry.number(dw.AT_BYTE_SIZE) or 0, None)

    def _pointer(self, entry: dw.Entry) -> PointerType:
        target = self.of(entry.type)
        if target is None or (isinstance(target, OpaqueType) and target.name == "function"):
            return ptr
        return PointerType(target)

    def _struct(self, entry: dw.Entry) -> StructType:
        name = f"{_COMPOSITES[entry.tag]} {entry.name or _NAMELESS}"
        whole = self._info.definition(entry) if dw.AT_DECLARATION in entry.attributes else entry
        if whole is None:
            return StructType(name, 0, (), by_reference=None if is_cpp(entry.unit) else False)
        if whole.key in self._made:
            known = self._made[whole.key]
            assert isinstance(known, StructType)
            return known
        convention = whole.number(dw.AT_CALLING_CONVENTION)
        by_reference = {_BY_VALUE: False, _BY_REFERENCE: True}.get(
            convention or 0, None if is_cpp(whole.unit) else False
        )
        extent, variants, counter = None, None, ""
        if foreign_language(whole.unit) == "Rust":
            from anyprobe.handlers.types.rust_types import rust_extent, variants_of

            name, extent, variants = (
                whole.name or _NAMELESS,
                rust_extent(self, whole),
                partial(variants_of, self, whole),
            )
        elif dw.AT_GO_KIND in whole.attributes:
            from anyprobe.handlers.types.go_types import go_counter, go_extent

            name, extent, counter = whole.name, go_extent(whole), go_counter(whole.name)
        made = StructType(
            name,
            whole.number(dw.AT_BYTE_SIZE) or 0,
            lambda: tuple(self._fields(whole)),
            alignment=whole.number(dw.AT_ALIGNMENT) or 0,
            by_reference=by_reference,
            extent=extent,
            variants=variants,
            counter=counter,
        )
        self._made[whole.key] = made
        return made

    def _fields(self, entry: dw.Entry) -> Iterator[Field]:
        for each in entry.children():
            if each.tag == dw.VARIANT_PART:
                for variant in each.children():
                    yield from self._fields(variant) if variant.tag == dw.VARIANT else ()
            if each.tag == dw.INHERITANCE:
                at = member_location(each)
                kind = self.of(each.type)
                if kind is not None and at is not None:
                    yield Field("", kind, 8 * at)
            elif each.tag == dw.MEMBER and not {dw.AT_EXTERNAL, dw.AT_DECLARATION} & set(each.attributes):
                kind, at = self.of(each.type), member_location(each)
                if kind is None or at is None:
                    continue
                bits = each.number(dw.AT_BIT_SIZE) or 0
                yield Field(each.name, kind, _bit_offset(each, kind, at, bits) if bits else 8 * at, bits)
                if each.number(dw.AT_GO_EMBEDDED) and isinstance(kind, StructType):
                    yield Field("", kind, 8 * at, promoted=True)

    def _enumeration(self, entry: dw.Entry) -> AnyType:
        kind = self.of(entry.type)
        if isinstance(kind, IntegerType | BoolType):
            return kind
        size = entry.number(dw.AT_BYTE_SIZE) or 4
        values = [each.number(dw.AT_CONST_VALUE) or 0 for each in entry.children() if each.tag == dw.ENUMERATOR]
        return IntegerType(8 * size, signed=any(value < 0 for value in values))

    def _array(self, entry: dw.Entry) -> AnyType:
        element = self.of(entry.type)
        if dw.AT_GNU_VECTOR in entry.attributes:
            size = entry.number(dw.AT_BYTE_SIZE) or 16
            return OpaqueType(f"vector of {size} bytes", size, (SSE, *(SSEUP,) * (size // 8 - 1)))
        if element is None:
            return OpaqueType("array", 0, None)
        for bound in reversed([each for each in entry.children() if each.tag == dw.SUBRANGE]):
            count = bound.number(dw.AT_COUNT)
            upper = bound.number(dw.AT_UPPER_BOUND)
            count = count if count is not None else upper + 1 if upper is not None else 0
            element = ArrayType(element, count if 0 <= count < _COUNT_LIMIT else 0)
        return element


def _given_back_by_windows(kind: StructType) -> AnyType:
    """Return the type of a result: all but the smallest are left where the caller wants them, by their address."""
    if kind.by_reference or kind.size not in WINDOWS_SIZES:
        return StructType(kind.name, kind.size, lambda: kind.fields, alignment=kind.alignment, by_reference=True)
    if kind.by_reference is None or classes(kind) != (INTEGER,):
        return OpaqueType(kind.name, kind.size, (INTEGER,))
    return kind


def _base(entry: dw.Entry) -> AnyType:
    size, encoding, name = entry.number(dw.AT_BYTE_SIZE) or 0, entry.number(dw.AT_ENCODING), entry.name
    if encoding == _BOOLEAN and size == 1:
        return boolean
    if encoding in _WHOLE and size in {1, 2, 4, 8}:
        return IntegerType(8 * size, signed=_WHOLE[encoding])
    if encoding in _WHOLE and size == 16:
        return OpaqueType(name, size, (INTEGER, INTEGER))
    if encoding == _FLOAT and size in {4, 8}:
        return f32 if size == 4 else f64
    if encoding == _FLOAT and size == 16 and "long double" in name:
        return OpaqueType(name, size, (X87, X87))
    if encoding in {_FLOAT, _DECIMAL} and size in {2, 4, 8, 16}:
        return OpaqueType(name, size, (SSE, SSEUP) if size == 16 else (SSE,))
    if encoding == _COMPLEX and size in {8, 16, 32}:
        wide = (X87,) * 4 if "long double" in name else (MEMORY,)
        return OpaqueType(name, size, {8: (SSE,), 16: (SSE, SSE), 32: wide}[size], alignment=size // 2)
    return OpaqueType(name or "type", size, None)


def member_location(member: dw.Entry) -> int | None:
    """Return the byte at which a member begins; ``None`` where only the program can tell (virtual bases)."""
    form, value = member.attributes.get(dw.AT_MEMBER_LOCATION, (0, 0))
    del form
    if isinstance(value, int):
        return value
    if value and value[0] == _PLUS_CONSTANT:
        number, end = read_uleb(value, 1)
        return number if end == len(value) else None
    return None


def _bit_offset(member: dw.Entry, kind: AnyType, at: int, bits: int) -> int:
    """Return the bit at which a bit-field begins, counted from the lowest of the struct's first byte."""
    offset = member.number(dw.AT_DATA_BIT_OFFSET)
    if offset is not None:
        return offset
    from_above = member.number(dw.AT_BIT_OFFSET)
    if from_above is None:
        return 8 * at
    size = member.number(dw.AT_BYTE_SIZE) or kind.size
    return 8 * at + 8 * size - from_above - bits
