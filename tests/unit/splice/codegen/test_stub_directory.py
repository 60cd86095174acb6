"""The list of stubs: its code, read back."""

from anyprobe.isa import disassemble
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.stub_directory import emit_true_caller

DIRECTORY = 0x7000_0000_1000


def test_the_true_caller_is_looked_up_until_it_is_no_stub():
    asm = Assembler()
    emit_true_caller(asm, DIRECTORY)
    lines = [text for _, _, text in disassemble.format(asm.finish(0x1000), 0x1000)]
    assert lines == [
        "mov rdx, 0x700000001000",
        "mov rdi, [rdx]",
        "test rdi, rdi",
        "je 0x1037",
        "mov rcx, rax",
        "sub rcx, rdi",
        "mov rdi, [rdx+0x10]",
        "cmp rcx, [rdx+0x8]",
        "lea rdx, [rdx+0x20]",
        "jae 0x100a",
        "mov rax, [rdi+rcx*2]",
        "jmp 0x1000",
    ]
