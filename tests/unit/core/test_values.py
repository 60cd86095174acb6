"""anyprobe's dataclasses beside the standard library's: the same classes, made by both."""

import abc
import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from dataclasses import KW_ONLY, FrozenInstanceError, InitVar, field
from typing import ClassVar

import pytest

from anyprobe.core import values


def shapes(dataclass):
    """Return classes of all kinds, made by one of the two."""

    @dataclass
    class Plain:
        """Text."""

        a: int
        b: "str" = "b"
        c: list = field(default_factory=list)
        shared: ClassVar[int] = 7

    @dataclass(frozen=True, slots=True)
    class Frozen:
        a: int
        b: tuple = ()
        c: dict = field(default_factory=dict, compare=False, repr=False)

        @property
        def doubled(self):
            return self.a * 2

    @dataclass(frozen=True, slots=True)
    class Longer(Frozen):
        d: int = 3
        e: int = field(default=4, kw_only=True)

    @dataclass(slots=True)
    class Slots:
        a: int
        b: int = field(default=5, init=False)
        c: list = field(default_factory=list, init=False)

        def __post_init__(self):
            self.a += 1

    @dataclass(eq=False, repr=False)
    class ByIdentity:
        a: int
        b: int = field(default=5, init=False)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        a: int = 0
        b: int

    @dataclass(frozen=True)
    class Own:  # noqa: PLW1641 - it is made
        a: int

        def __repr__(self):
            return "own"

        def __eq__(self, other):
            return True

    @dataclass(frozen=True)
    class OwnHash:
        a: int

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 8

    class Base(abc.ABC):
        @abc.abstractmethod
        def value(self): ...

    @dataclass
    class Derived(Base):
        a: int = 0

        def value(self):
            return self.a

    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    @dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        a: int
        b: int = 0

    @dataclass
    class Before:
        a: int
        _: KW_ONLY
        b: int = 1

    @dataclass
    class Initial:
        a: int
        start: InitVar[int] = 2

        def __post_init__(self, start):
            self.a += start

    found = (Plain, Frozen, Longer, Slots, ByIdentity, Named, Own, OwnHash, Derived, Empty, Ordered, Before, Initial)
    return {each.__name__: each for each in found}


ARGUMENTS = {
    "Plain": [((1,), {}), ((1, "x"), {}), ((1,), {"c": [3]})],
    "Frozen": [((1,), {}), ((2, (1,)), {}), ((1,), {"c": {1: 2}})],
    "Longer": [((1,), {}), ((1, (), {}, 9), {"e": 8})],
    "Slots": [((1,), {}), ((2,), {})],
    "ByIdentity": [((1,), {})],
    "Named": [((), {"b": 1}), ((), {"a": 1, "b": 1})],
    "Own": [((1,), {}), ((2,), {})],
    "OwnHash": [((1,), {})],
    "Derived": [((), {}), ((4,), {})],
    "Empty": [((), {})],
    "Ordered": [((1, 2), {}), ((1, 3), {}), ((2,), {})],
    "Before": [((1,), {}), ((1,), {"b": 2})],
    "Initial": [((1,), {}), ((1, 5), {})],
}
OURS, THEIRS = shapes(values.dataclass), shapes(dataclasses.dataclass)


def shown(each):
    try:
        return hash(each), repr(each)
    except TypeError as error:
        return str(error), repr(each)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_objects_are_the_same(name):
    ours, theirs = ([cls(*args, **named) for args, named in ARGUMENTS[name]] for cls in (OURS[name], THEIRS[name]))
    for mine, other in zip(ours, theirs, strict=True):
        if name != "ByIdentity":
            assert shown(mine) == shown(other)
            assert dataclasses.asdict(mine) == dataclasses.asdict(other)
        assert hasattr(mine, "__dict__") == hasattr(other, "__dict__")
        assert copy.copy(mine).a == mine.a if name != "Empty" else True
    assert [[x == y for x in ours] for y in ours] == [[x == y for x in theirs] for y in theirs]
    assert [x == y for x, y in zip(ours, theirs, strict=True)] == [y == x for x, y in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_classes_are_the_same(name):
    ours, theirs = OURS[name], THEIRS[name]
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert str(ours.__init__.__annotations__) == str(theirs.__init__.__annotations__)
    described = [
        [(each.name, each.type, each.init, each.kw_only, each.compare) for each in dataclasses.fields(cls)]
        for cls in (ours, theirs)
    ]
    assert described[0] == described[1]
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    assert getattr(ours, "__slots__", None) == getattr(theirs, "__slots__", None)


@pytest.mark.parametrize("name", ["Frozen", "Longer", "Named", "Own"])
def test_frozen_objects_stay_as_they_are(name):
    args, named = ARGUMENTS[name][0]
    for cls in (OURS[name], THEIRS[name]):
        made = cls(*args, **named)
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
            made.a = 2
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
            del made.a
    assert dataclasses.replace(OURS["Frozen"](1), a=5).doubled == 10


def test_order_is_that_of_the_fields():
    for cls in (OURS["Ordered"], THEIRS["Ordered"]):
        low, high = cls(1, 2), cls(1, 3)
        assert [low < high, low <= high, low > high, high >= low] == [True, True, False, True]
        with pytest.raises(TypeError, match="not supported between instances"):
            _ = low < 1


def test_wrong_arguments_are_told_in_the_same_words():
    messages = []
    for cls in (OURS["Frozen"], THEIRS["Frozen"]):
        with pytest.raises(TypeError) as error:
            cls()
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_wrong_classes_are_refused():
    for dataclass in (values.dataclass, dataclasses.dataclass):
        with pytest.raises(TypeError, match="non-default argument 'b' follows default argument"):
            dataclass(type("Bad", (), {"__annotations__": {"a": int, "b": int}, "a": 1}))
        with pytest.raises(ValueError, match="mutable default"):
            dataclass(type("Bad", (), {"__annotations__": {"a": list}, "a": []}))


@values.dataclass(frozen=True, slots=True)
class Pickled:
    """A class that pickle finds by its name."""

    a: int
    b: tuple[int, ...] = ()


def test_objects_are_pickled():
    made = Pickled(1, (2,))
    assert pickle.loads(pickle.dumps(made)) == made == copy.deepcopy(made)  # noqa: S301 - its own


def test_a_class_of_a_standard_one_and_the_other_way_round():
    @dataclasses.dataclass(frozen=True)
    class Standard:
        a: int

    @values.dataclass(frozen=True)
    class Ours(Standard):
        b: int = 2

    @dataclasses.dataclass(frozen=True)
    class Last(Ours):
        c: int = 3

    assert repr(Last(1)).endswith("Last(a=1, b=2, c=3)")
    assert Ours(1) == Ours(1, 2)


COUNTING = """
import dataclasses
made = []
before = dataclasses._process_class
dataclasses._process_class = lambda cls, *more: made.append(cls.__module__) or before(cls, *more)
import anyprobe.cli.commands.count, anyprobe.probes.providers.kernel.session, anyprobe.reports.table
import anyprobe.probes.session, anyprobe.handlers.compiler, anyprobe.probes.providers.kernel.handlers
print(*[each for each in made if each.startswith("anyprobe.") and each != "anyprobe.core.values"])
"""


def test_daily_commands_compile_no_classes_at_their_start():
    done = subprocess.run([sys.executable, "-c", COUNTING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
