import pytest

from anyprobe.core.errors import InternalError
from anyprobe.isa import disassemble
from anyprobe.isa.assemble import Assembler


def counter() -> Assembler:
    asm = Assembler()
    asm.code(
        """
        start:
            mov r11, fs:[slot]
            test r11, r11; je short out
            inc qword [r11+0x40]; jmp start
        out:
            jmp elsewhere
        """,
        slot=0x270,
        elsewhere=0x500000,
    )
    return asm


def test_labels_and_absolute_targets():
    lines = disassemble.format(counter().finish(0x401000), 0x401000)
    assert [text for _, _, text in lines] == [
        "mov r11, fs:[0x270]",
        "test r11, r11",
        "je 0x401017",
        "inc qword ptr [r11+0x40]",
        "jmp 0x401000",
        "jmp 0x500000",
    ]


def test_a_finished_piece_can_be_finished_elsewhere():
    asm = counter()
    assert len(asm.finish(0x401000)) == len(asm.finish(0x402000)) == len(asm)
    assert disassemble.format(asm.finish(0x402000), 0x402000)[-1][2] == "jmp 0x500000"


def test_a_displacement_in_front_of_an_immediate():
    asm = Assembler()
    asm.code("mov dword [rel word], 1", word=0x402000)
    assert disassemble.format(asm.finish(0x401000), 0x401000)[0][2] == "mov dword ptr [0x402000], 0x1"


def test_values_are_written_with_or_without_a_sign():
    asm = Assembler()
    asm.code("mov rax, value; mov ecx, small; add rdx, [rbx+place-8]", value=(1 << 64) - 1, small=-2, place=0x20)
    assert [text for _, _, text in disassemble.format(asm.finish(0), 0)] == [
        "mov rax, 0xffffffffffffffff",
        "mov ecx, 0xfffffffe",
        "add rdx, [rbx+0x18]",
    ]


def test_a_value_may_be_a_label():
    asm = Assembler()
    asm.code("call routine; ret", routine="helper")
    asm.label("helper")
    asm.raw(b"\xc3", "the code of somebody else")
    assert asm.finish(0x1000) == b"\xe8\x01\0\0\0\xc3\xc3"
    assert asm.listing().splitlines()[-2:] == [
        "helper:",
        "   6  c3                                the code of somebody else",
    ]


def test_the_listing_has_bytes_and_assembly_side_by_side():
    listing = counter().listing(0x401000).splitlines()
    assert listing[0] == "start:"
    assert listing[2].split() == ["9", "4d", "85", "db", "test", "r11,", "r11"]
    assert "out:" in listing


def test_mistakes_are_ours():
    asm = Assembler()
    asm.label("twice")
    with pytest.raises(InternalError, match="twice"):
        asm.label("twice")
    asm.code("jmp short nowhere")
    with pytest.raises(InternalError, match="nowhere"):
        asm.finish(0)
    far = Assembler()
    far.code("jmp short away", away=0x1000)
    with pytest.raises(InternalError, match="out of reach"):
        far.finish(0)
    with pytest.raises(InternalError, match="slot has no value"):
        Assembler().code("mov r11, fs:[slot]")
    with pytest.raises(InternalError, match="does not fit"):
        Assembler().code("cmp eax, value", value=1 << 32)
