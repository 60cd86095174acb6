from anyprobe.isa.encode import encode
from anyprobe.isa.registers import NUMBERS, part_of


def test_the_parts_of_registers():
    assert [part_of("rax", bits) for bits in (64, 32, 16, 8)] == ["rax", "eax", "ax", "al"]
    assert [part_of("rdi", bits) for bits in (64, 32, 16, 8)] == ["rdi", "edi", "di", "dil"]
    assert [part_of("r9", bits) for bits in (64, 32, 16, 8)] == ["r9", "r9d", "r9w", "r9l"]
    for name in NUMBERS:
        for bits in (64, 32, 16, 8):
            assert encode(f"mov {part_of(name, bits)}, {part_of(name, bits)}").holes == ()
