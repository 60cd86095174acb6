"""Documents: the members of JSON objects, each declared once, with how a value has it and with its schema."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

Schema = dict[str, Any]
WHOLE: Schema = {"type": "integer", "minimum": 0}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TIME: Schema = {"type": "number", "minimum": 0}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
TRUE: Schema = {"const": True}
_OF_TYPES: dict[Any, Schema] = {int: WHOLE, float: TIME, str: TEXT, bool: FLAG}


def maybe(kind: Schema) -> Schema:
    """Return the schema of what may be null."""
    return {**kind, "type": [kind["type"], "null"]}


def listed(kind: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": kind}


def one_of(*values: str | None) -> Schema:
    """Return the schema of a value out of few."""
    return {"enum": list(values)}


def named(kind: Schema) -> Schema:
    """Return the schema of an object with any names."""
    return {"type": "object", "additionalProperties": kind}


def ref(name: str) -> Schema:
    """Return a reference to one of the document's definitions."""
    return {"$ref": f"#/$defs/{name}"}


class Member(NamedTuple):
    """A member of objects, or several that are made together."""

    schemas: Mapping[str, Schema]
    of: Callable[[Any], Any]
    """Returns its value; of several an object with those that there are."""
    name: str = ""
    """None of several."""
    when: Callable[[Any], Any] | None = None
    """Whether a value has it; else all have."""
    is_optional: bool = False
    """Whether it is left out where it is 0, empty or None."""
    required: Sequence[str] = ()


def member(
    name: str, kind: Schema, text: str = "", of: Callable[[Any], Any] | None = None, *,
    when: Callable[[Any], Any] | None = None, optional: bool = False,
) -> Member:  # fmt: skip
    """Return a member.

    Args:
        name: what it is called.
        kind: its schema.
        text: its description.
        of: returns it; else it is the attribute of its name.
        when: whether a value has it; else all have.
        optional: it is left out where it is 0, empty or None.
    """
    required = () if optional or when is not None else (name,)
    schemas = {name: {**kind, "description": text} if text else kind}
    return Member(schemas, of or attrgetter(name), name, when, optional, required)


class Members:
    """The members of one kind of object, in their order."""

    def __init__(self, *members: Member, closed: bool = False) -> None:
        """``closed``: nothing else may be there."""
        self._members, self._closed = members, closed
        # there may be 10,000 values: one look at each member's attributes is enough
        self._steps = [(each.name, each.of, each.when, each.is_optional) for each in members]

    def of(self, value: Any) -> dict[str, Any]:  # noqa: ANN401 - of its own kind
        """Return the object of a value."""
        found: dict[str, Any] = {}
        for name, of, when, is_optional in self._steps:
            if when is not None and not when(value):
                continue
            own = of(value)
            if not name:
                found |= own
            elif own or not is_optional:
                found[name] = own
        return found

    @property
    def schema(self) -> Schema:
        """The schema of the objects."""
        found: Schema = {"type": "object", "properties": {}, "required": []}
        for each in self._members:
            found["properties"] |= each.schemas
            found["required"] += each.required
        return {**found, "additionalProperties": False} if self._closed else found


def schema_of(kind: Any) -> Schema:  # noqa: ANN401 - a type
    """Return the schema of what ``dataclasses.asdict`` makes of values of a type: no number is negative."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _OF_TYPES:
        return _OF_TYPES[kind]
    if origin is Literal:
        return one_of(*arguments)
    if origin in (tuple, list, Sequence):
        return listed(schema_of(arguments[0]))
    if NoneType in arguments:
        return maybe(schema_of(arguments[0]))
    assert is_dataclass(kind), kind
    hints, names = get_type_hints(kind), [each.name for each in fields(kind)]
    return {"type": "object", "properties": {name: schema_of(hints[name]) for name in names}, "required": names}
