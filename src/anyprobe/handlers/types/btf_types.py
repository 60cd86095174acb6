"""Types and prototypes of the kernel's functions from BTF, as handlers know them."""

from functools import cache

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.types.annotations import AnyType, IntegerType, PointerType, boolean, f32, f64, i8
from anyprobe.handlers.types.calling_convention import INTEGER, Prototype
from anyprobe.handlers.types.layouts import ArrayType, Field, OpaqueType, StructType
from anyprobe.target.kernel import types as known
from anyprobe.target.kernel.btf import Btf

_WORDS = frozenset({1, 2, 4, 8})
_USER = "user"
_TEXT = "char"
"""What texts are arrays of; newer kernels are built with an unsigned one."""


class BtfTypes:
    """The types of the kernel, or of one module; each structure is made once, so that equal types are one."""

    def __init__(self, types: Btf) -> None:
        """Make types of what BTF says."""
        self._types = types
        self._made: dict[int, AnyType] = {}

    def prototype(self, name: str, described: known.Prototype) -> Prototype:
        """Return the prototype of a function by its type."""
        parameters = []
        for at, (given, number) in enumerate(described.parameters):
            kind = self.of(number)
            if kind is None:
                raise UnsupportedTarget(f"BTF has no type of parameter {at + 1}")
            parameters.append((given or f"parameter{at + 1}", kind))
        return Prototype(name, tuple(parameters), self.of(described.result))

    def named(self, name: str) -> AnyType:
        """Return a type by its name; ``UnsupportedTarget`` if BTF has none."""
        for keyword in ("struct ", "union ", "enum "):
            name = name.removeprefix(keyword)
        tags = known.Tag.STRUCT, known.Tag.UNION, known.Tag.TYPEDEF, known.Tag.INT, known.Tag.ENUM, known.Tag.ENUM64
        for number in self._types.find(name, *tags):
            if (found := self.of(number)) is not None:
                return found
        if self._types.base is not None:
            return types_of(self._types.base).named(name)
        raise UnsupportedTarget(f"the kernel has no type {name}")

    def of(self, number: int) -> AnyType | None:
        """Return a type by its number; ``None`` stands for ``void``."""
        alias, found = "", self._types.type(number)
        while isinstance(found, known.Qualified):
            alias = found.name if found.tag is known.Tag.TYPEDEF else alias
            number = found.target
            found = self._types.type(number)
        if self._types.base is not None and number < self._types.first:
            return types_of(self._types.base).of(number)
        if isinstance(found, known.Void):
            return None
        if number not in self._made:
            self._made[number] = self._make(found, alias)
        return self._made[number]

    def _make(self, found: known.Type, alias: str) -> AnyType:
        match found:
            case known.Int(name, size, signed, is_bool):
                if is_bool and size == 1:
                    return boolean
                if name == _TEXT and size == 1:
                    return i8
                if size in _WORDS:
                    return IntegerType(8 * size, signed=signed)
                return OpaqueType(name, size, (INTEGER,) * (size // 8))
            case known.Enum(_, size, _, signed):
                return IntegerType(8 * size, signed=signed)
            case known.Float(name, size):
                return {4: f32, 8: f64}.get(size) or OpaqueType(name, size, None)
            case known.Pointer(target):
                return self._pointer(target)
            case known.Array(element, count):
                kind = self.of(element)
                return OpaqueType("array", 0, None) if kind is None else ArrayType(kind, count)
            case known.Struct():
                return self._struct(found, alias)
            case known.Forward(name, is_union):
                whole = self._types.structure(name)
                if whole is not None:
                    return self._struct(whole, alias)
                return StructType(f"{'union' if is_union else 'struct'} {name}", 0, ())
            case known.Prototype():
                return OpaqueType("function", 1, None)
            case _:
                return OpaqueType(found.name or "type", 0, None)

    def _pointer(self, target: int) -> PointerType:
        kind, user = self.of(target), self._is_of_program(target)
        if kind is None or (isinstance(kind, OpaqueType) and kind.name == "function"):
            return PointerType(user=user)
        return PointerType(kind, user)

    def _is_of_program(self, target: int) -> bool:
        """Return whether the source declares what a pointer leads to as ``__user``."""
        found = self._types.type(target)
        while isinstance(found, known.Qualified):
            if found.tag is known.Tag.TYPE_TAG and found.name == _USER:
                return True
            found = self._types.type(found.target)
        return False

    def _struct(self, found: known.Struct, alias: str) -> StructType:
        shown = f"{'union' if found.is_union else 'struct'} {found.name}" if found.name else alias
        return StructType(shown or "struct {…}", found.size, lambda: tuple(self._fields(found)))

    def _fields(self, found: known.Struct) -> list[Field]:
        fields = []
        for each in found.members:
            kind = self.of(each.type)
            if kind is not None:
                fields.append(Field(each.name, kind, each.bit_offset, each.bits))
        return fields


@cache
def types_of(types: Btf) -> BtfTypes:
    """Return the types of the kernel or a module, made once."""
    return BtfTypes(types)
