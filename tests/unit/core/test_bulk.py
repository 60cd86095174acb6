"""Values that are made by the thousand are those of a frozen dataclass."""

import dataclasses
import inspect

import pytest

from anyprobe.core.bulk import bulk_dataclass


@bulk_dataclass(frozen=True, slots=True)
class Value:
    first: int
    second: str = "two"
    third: tuple[int, ...] = dataclasses.field(default=(3,), compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    first: int
    second: str = "two"
    third: tuple[int, ...] = dataclasses.field(default=(3,), compare=False)


def test_they_are_made_as_others():
    for value in (Value(1), Value(first=1, third=(4,)), dataclasses.replace(Value(5), first=1)):
        assert (value.first, value.second) == (1, "two")
        assert value == Value(1)
        assert hash(value) == hash(Value(1))
    assert Value(1, "x", (9,)).third == (9,)
    assert Value(1) != Value(2)
    assert repr(Value(1)) == repr(Plain(1)).replace("Plain", "Value")
    assert str(inspect.signature(Value)) == str(inspect.signature(Plain))
    with pytest.raises(TypeError):
        Value()


def test_they_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Value(1).first = 2
