"""Which bytes of a function are instructions, by following control flow from where it is certainly entered.

Compilers fill functions with instructions and padding, so decoding from the first byte to the last is right for them.
Hand-written code keeps tables and strings between its instructions, which decode to something, too: where the two ways
of decoding disagree, or where nothing is known to lead, no byte may be written.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import Code, Decoder

from anyprobe.binary.decoding.body import LOCK
from anyprobe.isa.decode import FLOWS, JUMPS, Flow

if TYPE_CHECKING:
    from iced_x86 import Instruction


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
