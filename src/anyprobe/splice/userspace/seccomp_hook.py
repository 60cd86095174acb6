"""What is called in front of ``prctl`` and ``syscall``: it sees a filter for system calls come, and says so in a word.

Handlers make system calls of their own, which such a filter may punish by death. They look at the word first.
"""

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.isa.assemble import Assembler

_SET_SECCOMP = 22
_PRCTL, _SECCOMP = 157, 317
_INPUTS = (
    Input(InputKind.PARAMETER, "u64", 0, place="rdi"),
    Input(InputKind.PARAMETER, "u64", 1, place="rsi"),
    Input(InputKind.STORAGE),
)


def filter_check(*, numbered: bool) -> NativeCode:
    """Return the code for ``prctl(option, …)``, or for ``syscall(number, option, …)``; its storage is the word."""
    asm = Assembler()
    asm.emit(b"\x8b\x07", "mov eax, [rdi]")
    if numbered:
        asm.emit(b"\x3d" + _SECCOMP.to_bytes(4, "little"), "cmp eax, SECCOMP")
        asm.jump(b"\x74", "comes", "je comes")
        asm.emit(b"\x3d" + _PRCTL.to_bytes(4, "little"), "cmp eax, PRCTL")
        asm.jump(b"\x75", "out", "jne out")
        asm.emit(b"\x8b\x47\x08", "mov eax, [rdi+8]")
    asm.emit(b"\x83\xf8" + bytes([_SET_SECCOMP]), "cmp eax, PR_SET_SECCOMP")
    asm.jump(b"\x75", "out", "jne out")
    asm.label("comes")
    asm.emit(b"\x48\x8b\x47\x10", "mov rax, [rdi+16]")
    asm.emit(b"\xc7\x00\x01\x00\x00\x00", "mov dword [rax], 1")
    asm.label("out")
    asm.emit(b"\xc3", "ret")
    code = asm.finish(0)
    return NativeCode(code, _INPUTS, frozenset({"rax", "flags"}), 8, len(code))
