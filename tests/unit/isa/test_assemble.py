import pytest

from anyprobe.core.errors import InternalError
from anyprobe.isa import disassemble
from anyprobe.isa.assemble import Assembler


def counter() -> Assembler:
    asm = Assembler()
    asm.label("start")
    asm.emit(b"\x64\x4c\x8b\x1c\x25\x70\x02\x00\x00", "mov r11, fs:[0x270]")
    asm.emit(b"\x4d\x85\xdb", "test r11, r11")
    asm.jump(b"\x74", "out", "je out")
    asm.emit(b"\x49\xff\x43\x40", "inc qword ptr [r11+0x40]")
    asm.jump(b"\xe9", "start", "jmp start")
    asm.label("out")
    asm.jump(b"\xe9", 0x500000, "jmp 0x500000")
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
    asm.relative(b"\xc7\x05", 4, b"\x01\x00\x00\x00", 0x402000, "mov dword ptr [0x402000], 1")
    assert disassemble.format(asm.finish(0x401000), 0x401000)[0][2] == "mov dword ptr [0x402000], 0x1"


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
    asm.jump(b"\xeb", "nowhere", "jmp nowhere")
    with pytest.raises(InternalError, match="nowhere"):
        asm.finish(0)
    far = Assembler()
    far.jump(b"\xeb", 0x1000, "jmp 0x1000")
    with pytest.raises(InternalError, match="out of reach"):
        far.finish(0)
