"""Unwind tables against what readelf prints, and without the sorted table."""

import re

import numpy as np
import pytest

from anyprobe.binary.objects.elf import PT_GNU_EH_FRAME, ElfFile
from anyprobe.binary.objects.leb128 import read_uleb
from anyprobe.binary.unwind.eh_frame import UnwindTable, read_encoded, unwind_table
from anyprobe.binary.unwind.landing_pads import landing_pads
from anyprobe.core.errors import UnsupportedTarget

SOURCE = r"""
extern void may_throw(int);
struct Guard { ~Guard() { may_throw(0); } };
void one(int x) { try { may_throw(x); } catch (int) { may_throw(1); } }
int two(int x) { return x * 2; }
void three(int x) { try { Guard guard; may_throw(x); may_throw(x + 1); } catch (...) { may_throw(3); } }
void may_throw(int x) { if (x) throw x; }
"""


@pytest.fixture(scope="module")
def library(build):
    return build(SOURCE, "-shared", "-fPIC", "-O1", language="c++")


def rows(table):
    return list(zip(table.starts.tolist(), table.ends.tolist(), strict=True))


def test_bounds_are_what_readelf_prints(build, library):
    printed = build.run("readelf", "--debug-dump=frames", library)
    wanted = sorted((int(a, 16), int(b, 16)) for a, b in re.findall(r"FDE cie=\S+ pc=(\w+)\.\.(\w+)", printed))
    assert rows(unwind_table(ElfFile.open(str(library)))) == wanted
    assert len(wanted) > 3


def test_walking_finds_what_the_sorted_table_lists(library):
    elf = ElfFile.open(str(library))
    expected = unwind_table(elf)
    elf.segments = tuple(each for each in elf.segments if each.kind != PT_GNU_EH_FRAME)
    walked = unwind_table(elf)
    assert rows(walked) == rows(expected)
    assert walked.lsda.tolist() == expected.lsda.tolist()


def test_an_unusable_sorted_table_means_walking(library):
    content = bytearray(library.read_bytes())
    header = next(each for each in ElfFile.open(str(library)).segments if each.kind == PT_GNU_EH_FRAME)
    content[header.offset + 3] = 0xFF  # table encoding: none
    assert rows(unwind_table(ElfFile("x", bytes(content)))) == rows(unwind_table(ElfFile.open(str(library))))


def test_only_functions_that_catch_have_exception_tables(library):
    elf = ElfFile.open(str(library))
    table = unwind_table(elf)
    assert 2 <= np.count_nonzero(table.lsda) < len(table.lsda)
    pads = landing_pads(elf, table)
    owners = table.starts[np.searchsorted(table.starts, pads, side="right") - 1]
    assert set(owners.tolist()) <= set(table.starts[table.lsda != 0].tolist())


def test_an_unreadable_exception_table_is_an_error_not_an_absence(library):
    elf = ElfFile.open(str(library))
    table = unwind_table(elf)
    outside = UnwindTable(
        table.starts, table.ends, np.where(table.lsda != 0, 1 << 40, 0), table.signal_frame, table.framed
    )
    with pytest.raises(ValueError, match="exception table"):
        landing_pads(elf, outside)


def test_an_unreadable_unwind_table_is_an_error(library):
    content = bytearray(library.read_bytes())
    elf = ElfFile.open(str(library))
    header = next(each for each in elf.segments if each.kind == PT_GNU_EH_FRAME)
    content[header.offset + 8 : header.offset + 12] = b"\xff\xff\xff\x7f"  # so many entries that they cannot be there
    with pytest.raises(UnsupportedTarget, match="damaged ELF file"):
        unwind_table(ElfFile("x", bytes(content)))


def test_no_table_no_rows(build):
    path = build("void _start(void) {}", "-nostdlib", "-fno-asynchronous-unwind-tables", "-static")
    assert rows(unwind_table(ElfFile.open(str(path)))) == []


def test_signal_frames_are_marked(build):
    source = r"""
.text
.globl back
.type back, @function
.cfi_startproc
.cfi_signal_frame
back: mov $15, %rax
    syscall
.cfi_endproc
.size back, . - back
.section .note.GNU-stack,"",@progbits
"""
    path = build(source, "-shared", "-nostdlib", language="assembler")
    table = unwind_table(ElfFile.open(str(path)))
    assert table.signal_frame.tolist() == [True]


@pytest.mark.parametrize(
    ("content", "value", "length"),
    [(b"\x00", 0, 1), (b"\x7f", 127, 1), (b"\x80\x01", 128, 2), (b"\xe5\x8e\x26", 624485, 3)],
)
def test_leb128(content, value, length):
    assert read_uleb(b"?" + content, 1) == (value, 1 + length)


@pytest.mark.parametrize(
    ("content", "encoding", "value"),
    [
        (b"\xfc\xff\xff\xff", 0x1B, 0xFFC),  # pcrel sdata4
        (b"\x10\x00\x00\x00", 0x03, 0x10),  # absolute udata4
        (b"\x00\x00\x00\x00", 0x1B, 0),  # a null pointer stays one
        (b"\x08\x00\x00\x00\x00\x00\x00\x00", 0x00, 8),
        (b"\x05", 0x01, 5),
    ],
)
def test_encoded_pointers(content, encoding, value):
    assert read_encoded(content, 0, encoding, 0x1000)[0] == value
