"""How far generated code lowers the stack pointer, read from its bytes along every way through it."""

from collections.abc import Mapping

from iced_x86 import Decoder, FlowControl, Instruction, Mnemonic, OpKind, Register

ALIGNED_TO = 16
"""What ``and rsp, -16`` may take off."""
_BRANCHES = (FlowControl.UNCONDITIONAL_BRANCH, FlowControl.CONDITIONAL_BRANCH)
_ENDS = (FlowControl.UNCONDITIONAL_BRANCH, FlowControl.RETURN, FlowControl.INDIRECT_BRANCH, FlowControl.INTERRUPT)


def depth(code: bytes, address: int, start: int, elsewhere: Mapping[int, int] | None = None) -> int:
    """Return the most bytes that code at ``address`` takes below the stack pointer that it has at ``start``.

    ``elsewhere``: what routines take that are called or jumped to, by their addresses; calls by pointers take nothing.
    """
    insns = {one.ip: one for one in Decoder(64, code, ip=address)}
    return _deepest(insns, start, elsewhere or {}, {})


def _deepest(insns: dict[int, Instruction], start: int, elsewhere: Mapping[int, int], known: dict[int, int]) -> int:
    if start not in insns:
        return elsewhere[start]
    if start in known:
        return known[start]
    deepest, seen = 0, set[tuple[int, int, int | None]]()
    todo: list[tuple[int, int, int | None]] = [(start, 0, None)]  # pc, how deep, what rbp keeps of that
    while todo:
        at, low, kept = todo.pop()
        if (at, low, kept) in seen or at not in insns:
            if at not in insns:
                deepest = max(deepest, low + elsewhere.get(at, 0))
            continue
        seen.add((at, low, kept))
        one = insns[at]
        flow = one.flow_control
        if flow in (FlowControl.CALL, FlowControl.INDIRECT_CALL):
            inner = 0
            if one.op0_kind == OpKind.NEAR_BRANCH64:
                inner = _deepest(insns, one.near_branch_target, elsewhere, known)
            deepest = max(deepest, low + 8 + inner)
        elif flow in _BRANCHES:
            todo.append((one.near_branch_target, low, kept))
        else:
            low, kept = _stepped(one, low, kept)
        deepest = max(deepest, low)
        if flow not in _ENDS:
            todo.append((at + one.len, low, kept))
    known[start] = deepest
    return deepest


def _stepped(one: Instruction, low: int, kept: int | None) -> tuple[int, int | None]:
    """Return how deep the stack pointer is behind an instruction that does not branch."""
    to_stack = one.op_count > 0 and one.op0_kind == OpKind.REGISTER and one.op0_register == Register.RSP
    distance = one.immediate(1) if one.op_count == 2 and one.op1_kind not in (OpKind.REGISTER, OpKind.MEMORY) else 0
    distance -= (1 << 64) * (distance >> 63)
    if one.mnemonic == Mnemonic.LEA and to_stack:
        assert one.memory_base in (Register.RSP, Register.RBP)
        moved = one.memory_displacement - (1 << 64) * (one.memory_displacement >> 63)
        base = low if one.memory_base == Register.RSP else kept
        assert base is not None
        return base - moved, kept
    if one.mnemonic == Mnemonic.MOV and to_stack:
        assert one.op1_register == Register.RBP
        assert kept is not None
        return kept, kept
    if one.mnemonic == Mnemonic.MOV and one.op0_register == Register.RBP and one.op1_register == Register.RSP:
        return low, low
    if to_stack and one.mnemonic in (Mnemonic.SUB, Mnemonic.ADD):
        return low + (distance if one.mnemonic == Mnemonic.SUB else -distance), kept
    if to_stack and one.mnemonic == Mnemonic.AND:
        return low - distance - 1, kept
    assert not to_stack or one.mnemonic in (Mnemonic.CMP, Mnemonic.TEST), one
    return low - one.stack_pointer_increment, kept
