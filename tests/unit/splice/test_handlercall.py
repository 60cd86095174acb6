"""The routine that calls a handler: its assembly is what it says, and it runs, in this very process."""

import ctypes
import mmap
import re

import pytest

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.data.layout import BankLayout
from anyprobe.isa import disassemble
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.handlercall import CALL_BYTES, HandlerFacts, assemble_handler_call, handler_bytes
from anyprobe.splice.memoryroutines import NAMES, emit_memory_routines
from anyprobe.splice.routines import RoutineFacts

RET = b"\xc3"
EVERY = (
    *(Input(InputKind.PARAMETER, "u64", index, place=place) for index, place in enumerate(
        ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "stack+8", "stack+16", "xmm0", "xmm7"))),
    *(Input(InputKind.CONTEXT, name) for name in ("retval", "caller", "tid", "pid", "cpu", "now")),
    *(Input(InputKind.REGISTER, name, written=name != "rsp") for name in ("rax", "rbx", "rbp", "rsp", "r11", "r15")),
    Input(InputKind.STORAGE), Input(InputKind.MISSES), Input(InputKind.THREAD), Input(InputKind.INSTANCE),
    *(Input(InputKind.ROUTINE, name) for name in sorted(NAMES)),
)  # fmt: skip
FACTS = RoutineFacts(BankLayout(8), 0x7000_0000_0000, 0x6000_0000_0000, 0x200)


def normalised(text):
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("enters", [True, False])
@pytest.mark.parametrize("clobbers", [frozenset(), frozenset({"df"})])
def test_the_listing_is_what_the_code_says(enters, clobbers):
    code = NativeCode(RET, EVERY, clobbers, 8, 1)
    facts = HandlerFacts(code, (0x5000,), 0x4000, True, 0x3000, enters, 1 << 31, 77)
    content, entry, listing = assemble_handler_call(FACTS, facts, 0x10000)
    assert listing
    assert entry > 0x10000
    assert (
        len(content)
        <= CALL_BYTES + 64 * len(EVERY) + len(code.code)
        == handler_bytes([type("H", (), {"handler": facts})])
    )
    text = [text for _, _, text in disassemble.format(content, 0x10000)]
    assert not [each for each in text if each == "(bad)"]
    assert text.count("syscall") == 4
    assert ("cld" in text) == bool(clobbers)


def executable(code):
    area = mmap.mmap(-1, 1 << 14, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(code)
    return area, ctypes.addressof(ctypes.c_char.from_buffer(area))


@pytest.fixture(scope="module")
def routines():
    asm = Assembler()
    emit_memory_routines(asm, NAMES, allowed=True)
    area, address = executable(asm.finish(0))
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
    made = {name: kind(address + asm.offset_of(name)) for name in NAMES}
    yield made
    assert area


def address_of(buffer, offset=0):
    return ctypes.addressof(buffer) + offset


def test_memory_is_read_and_written(routines):
    source, target = ctypes.create_string_buffer(b"hello, world", 64), ctypes.create_string_buffer(64)
    assert routines["read"](address_of(target), address_of(source), 12) == 0
    assert target.value == b"hello, world"
    assert routines["write"](address_of(source), address_of(target, 7), 5) == 0
    assert source.value == b"world, world"


@pytest.mark.parametrize("bad", [0, 8, 1 << 47, (1 << 64) - 1, 0xFFFF_8000_0000_0000])
def test_bad_addresses_are_answers(routines, bad):
    target = ctypes.create_string_buffer(64)
    assert routines["read"](address_of(target), bad, 8) != 0
    assert routines["read_text"](address_of(target), bad, 8) == -1
    assert routines["write"](bad, address_of(target), 8) != 0


def test_texts_end_at_the_nul_the_limit_or_where_nothing_can_be_read(routines):
    pages = mmap.mmap(-1, 8192)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + 4096), 4096, 0) == 0
    target = ctypes.create_string_buffer(b"\xff" * 64, 64)
    pages[4086:4096] = b"abcdefgh\0z"
    assert routines["read_text"](address_of(target), base + 4086, 32) == 8
    assert target.raw[:33] == b"abcdefgh" + bytes(24) + b"\xff"
    assert routines["read_text"](address_of(target), base + 4086, 3) == 3
    assert target.raw[:3] == b"abc"
    pages[4086:4096] = b"abcdefghij"
    assert routines["read_text"](address_of(target), base + 4086, 10) == 10
    assert routines["read_text"](address_of(target), base + 4086, 11) == -1
    assert routines["read_text"](address_of(target), base + 4086, 0) == 0


def test_a_text_goes_on_behind_its_page(routines):
    pages = mmap.mmap(-1, 8192)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    pages[4090:4106] = b"0123456789abcde\0"
    target = ctypes.create_string_buffer(b"\xff" * 64, 64)
    assert routines["read_text"](address_of(target), base + 4090, 64) == 15
    assert target.raw == b"0123456789abcde" + bytes(49)
    assert routines["read_text"](address_of(target), base + 4090, 9) == 9


def test_where_system_calls_may_be_punished_nothing_is_read():
    asm = Assembler()
    emit_memory_routines(asm, NAMES, allowed=False)
    assert asm.finish(0) == bytes.fromhex("48c7c0ffffffffc3")
    assert {asm.offset_of(name) for name in NAMES} == {0}
