"""Which instructions may fault: raise SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGTRAP where they stand.

Accesses to the stack by way of rsp, and to the thread control block, are left out: the former fault where the stack is
exhausted, wherever that happens to be.
"""

import re
from functools import cache

from iced_x86 import Instruction, Mnemonic, OpKind, Register

from anyprobe.isa.decode import FLOWS, Flow, constants

_PLAIN = frozenset(
    {
        OpKind.REGISTER, OpKind.NEAR_BRANCH64, OpKind.IMMEDIATE8, OpKind.IMMEDIATE8_2ND, OpKind.IMMEDIATE16,
        OpKind.IMMEDIATE32, OpKind.IMMEDIATE64, OpKind.IMMEDIATE8TO16, OpKind.IMMEDIATE8TO32, OpKind.IMMEDIATE8TO64,
        OpKind.IMMEDIATE32TO64,
    }
)  # fmt: skip
_NO_ACCESS = re.compile(r"LEA|NOP|PREFETCH\w*|ENDBR64|CLDEMOTE")
_ARITHMETIC = re.compile(
    r"I?DIV|V?(ADD|SUB|MUL|DIV|SQRT|MAX|MIN|CMP|ADDSUB|HADD|HSUB)[PS][SDH]|V?(DPP|U?COMI|CVT|ROUND)\w+"
    r"|VF\w+|V(RANGE|REDUCE|SCALEF|GETEXP|GETMANT|RNDSCALE|FIXUPIMM)\w+|F\w+"
)
"""What may divide by zero, or raise a floating point exception that the program has asked for."""
_memo: dict[int, tuple[bool, bool]] = {}


@cache
def _names() -> dict[int, str]:
    return {value: name for name, value in constants(Mnemonic).items()}


def may_fault(one: Instruction) -> bool:
    """Return whether an instruction may fault."""
    known = _memo.get(one.mnemonic)
    if known is None:
        name = _names()[one.mnemonic]
        arithmetic = _ARITHMETIC.fullmatch(name) is not None
        known = _memo[one.mnemonic] = (_NO_ACCESS.fullmatch(name) is not None, arithmetic)
    harmless, arithmetic = known
    if harmless:
        return False
    if arithmetic or one.is_privileged or FLOWS[one.code] in (Flow.TRAP, Flow.OTHER, Flow.INVALID):
        return True
    for number in range(one.op_count):
        kind = one.op_kind(number)
        if kind in _PLAIN:
            continue
        if kind != OpKind.MEMORY or one.memory_index != Register.NONE:
            return True
        thread_local = one.memory_base == Register.NONE and one.segment_prefix == Register.FS
        if one.memory_base != Register.RSP and not thread_local:
            return True
    return False
