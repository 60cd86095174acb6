"""Whether what the scan has found in a function is what it looks like."""

from iced_x86 import OpKind

from anyprobe.binary.analysis.views import FunctionView
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.isa.decode import DIRECT, FLOWS

_WORD = 4
"""Bytes of an operand that may be an address."""
_LEA_BYTES = 6
"""Length of ``lea reg, [rip + x]`` from its opcode on."""
_IMMEDIATES = frozenset({OpKind.IMMEDIATE32, OpKind.IMMEDIATE32TO64})
"""Kinds of immediates of four bytes."""


def is_reference(function: FunctionView, target: int, source: int, kind: Kind) -> bool:
    """Return whether a candidate of the scan in a function may be what it looks like; in doubt it is."""
    if function.broken is not None:
        return True
    number = function.number_over(source)
    one = None if number is None else function.iced[number]
    if kind is Kind.NEAR or kind is Kind.SHORT:
        branches = one is not None and FLOWS[one.code] in DIRECT and one.near_branch_target == target
        return branches or bool(function.overlapped)
    if one is None or number is None or function.overlapped:
        return True
    if kind is Kind.LEA:
        return one.next_ip == source + _LEA_BYTES and one.memory_displacement == target
    if FLOWS[one.code] in DIRECT:
        return False
    if one.is_ip_rel_memory_operand:  # its displacement is none, and what follows that is the immediate
        return source + _WORD == one.next_ip and one.op_kind(one.op_count - 1) in _IMMEDIATES
    insn = function.insn(number)
    offsets = insn.offsets
    immediate = offsets.immediate_offset if offsets.has_immediate and offsets.immediate_size >= _WORD else -1
    absolute = offsets.displacement_offset if offsets.displacement_size == _WORD else -1
    return source - insn.address in (immediate, absolute)
