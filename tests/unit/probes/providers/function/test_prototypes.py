"""Prototypes of several functions are one where code that reads their parameters serves all."""

import pytest

from anyprobe.handlers.types.annotations import i32, i64, ptr, u64
from anyprobe.handlers.types.calling_convention import Prototype
from anyprobe.handlers.types.layouts import Array, Field, Struct, StructType
from anyprobe.probes.providers.function.prototypes import _alike


def deep(number, last):
    """Return a type of its own, as another unit has it, in which a member of a member of a member may differ."""
    inner = Struct("inner", pad=Array(i32, number), last=last)
    return Struct("outer", next=ptr[Struct("middle", inner=inner)])


def endless():
    made = StructType("node", 16, lambda: (Field("next", ptr[made], 0), Field("value", i64, 64)))
    return made


def prototype(kind, *, result=i32, name="p", windows=False):
    return Prototype("f", ((name, ptr[kind]),), result, windows)


def test_equal_types_of_two_units_are_one():
    assert _alike(prototype(deep(1, i64)), prototype(deep(1, i64)))
    assert _alike(prototype(endless()), prototype(endless()))


@pytest.mark.parametrize(
    "other",
    [
        prototype(deep(2, i64)),
        prototype(deep(1, u64)),
        prototype(deep(1, i64), name="q"),
        prototype(deep(1, i64), result=None),
        prototype(deep(1, i64), result=i64),
        prototype(deep(1, i64), windows=True),
    ],
)
def test_what_differs_anywhere_that_a_handler_may_follow_is_another(other):
    assert not _alike(prototype(deep(1, i64)), other)
