"""What handlers at one place of a USDT marker know: its arguments, where they are, and their types."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Self

from anyprobe.binary.objects.marker_arguments import MarkerArgument
from anyprobe.handlers.types.annotations import FloatType, IntegerType, Type, f64, i64, ptr, u64
from anyprobe.handlers.types.calling_convention import Located, Prototype

_WHOLE_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class MarkerAt:
    """A marker at a place; addresses are those of the process, symbols are resolved."""

    name: str
    arguments: tuple[MarkerArgument, ...]
    kinds: tuple[Type | None, ...]
    """The types that arguments have where a handler says none, of those too that other places alone have; ``None`` for
    what cannot be read anywhere."""

    @classmethod
    def of(cls, name: str, arguments: Sequence[MarkerArgument], kinds: Sequence[Type | None]) -> Self:
        """Return a marker whose arguments have the types ``kinds``: other places may have more."""
        return cls(name, tuple(arguments), tuple(kinds))


def type_of(argument: MarkerArgument) -> Type | None:
    """Return the type that a note gives an argument, ``None`` where it is not understood.

    Whole numbers of odd sizes have the next type that holds them; what is larger than a register is its address.
    """
    if argument.operand is None:
        return None
    if argument.is_by_address:
        return ptr
    if argument.is_float:
        return FloatType(8 * argument.size)
    size = next(each for each in _WHOLE_SIZES if each >= min(argument.size, 8))
    return IntegerType(8 * size, argument.signed)


def prototype_of(places: Sequence[MarkerAt], *, has_floats: bool = True) -> Prototype:
    """Return the arguments that markers have at any of some places, named as described, or ``arg0`` and so on.

    Of what no place has where it can be read, it is not known where it is; so it is with floats, unless handlers
    compute with these (``has_floats``).
    """
    kinds = [common_type(set(column)) for column in zip_longest(*(each.kinds for each in places))]
    kinds = [None if isinstance(kind, FloatType) and not has_floats else kind for kind in kinds]
    parameters = tuple((_name_of(index, places), kind or u64) for index, kind in enumerate(kinds))
    located = Located("", tuple(None if kind is None else () for kind in kinds), None) if None in kinds else None
    names = {each.name for each in places}
    called = names.pop() if len(names) == 1 else "the marker"
    return Prototype(called, parameters, None, located=located, is_marker=True)


def _name_of(index: int, places: Sequence[MarkerAt]) -> str:
    """Return what an argument is called at all places that have it: as a description has it, or by its number."""
    names = {each.arguments[index].name for each in places if index < len(each.arguments)}
    return (names.pop() if len(names) == 1 else "") or f"arg{index}"


def common_types(places: Iterable[Iterable[MarkerArgument]]) -> tuple[Type | None, ...]:
    """Return a type for each argument that holds its values at all of some places."""
    return tuple(common_type(set(column)) for column in zip_longest(*(map(type_of, each) for each in places)))


def common_type(kinds: "set[Type | None]") -> Type | None:
    """Return a type that holds the values of all of some: the same argument at several places."""
    known = kinds - {None}
    if len(known) <= 1:
        return next(iter(known), None)
    if any(isinstance(kind, FloatType) for kind in known):
        return f64
    return i64 if any(isinstance(kind, IntegerType) and kind.signed for kind in known) else u64
