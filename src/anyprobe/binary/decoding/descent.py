"""Which bytes of a function are instructions, by following control flow from where it is certainly entered.

Compilers fill functions with instructions and padding, so decoding from the first byte to the last is right for them.
Hand-written code keeps tables and strings between its instructions, which decode to something, too: where the two ways
of decoding disagree, or where nothing is known to lead, no byte may be written.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import Code, Decoder

from anyprobe.binary.decoding.body import ENDS, LOCK
from anyprobe.binary.objects.padding import is_padding
from anyprobe.isa.decode import DIRECT, FLOWS, JUMPS, Flow

if TYPE_CHECKING:
    from iced_x86 import Instruction

    from anyprobe.binary.flow.function import FunctionCode

_STOPS = frozenset({Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RET, Flow.TRAP, Flow.OTHER})
_GOING_ON = frozenset({Code.INT3, Code.INT_IMM8})


class Descent(NamedTuple):
    """What decoding by control flow found."""

    instructions: "list[Instruction]"
    """Ascending, no two of them overlapping."""
    doubt: tuple[int, str] | None
    """The first address at which it makes no sense, and why; ``None`` if all of it does."""


def descend(content: bytes, start: int, entries: Iterable[int], noreturn: frozenset[int]) -> Descent:
    """Decode what the code at ``start`` and at other entries leads to.

    An entry that is not certain (a word in the data that looks like an address) counts only where it agrees with what
    was found before.
    """
    found, doubt = _reach(content, start, start, noreturn, {})
    for entry in entries:
        if entry not in found and not _inside(found, entry):
            more, trouble = _reach(content, start, entry, noreturn, found)
            if trouble is None and _overlap(more) is None:
                found = more
    at = _overlap(found)
    if at is not None and doubt is None:
        doubt = at, f"the instruction at {at:#x} overlaps the one before"
    while at is not None:
        del found[at]
        at = _overlap(found)
    kept = [found[at] for at in sorted(found) if not (at - 1 in found and _is_lock(content, at - 1 - start))]
    return Descent(kept, doubt)


def _reach(
    content: bytes, start: int, entry: int, noreturn: frozenset[int], known: "dict[int, Instruction]"
) -> "tuple[dict[int, Instruction], tuple[int, str] | None]":
    """Return the instructions that an entry leads to, with the known ones, and what does not decode."""
    found, doubt, end = dict(known), None, start + len(content)
    todo = [entry]
    while todo:
        at = todo.pop()
        decoder = Decoder(64, content, ip=at)
        decoder.position = at - start
        while start <= at < end and at not in found:
            one = decoder.decode()
            if one.code == Code.INVALID:
                doubt = doubt or (at, f"the bytes at {at:#x} are no instruction that the decoder knows")
                break
            found[at] = one
            flow = FLOWS[one.code]
            if flow in JUMPS and start <= one.near_branch_target < end:
                todo.append(one.near_branch_target)
            if flow in _STOPS and one.code not in _GOING_ON:
                break
            if flow is Flow.CALL and one.near_branch_target in noreturn:
                break
            at = one.next_ip
        else:
            continue
    return found, doubt


def _is_lock(content: bytes, offset: int) -> bool:
    return content[offset] == LOCK


def _inside(found: "dict[int, Instruction]", address: int) -> bool:
    return any(at in found and found[at].next_ip > address for at in range(address - 14, address))


def _overlap(found: "dict[int, Instruction]") -> int | None:
    """Return the first instruction that begins within another, unless it is the other without its ``lock``."""
    end = before = 0
    for address in sorted(found):
        if address < end and not (
            address == before + 1 and found[before].has_lock_prefix and end == found[address].next_ip
        ):
            return address
        if address >= end:
            end, before = found[address].next_ip, address
    return None


def is_all_led_to(function: "FunctionCode", entries: set[int]) -> bool:
    """Return whether every instruction but padding is led to from ``entries``, by a jump, or from above.

    That is so of nearly all functions, and takes one look behind each end. Of the others, and of what calls pieces of
    itself, ``Reached`` knows more.
    """
    addresses, last_calls = function.addresses, function.last_calls.possible
    if not addresses or addresses[0] not in entries:
        return False
    sources, targets = [addresses[number] for number, _ in function.jumps], [target for _, target in function.jumps]
    first_to = dict(zip(reversed(targets), reversed(sources), strict=True))
    first_to |= dict.fromkeys(entries, -1)
    starts, is_all = [addresses[0]], True
    """Where straight pieces begin, and whether one further up leads to each."""
    for number, flow in function.turns:
        if flow not in ENDS and number not in last_calls:
            continue
        following, source = number + 1, None
        while following < len(addresses) and (source := first_to.get(addresses[following])) is None:
            if not is_padding(function.raw_at(following)):
                return False
            following += 1
        if source is not None:
            starts.append(addresses[following])
            is_all = is_all and source < starts[-1]
    if is_all:
        return True
    reached = [*starts[1:], function.end]
    """By piece: the first instruction that is led to, so far behind its end."""
    todo = [at for at in entries if addresses[bisect_right(addresses, at) - 1] == at]
    while todo:
        aim = todo.pop()
        piece = bisect_right(starts, aim) - 1
        if piece >= 0 and aim < reached[piece]:
            todo += targets[bisect_left(sources, aim) : bisect_left(sources, reached[piece])]
            reached[piece] = aim
    return reached == starts


class Reached:
    """Which instructions of a function, decoded from the first byte to the last, something is known to lead to."""

    def __init__(self, function: "FunctionCode", entries: Iterable[int], *, certainly: bool = True) -> None:
        """Follow control flow from ``entries``, ``certainly`` not behind calls that may not come back."""
        self._function = function
        self._ends = function.last_calls.possible if certainly else function.last_calls.certain
        self._flags = bytearray(len(function.iced))
        self._stops = [number for number, _ in function.turns]
        self.follow(entries)

    def follow(self, entries: Iterable[int]) -> None:
        """Follow control flow from more entries."""
        iced, index, flags, stops = self._function.iced, self._function.index_of, self._flags, self._stops
        todo = [number for number in map(index, entries) if number is not None]
        while todo:
            number = todo.pop()
            while number < len(iced) and not flags[number]:
                place = bisect_left(stops, number)
                if place == len(stops):  # it runs off the end
                    flags[number:] = b"\1" * (len(iced) - number)
                    break
                last, flow = self._function.turns[place]
                flags[number : last + 1] = b"\1" * (last + 1 - number)
                if flow in DIRECT:
                    target = index(iced[last].near_branch_target)
                    todo += [target] if target is not None else []
                if flow in ENDS or last in self._ends:
                    break
                number = last + 1

    @property
    def is_all(self) -> bool:
        """Whether every instruction but padding is reached."""
        body, at = self._function, self._flags.find(0)
        while at >= 0:
            if not is_padding(body.raw_at(at)):
                return False
            at = self._flags.find(0, at + 1)
        return True

    def __contains__(self, number: object) -> bool:
        """Return whether something leads to the instruction with this number."""
        return isinstance(number, int) and bool(self._flags[number])
