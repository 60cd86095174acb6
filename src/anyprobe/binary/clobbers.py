"""Which caller-saved registers a function destroys anyway, so that no caller can be relying on them.

GCC's ``-fipa-ra`` lets the caller of a local function keep values in caller-saved registers which that function is
seen not to touch. A register is ours to destroy only if the compiler must have assumed it destroyed: the function
writes it, or calls code that the compiler could not see, or makes a system call.

Registers that a function stores to its stack and loads back are never counted: hand-written code (TLS descriptors,
lazy binding, Go's write barrier) promises to preserve what the convention would let it destroy.
"""

from typing import TYPE_CHECKING

from iced_x86 import Code, OpKind, Register

from anyprobe.binary.function import FunctionCode
from anyprobe.isa.decode import FLOWS, Flow
from anyprobe.isa.effects import effects_of
from anyprobe.isa.registers import SYSV_CLOBBERED, mask_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iced_x86 import Instruction

    from anyprobe.binary.cfg import CodeMap

_DEPTH = 4
_SYSCALL_CLOBBERS = mask_of(("rax", "rcx", "r11"))
TLS_DESCRIPTOR_CALL = b"\xff\x10"
"""``call [rax]``: the callee of a TLS descriptor preserves everything but rax."""
_RAX = int(Register.RAX)
_STACK = frozenset({Register.RSP, Register.RBP})


class Clobbers:
    """Answers for the functions of one module, each computed once."""

    def __init__(self, code_map: "CodeMap") -> None:
        """Start with nothing known."""
        self._map = code_map
        self._known: dict[int, int] = {}
        self._saved: dict[int, int] = {}

    def of(self, function: FunctionCode, depth: int = 0) -> int:
        """Return the mask of caller-saved registers that the function destroys; too few where in doubt."""
        known = self._known.get(function.start)
        if known is None:
            self._known[function.start] = 0  # recursion adds nothing
            seen = self._through_calls(function, depth)
            if seen != SYSV_CLOBBERED:
                seen |= self._own(function)
            known = self._known[function.start] = seen & SYSV_CLOBBERED & ~self.saved(function)
        return known

    def at_call(self, target: int, depth: int = 0) -> int:
        """Return what a direct call or tail jump to an address destroys."""
        if self._map.start_of(target) == target:
            callee = self._map.function_at(target)
            if not isinstance(callee, FunctionCode) or depth >= _DEPTH:
                return 0
            return self.of(callee, depth + 1)
        return SYSV_CLOBBERED if self._map.is_stub(target) else 0

    def _through_calls(self, function: FunctionCode, depth: int) -> int:
        """Return what calls, tail jumps and system calls destroy."""
        seen = 0
        targets: set[int] = set()
        for insn in function.special:
            flow = insn.flow
            if flow is Flow.INDIRECT_CALL and insn.raw != TLS_DESCRIPTOR_CALL:
                return SYSV_CLOBBERED
            if flow is Flow.INDIRECT_JUMP and function.leaves_at(insn):
                return SYSV_CLOBBERED
            if flow is Flow.SYSCALL:
                seen |= _SYSCALL_CLOBBERS
            elif insn.target is not None and not function.start <= insn.target < function.end:
                targets.add(insn.target)
        for target in targets:
            seen |= self.at_call(target, depth)
            if seen == SYSV_CLOBBERED:
                break
        return seen

    @staticmethod
    def _own(function: FunctionCode) -> int:
        seen = 0
        for number, one in enumerate(function.iced):
            if FLOWS[one.code] is Flow.NEXT:
                seen |= effects_of(one, function.raw_at(number)).may_write
        return seen

    def saved(self, function: FunctionCode) -> int:
        """Return the registers that the function both stores to the stack and loads from it."""
        known = self._saved.get(function.start)
        if known is None:
            known = self._saved[function.start] = _saved(function.iced)
        return known


def _saved(instructions: "Sequence[Instruction]") -> int:
    stored = loaded = 0
    for one in instructions:
        code = one.code
        if code not in _MOVES:
            continue
        if code == Code.PUSH_R64:
            stored |= 1 << one.op0_register - _RAX
        elif code == Code.POP_R64:
            loaded |= 1 << one.op0_register - _RAX
        elif code == Code.MOV_RM64_R64:
            if one.op0_kind == OpKind.MEMORY and one.memory_base in _STACK:
                stored |= 1 << one.op1_register - _RAX
        elif one.op1_kind == OpKind.MEMORY and one.memory_base in _STACK:
            loaded |= 1 << one.op0_register - _RAX
    return stored & loaded


_MOVES = frozenset({Code.PUSH_R64, Code.POP_R64, Code.MOV_RM64_R64, Code.MOV_R64_RM64})
