"""Instructions that are to be spliced: which site of a probe each is of, and where functions end."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

from anyprobe.binary.flow.exits import ExitKind
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.plan.splices import Want, WantKind

_Member = TypeVar("_Member")


class Tag(NamedTuple):
    """Which site a want is of, and whether the function ends there in a jump to another one."""

    number: int
    tail: bool = False


def number_of(want: Want) -> int:
    """Return the number of the site that an instruction is wanted for."""
    assert isinstance(want.tag, Tag)
    return want.tag.number


def is_tail(want: Want) -> bool:
    """Return whether the function ends there in a jump to another one."""
    return isinstance(want.tag, Tag) and want.tag.tail


def exits_of(function: FunctionCode, number: int) -> Sequence[Want] | Refusal:
    """Return all instructions at which a function ends, or why they are not known."""
    exits = function.exits
    if exits.complete is not None:
        return exits.complete
    if not exits.found:
        return Refusal(Reason.NO_EXIT, function.start, "the function never returns")
    return [
        Want(
            each.address,
            WantKind.EXIT,
            each.conditional,
            tag=Tag(number, each.kind is ExitKind.TAIL),
            inside=each.inside,
        )
        for each in exits.found
    ]


def joined(members: Iterable[_Member], keys: Callable[[_Member], Collection[int]]) -> list[list[_Member]]:
    """Return groups of which no two have a key in common; each member has one at least."""
    groups: dict[int, list[_Member]] = {}
    """By key; keys of one group have the same list."""
    for member in members:
        mine: list[_Member] = []
        for own in {id(groups[key]): groups[key] for key in keys(member) if key in groups}.values():
            smaller, mine = sorted((own, mine), key=len)
            mine += smaller
            groups.update(dict.fromkeys((key for each in smaller for key in keys(each)), mine))
        mine.append(member)
        groups.update(dict.fromkeys(keys(member), mine))
    return [*{id(group): group for group in groups.values()}.values()]
