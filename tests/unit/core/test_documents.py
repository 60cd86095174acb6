"""Documents: an object and its schema come of one declaration."""

from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Literal

import jsonschema
import pytest

from anyprobe.core.documents import (
    FLAG,
    INTEGER,
    TEXT,
    WHOLE,
    Member,
    Members,
    listed,
    maybe,
    member,
    one_of,
    schema_of,
)

PARTS = Members(
    member("name", TEXT, "as it is called"),
    member("size", WHOLE, of=lambda each: len(each.name)),
    member("kind", maybe(TEXT), of=lambda each: each.kind or None),
    member("notes", listed(TEXT), optional=True),
    member("left", INTEGER, when=lambda each: each.is_over),
    Member(
        {"low": INTEGER, "high": INTEGER}, lambda each: {"low": 1} | ({"high": 2} if each.is_over else {}),
        required=("low",),
    ),
    closed=True,
)  # fmt: skip


def part(**fields):
    return SimpleNamespace(**({"name": "abc", "kind": "", "notes": [], "is_over": False, "left": 0} | fields))


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (part(), {"name": "abc", "size": 3, "kind": None, "low": 1}),
        (
            part(kind="k", notes=["n"], is_over=True),
            {"name": "abc", "size": 3, "kind": "k", "notes": ["n"], "left": 0, "low": 1, "high": 2},
        ),
    ],
)
def test_members_are_there_as_they_are_declared(value, document):
    assert PARTS.of(value) == document
    assert [*PARTS.of(value)] == [*document]
    jsonschema.validate(document, PARTS.schema)


def test_the_schema_knows_what_is_always_there_and_nothing_else():
    assert PARTS.schema["required"] == ["name", "size", "kind", "low"]
    assert PARTS.schema["properties"]["name"] == {"type": "string", "description": "as it is called"}
    for wrong in ({"more": 1}, {"size": -1}, {"kind": 3}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(PARTS.of(part()) | wrong, PARTS.schema)


def test_a_dataclass_is_written_as_it_is():
    @dataclass
    class Inner:
        name: str
        verdict: Literal["ok", "no"] = "ok"

    @dataclass
    class Outer:
        number: int
        inner: tuple[Inner, ...] = ()
        known: bool | None = None

    Outer.__annotations__["inner"] = tuple[Inner, ...]
    schema = schema_of(Outer)
    assert schema["properties"]["inner"]["items"]["properties"]["verdict"] == one_of("ok", "no")
    assert schema["properties"]["known"] == maybe(FLAG)
    document = asdict(Outer(3, (Inner("a"),)))
    jsonschema.validate({**document, "inner": [*document["inner"]]}, schema)
