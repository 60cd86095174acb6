"""Where a call of a function may be that never writes to its stack: there probes must not write to it either.

A signal handler may run on an alternate stack that the program has made read-only since the kernel wrote the signal's
frame there. It does the program no harm as long as the handler only returns.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import InstructionInfoFactory, Mnemonic, Register

from anyprobe.isa.decode import CALLS, JUMPS, Flow, flow_of
from anyprobe.isa.effects import WRITES, effects_of

if TYPE_CHECKING:
    from iced_x86 import Instruction

    from anyprobe.binary.analysis.views import FunctionView

_STACK = frozenset({Register.RSP, Register.ESP})
_SETTING = frozenset({Mnemonic.MOV, Mnemonic.POP, Mnemonic.XCHG})
_factory = InstructionInfoFactory()


class UnwrittenStack(NamedTuple):
    """What ways through a function from a place on, to its end, leave the stack as it is."""

    places: frozenset[int]
    """The instructions on such ways."""
    onward: frozenset[int]
    """Where they jump out of the function."""
    writes: bool
    """Whether other ways write to it."""
    reads: int
    """The registers that are read before that, as a mask."""


def unwritten_stack(function: "FunctionView", entry: int) -> UnwrittenStack:
    """Follow a function from ``entry`` on. Where an indirect jump leads that leaves the function is not known."""
    first = function.index_of(entry)
    if first is None:
        return UnwrittenStack(frozenset(), frozenset(), writes=True, reads=0)
    writes, reads = False, 0
    sources: dict[int, list[int]] = {first: []}
    ends, onward, todo = list[int](), set[int](), [first]
    while todo:
        number = todo.pop()
        one = function.iced[number]
        reads |= effects_of(one, function.raw_at(number)).reads
        if _writes_stack(one):
            writes = True
            continue
        if _changes_stack(one):  # it may come back to this one wherever it changes it again
            for start in _after_changes(function):
                if start not in sources:
                    sources[start] = []
                    todo.append(start)
        for target in _following(function, number, one):
            after = None if target is None else function.index_of(target)
            if after is None:
                ends.append(number)
                onward.update(() if target is None else (target,))
            elif after in sources:
                sources[after].append(number)
            else:
                sources[after] = [number]
                todo.append(after)
    found = set[int]()
    while ends:
        number = ends.pop()
        if number not in found:
            found.add(number)
            ends += sources[number]
    places = frozenset(function.addresses[number] for number in found)
    return UnwrittenStack(places, frozenset(onward), writes, reads)


def _after_changes(function: "FunctionView") -> Iterator[int]:
    return (number + 1 for number, one in enumerate(function.iced[:-1]) if _changes_stack(one))


def _following(function: "FunctionView", number: int, one: "Instruction") -> Iterator[int | None]:
    """Yield where control goes; ``None``: it returns, goes on on another stack, or goes where nothing is known."""
    flow = flow_of(one)
    if _changes_stack(one):
        yield None
        return
    if flow is Flow.INDIRECT_JUMP:
        table = function.table_of(function.addresses[number])
        yield from (None,) if table is None else table.targets
    elif flow is Flow.RET or flow is Flow.OTHER:
        yield None
    elif flow in JUMPS:
        yield one.near_branch_target
    if flow in {Flow.NEXT, Flow.JCC, Flow.SYSCALL, Flow.XBEGIN}:
        yield one.next_ip


def _changes_stack(one: "Instruction") -> bool:
    """Return whether the stack pointer gets a value that has nothing to do with the one before."""
    if one.mnemonic == Mnemonic.LEA:
        return one.op0_register in _STACK and one.memory_base not in _STACK
    swapped = one.op1_register in _STACK and one.mnemonic == Mnemonic.XCHG
    return swapped or (one.op0_register in _STACK and one.mnemonic in _SETTING)


def _writes_stack(one: "Instruction") -> bool:
    if flow_of(one) in CALLS:
        return True
    return any(used.access in WRITES and used.base in _STACK for used in _factory.info(one).used_memory())
