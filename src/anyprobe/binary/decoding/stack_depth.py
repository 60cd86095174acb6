"""Whether code keeps its stack in balance, as a function does from its entry to its returns, and a part of one not."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from iced_x86 import Code, Mnemonic, OpKind, Register

from anyprobe.binary.decoding.handwritten_calls import hops
from anyprobe.isa.decode import CALLS, FLOWS, JUMPS, Flow

if TYPE_CHECKING:
    from iced_x86 import Instruction


_READERS = frozenset({Mnemonic.CMP, Mnemonic.TEST, Mnemonic.PUSH})
_ADDING = frozenset({Code.ADD_RM64_IMM8, Code.ADD_RM64_IMM32})
_SUBTRACTING = frozenset({Code.SUB_RM64_IMM8, Code.SUB_RM64_IMM32})
_IMMEDIATES = _ADDING | _SUBTRACTING
_MOVES = frozenset({Code.MOV_R64_RM64, Code.MOV_RM64_R64})
_MOST_SEEN = 20_000
_FIRST = 8
"""How many instructions of a function are looked at for that."""
_SLOT = 8
_SIGN, _WRAP = 1 << 63, 1 << 64


class Balance(Enum):
    """What following the code has shown."""

    KEPT = "kept"
    """Every return found the stack as it was at the beginning, and something was pushed or returned from."""
    OPEN = "open"
    """The same, but somewhere it jumps to an unknown place, with nothing put on the stack, or it is very long."""
    BROKEN = "broken"
    """It takes from the stack what it did not put there."""


class Frame(NamedTuple):
    """How far the stack pointer is from where it was."""

    depth: int | None
    """Bytes between the return address and the stack pointer; ``None`` where it was aligned at run time."""
    base: int | None
    """The depth to which ``rbp`` points, where it holds a stack pointer."""

    def pushed(self) -> "Frame":
        """Return the frame with one more word."""
        return Frame(None if self.depth is None else self.depth + _SLOT, self.base)


class Seen(NamedTuple):
    """What an analysis of functions tells."""

    no_return: Container[int]
    """Functions that never return."""
    tables: Mapping[int, Sequence[int]]
    """The targets of indirect jumps, as far as they are known: none, where a jump leaves."""


class _TableTargets(Protocol):
    @property
    def targets(self) -> Sequence[int]: ...


class _Jumping(Protocol):
    """A function whose indirect jumps are known, as far as they are."""

    @property
    def addresses(self) -> Sequence[int]: ...
    @property
    def jumps_through_pointers(self) -> Sequence[int]: ...
    @property
    def tables(self) -> Mapping[int, _TableTargets]: ...


def seen_in(functions: Iterable[_Jumping], no_return: Container[int], open_at: Container[int] = ()) -> Seen:
    """Return what some functions tell of their indirect jumps; but of those at ``open_at``, which may stay inside."""
    tables: dict[int, Sequence[int]] = {}
    for function in functions:
        jumps = (function.addresses[number] for number in function.jumps_through_pointers)
        tables.update((at, ()) for at in jumps if at not in open_at)
        tables.update((at, table.targets) for at, table in function.tables.items())
    return Seen(no_return, tables)


def balance(
    start: int, instruction_at: "Callable[[int], Instruction | None]", seen: Seen, *, is_whole: bool = False
) -> Balance:
    """Follow the code from ``start``; ``instruction_at`` returns ``None`` outside of it, where jumps leave for good.

    Calls are taken to return unless they are known not to, or padding follows. Loops are followed once. What runs off
    the code, or over two zeros, is a table. ``is_whole``: of what is taken for one whole function, padding or not.
    """
    shown = is_open = False
    done: set[int] = set()
    todo = [(start, Frame(0, None))]
    while todo:
        at, frame = todo.pop()
        falls = False
        while at not in done:
            one = instruction_at(at)
            flow = FLOWS[one.code] if one is not None else None
            if (one is None and falls) or is_zeros(one):
                return Balance.BROKEN
            if len(done) > _MOST_SEEN:
                return Balance.OPEN
            done.add(at)
            if one is None or flow is Flow.RET:
                if frame.depth != 0:
                    return Balance.BROKEN
                shown = True
                break
            falls = True
            if flow is Flow.INDIRECT_JUMP:
                targets = seen.tables.get(at)
                is_open = is_open or (frame.depth == 0 and targets is None)
                shown = True
                if is_whole and frame.depth and targets is not None and not targets:
                    return Balance.BROKEN  # it would leave with something on the stack
                todo += [(target, frame) for target in targets or ()]
                break
            if flow is Flow.INVALID or flow is Flow.OTHER:
                return Balance.BROKEN
            if flow is Flow.CALL and hops(one, instruction_at):
                at, frame = one.near_branch_target, frame.pushed()
                continue
            if flow in JUMPS:
                todo.append((one.near_branch_target, frame))
            if flow is Flow.JUMP or flow is Flow.TRAP:
                break
            if flow is Flow.NEXT:
                frame = frame_after(one, frame)
                if frame.depth is not None and frame.depth < 0:
                    return Balance.BROKEN
                shown = shown or bool(frame.depth)
            at = one.next_ip
            if flow is Flow.CALL and one.near_branch_target in seen.no_return:
                break
            if flow in CALLS and not is_whole and _is_nop(instruction_at(at)):
                break  # it may be one that never returns, with another function after the padding
    if not shown:
        return Balance.BROKEN
    return Balance.OPEN if is_open else Balance.KEPT  # pieces of a function may go on to the next by such a jump


def takes_return(start: int, instruction_at: "Callable[[int], Instruction | None]") -> bool:
    """Return whether a function takes its return address from the stack at once: ``call print; .asciz "text"``.

    It may go on there, after what it finds there, or nowhere.
    """
    at, frame = start, Frame(0, None)
    for _ in range(_FIRST):
        one = instruction_at(at)
        if one is None or FLOWS[one.code] is not Flow.NEXT:
            return False
        frame = frame_after(one, frame)
        if frame.depth is not None and frame.depth < 0:
            return True
        at = one.next_ip
    return False


def is_zeros(one: "Instruction | None") -> bool:
    """Return whether an instruction is ``add [rax], al``: two zeros, as tables have them, and hardly any code."""
    return one is not None and one.code == Code.ADD_RM8_R8 and one.len == 2 and _is_rax_and_al(one)


def _is_rax_and_al(one: "Instruction") -> bool:
    return one.op0_kind == OpKind.MEMORY and one.memory_base == Register.RAX and one.op1_register == Register.AL


def _is_nop(one: "Instruction | None") -> bool:
    return one is not None and one.mnemonic == Mnemonic.NOP


def frame_after(one: "Instruction", frame: Frame) -> Frame:
    """Return the frame after an instruction that goes on to the next."""
    depth, base = frame
    if one.mnemonic == Mnemonic.LEAVE:
        return Frame(None if base is None else base - 8, None)
    moved = one.stack_pointer_increment
    if moved:
        to_base = one.mnemonic == Mnemonic.POP and one.op0_kind == OpKind.REGISTER and one.op0_register == Register.RBP
        return Frame(None if depth is None else depth - moved, None if to_base else base)
    if one.op_count == 0 or one.op0_kind != OpKind.REGISTER or one.mnemonic in _READERS:
        return frame
    written = one.op0_register
    if written == Register.RBP:
        copied = one.code in _MOVES and one.op1_kind == OpKind.REGISTER and one.op1_register == Register.RSP
        return Frame(depth, depth if copied else None)
    if written not in (Register.RSP, Register.ESP):
        return frame
    if one.code in _IMMEDIATES and depth is not None:
        value = _signed(one.immediate(1))
        return Frame(depth - value if one.code in _ADDING else depth + value, base)
    if one.code in _MOVES and one.op1_kind == OpKind.REGISTER and one.op1_register == Register.RBP:
        return Frame(base, base)
    if one.code == Code.LEA_R64_M and one.memory_index == Register.NONE:
        offset = _signed(one.memory_displacement)
        start = {Register.RSP: depth, Register.RBP: base}.get(one.memory_base)
        return Frame(None if start is None else start - offset, base)
    return Frame(None, base)


def _signed(value: int) -> int:
    value &= _WRAP - 1
    return value - _WRAP if value & _SIGN else value
