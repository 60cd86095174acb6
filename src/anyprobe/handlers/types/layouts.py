"""Structs, unions and arrays: what is where in them. ``Struct("point", x=i32, y=f64)`` is laid out as C does it."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

from anyprobe.core.errors import UsageError
from anyprobe.handlers.types.annotations import AnyType, Layout, Type


class Field(NamedTuple):
    """A member: its type and its place in bits; ``bits`` is the width of a bit-field, else 0."""

    name: str
    kind: AnyType
    offset: int
    bits: int = 0
    promoted: bool = False
    """Whether it stands for the members of another member, as of a struct that is embedded in Go."""


class Extent(NamedTuple):
    """How a struct says where values in a row are, and how many: a string, a slice, a vector."""

    pointer: Field
    """The member that is their address, a pointer to their type, counted from the struct's beginning."""
    length: Field
    """The one that is how many there are."""
    is_text: bool
    """Whether they are shown as text."""


class Variants(NamedTuple):
    """The members of which a value has one, and the number in it that says which: an enum of Rust."""

    discriminant: Field
    alternatives: dict[str, tuple[int | None, Field]]
    """The number and the member of each by its name; ``None``: any number that no other one has."""


class StructType(Layout):
    """A struct or a union; two are the same only if they are one object."""

    def __init__(
        self,
        name: str,
        size: int,
        fields: Callable[[], tuple[Field, ...]] | tuple[Field, ...],
        *,
        alignment: int = 0,
        by_reference: bool | None = False,
        extent: Callable[["StructType"], Extent | None] | None = None,
        variants: Callable[[], Variants | None] | None = None,
        counter: str = "",
        dynamic: Callable[["StructType"], tuple[Field, ...]] | None = None,
    ) -> None:
        """Describe one; ``fields`` may be found out when they are first asked for.

        ``extent`` finds out what values it tells of, ``variants`` which members are alternatives.
        ``counter``: the member that says how many values there are, where a pointer to it is a map or channel of Go.
        ``dynamic`` finds out which members lead to the type of the value that an interface of Go has.
        ``by_reference``: functions are given its address, as C++ does with what has a destructor; ``None``: not known.
        """
        self.name, self.size, self.by_reference, self.counter = name, size, by_reference, counter
        self._fields, self._alignment, self._extent, self._variants = fields, alignment, extent, variants
        self._dynamic = dynamic

    @cached_property
    def extent(self) -> Extent | None:
        """Where the values are that it tells of."""
        return None if self._extent is None else self._extent(self)

    @cached_property
    def dynamic_type(self) -> tuple[Field, ...]:
        """The members that lead to the type of an interface's value: the first, or one in what that points at."""
        return () if self._dynamic is None else self._dynamic(self)

    @cached_property
    def variants(self) -> Variants | None:
        """What its members are alternatives by, if they are."""
        return None if self._variants is None else self._variants()

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The members; those without a name are structs whose members count as this one's."""
        return self._fields() if callable(self._fields) else self._fields

    @cached_property
    def alignment(self) -> int:  # type: ignore[override] # worked out when it is first asked for
        """What its address is a multiple of."""
        return self._alignment or max((alignment_of(each.kind) for each in self.fields), default=1)

    def own_fields(self) -> Iterator[Field]:
        """Yield the members that have a place of their own."""
        return (each for each in self.fields if not each.promoted)

    def members(self) -> Iterator[Field]:
        """Yield all members that have a name, those of members without a name included."""
        for each in self.fields:
            if each.name:
                yield each
            elif isinstance(each.kind, StructType):
                for inner in each.kind.members():
                    yield inner._replace(offset=each.offset + inner.offset)

    def member(self, name: str) -> Field | None:
        """Return a member by name."""
        return next((each for each in self.members() if each.name == name), None)


class ArrayType(Layout):
    """An array: values of one type in a row; ``count`` is 0 where it is not known."""

    def __init__(self, element: AnyType, count: int) -> None:
        """Describe an array."""
        if not isinstance(element, Type | Layout) or count < 0:
            raise UsageError(f"no array: {count} times {element}; write Array(u8, 16)")
        self.element, self.count = element, count
        self.name, self.size, self.alignment = f"{element}[{count or ''}]", element.size * count, alignment_of(element)


class OpaqueType(Layout):
    """A type that handlers cannot compute with; ``classes``: how it is passed, ``None`` where that is not known."""

    def __init__(self, name: str, size: int, classes: tuple[str, ...] | None, *, alignment: int = 0) -> None:
        """Describe one."""
        self.name, self.size, self.classes, self.alignment = name, size, classes, alignment or size or 1


def alignment_of(kind: AnyType) -> int:
    """Return what addresses of values of a type are a multiple of."""
    return kind.alignment if isinstance(kind, Layout) else kind.size


def Struct(name: str = "struct", /, **members: object) -> StructType:  # noqa: N802 - it stands where a class would
    """Describe a struct: its members in their order, as ``Struct("point", x=i32, y=f64)``.

    Args:
        name: by which it is shown.
        members: name and type of each, with C's alignment.

    Returns:
        A type, for ``ptr[…]`` and as a member.

    Raises:
        UsageError: a member has no type of fixed width.
    """
    fields, end = [], 0
    for member, kind in _checked(name, members):
        end += -end % alignment_of(kind)
        fields.append(Field(member, kind, 8 * end))
        end += kind.size
    alignment = max((alignment_of(each.kind) for each in fields), default=1)
    return StructType(name, end + -end % alignment, tuple(fields), alignment=alignment)


def Union(name: str = "union", /, **members: object) -> StructType:  # noqa: N802 - the same
    """Describe a union, as ``Union("value", whole=i64, fraction=f64)``.

    Args:
        name: by which it is shown.
        members: name and type of each; all begin at 0.

    Returns:
        A type, for ``ptr[…]`` and as a member.

    Raises:
        UsageError: a member has no type of fixed width.
    """
    fields = tuple(Field(member, kind, 0) for member, kind in _checked(name, members))
    alignment = max((alignment_of(each.kind) for each in fields), default=1)
    size = max((each.kind.size for each in fields), default=0)
    return StructType(name, size + -size % alignment, fields, alignment=alignment)


def Array(element: AnyType, count: int) -> ArrayType:  # noqa: N802 - the same
    """Describe an array that is a member, as ``Struct("buffer", used=u32, content=Array(u8, 64))``.

    Args:
        element: the type of each element.
        count: how many there are.

    Returns:
        A type, for members of ``Struct`` and ``Union``.
    """
    return ArrayType(element, count)


def _checked(name: str, members: dict[str, object]) -> Iterator[tuple[str, AnyType]]:
    from anyprobe.handlers.types.annotations import boolean

    for member, given in members.items():
        kind = boolean if given is bool else given
        if not isinstance(kind, Type | Layout):
            raise UsageError(f"{name}.{member} is {kind!r}, which is no type of fixed width; write u64, i32, ptr, f64")
        yield member, kind
