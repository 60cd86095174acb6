"""What is looked at in front of glibc's ``sigaction(signal, act, old)``: whether a handler for faults may be set."""

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.isa.assemble import Assembler, i32
from anyprobe.splice.userspace.signal_actions import FAULT_SIGNALS

_INPUTS = (
    Input(InputKind.PARAMETER, "u32", 0, place="rdi"),
    Input(InputKind.PARAMETER, "u64", 1, place="rsi"),
)


def sets_fault_action() -> NativeCode:
    """Return the condition: the signal is one of a fault, and there is an action."""
    asm = Assembler()
    asm.emit(b"\x8b\x0f", "mov ecx, [rdi]")
    asm.emit(b"\x83\xf9\x1f", "cmp ecx, 31")
    asm.jump(b"\x77", "other", "ja other")
    asm.emit(b"\xb8" + i32(sum(1 << signal for signal in FAULT_SIGNALS)), "mov eax, signals")
    asm.emit(b"\x0f\xa3\xc8", "bt eax, ecx")
    asm.jump(b"\x73", "other", "jnc other")
    asm.emit(b"\x48\x8b\x47\x08\xc3", "mov rax, [rdi+8]; ret")
    asm.label("other")
    asm.emit(b"\x31\xc0\xc3", "xor eax, eax; ret")
    code = asm.finish(0)
    return NativeCode(code, _INPUTS, frozenset({"rax", "rcx", "flags"}), 8, len(code))
