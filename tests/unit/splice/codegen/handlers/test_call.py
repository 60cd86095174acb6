"""The routine that calls a handler: its assembly is what it says, and it runs, in this very process."""

import ctypes
import mmap
import os
import re
import threading
from dataclasses import replace

import pytest

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.data.layouts.layout import BankLayout
from anyprobe.isa import disassemble
from anyprobe.isa.assemble import Assembler
from anyprobe.probes.providers.function.handlers.own_memory import stack_block_offset
from anyprobe.splice.codegen.handlers.alone import assemble_handler_call
from anyprobe.splice.codegen.handlers.chain import assemble_handler_chain, can_follow, chain_bytes
from anyprobe.splice.codegen.handlers.facts import CALL_BYTES, STORAGE_BYTES, HandlerFacts, handler_bytes
from anyprobe.splice.codegen.handlers.memory_routines import NAMES, ReadingFacts, emit_memory_routines
from anyprobe.splice.codegen.routines import RoutineFacts

RET = b"\xc3"
EVERY = (
    *(Input(InputKind.PARAMETER, "u64", index, place=place) for index, place in enumerate(
        ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "stack+8", "stack+16", "xmm0", "xmm7"))),
    *(Input(InputKind.CONTEXT, name) for name in ("retval", "caller", "tid", "pid", "cpu", "now", "errno")),
    *(Input(InputKind.REGISTER, name, written=name != "rsp") for name in ("rax", "rbx", "rbp", "rsp", "r11", "r15")),
    Input(InputKind.STORAGE), Input(InputKind.MISSES), Input(InputKind.THREAD), Input(InputKind.INSTANCE),
    *(Input(InputKind.ROUTINE, name) for name in sorted(NAMES)),
)  # fmt: skip
FACTS = RoutineFacts(BankLayout(8), 0x7000_0000_0000, 0x6000_0000_0000, 0x200)


@pytest.mark.parametrize("known", [True, False])
def test_errno_is_where_it_is_said_to_be(known):
    inputs = (Input(InputKind.CONTEXT, "errno", written=True), Input(InputKind.REGISTER, "rip", written=True))
    code = NativeCode(RET, inputs, frozenset(), 8, 1)
    facts = HandlerFacts(code, errno=-0x80 if known else 0, errno_word=0 if known else 0x5008)
    content, _, _ = assemble_handler_call(FACTS, facts, 0x10000)
    text = [text for _, _, text in disassemble.format(content, 0x10000)]
    assert not [each for each in text if each == "(bad)"]
    if known:
        assert sum("fs:[0xffffffffffffff80]" in each for each in text) == 2
    else:
        assert text.count("movsxd rax, fs:[rax]") == text.count("mov fs:[rdi], eax") == 1
        assert sum("0x5008" in each for each in text) == 2
    # somewhere else: the site's stack pointer, and no more
    assert text.count("ret 0x88") == 1


def normalised(text):
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("enters", [True, False])
@pytest.mark.parametrize("clobbers", [frozenset(), frozenset({"df"})])
def test_the_listing_is_what_the_code_says(enters, clobbers):
    code = NativeCode(RET, EVERY, clobbers, 8, 1)
    facts = HandlerFacts(code, (0x5000,), 0x4000, instances=0x3000, enters=enters, nanoseconds=1 << 31, pid=77)
    content, entry, listed = assemble_handler_call(FACTS, facts, 0x10000)
    listing = listed()
    assert listing
    assert entry > 0x10000
    assert (
        len(content)
        <= CALL_BYTES + 64 * len(EVERY) + len(code.code) + STORAGE_BYTES
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
    emit_memory_routines(asm, NAMES, ReadingFacts())
    area, made = memory_routines(asm)
    yield made
    assert area


def memory_routines(asm):
    area, address = executable(asm.finish(0))
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
    return area, {name: kind(address + asm.offset_of(name)) for name in NAMES}


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
    emit_memory_routines(asm, NAMES, ReadingFacts(system_calls=False, pid=1, stack_block=0x690))
    text = [text for _, _, text in disassemble.format(asm.finish(0), 0)]
    assert "syscall" not in text
    area, made = memory_routines(asm)
    source, target = ctypes.create_string_buffer(b"hello", 64), ctypes.create_string_buffer(64)
    assert made["read"](address_of(target), address_of(source), 5) != 0
    assert made["read_text"](address_of(target), address_of(source), 5) == -1
    assert made["write"](address_of(target), address_of(source), 5) != 0
    assert area


def test_where_it_is_said_that_none_may_be_made_no_system_call_is():
    word = ctypes.c_uint32()
    asm = Assembler()
    emit_memory_routines(asm, NAMES, ReadingFacts(closed=ctypes.addressof(word)))
    area, made = memory_routines(asm)
    source, target = ctypes.create_string_buffer(b"hello", 64), ctypes.create_string_buffer(64)
    assert made["read"](address_of(target), address_of(source), 5) == 0
    word.value = 1
    assert made["read"](address_of(target), address_of(source), 5) != 0
    assert made["read_text"](address_of(target), address_of(source), 5) == -1
    assert made["write"](address_of(target), address_of(source), 5) != 0
    assert area


def own_stack():
    """Return the bounds of this thread's stack."""
    libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    libc.pthread_self.restype = ctypes.c_void_p
    assert libc.pthread_getattr_np(ctypes.c_void_p(libc.pthread_self()), attributes) == 0
    low, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert libc.pthread_attr_getstack(attributes, ctypes.byref(low), ctypes.byref(size)) == 0
    return low.value, low.value + size.value


def this_libc():
    """Return the code of this process's ``pthread_getattr_np``."""
    return ctypes.string_at(ctypes.cast(ctypes.CDLL(None).pthread_getattr_np, ctypes.c_void_p), 512)


@pytest.mark.parametrize("main", [True, False])
def test_a_thread_reads_its_own_stack_without_the_kernel(main):
    offset = stack_block_offset(this_libc())
    assert offset
    found = []

    def read():
        low, end = own_stack()
        main_stack = range(low, end) if main else range(0x1000, 0x2000)
        asm = Assembler()
        emit_memory_routines(asm, NAMES, ReadingFacts(False, stack_block=offset, main_stack=main_stack))
        area, made = memory_routines(asm)
        for place, size in ((end - 40, 40), (end - 33, 33), (end - 8, 3), (end - 8, 0)):
            target = ctypes.create_string_buffer(b"\xee" * 64, 64)
            assert made["read"](address_of(target), place, size) == 0
            assert target.raw[:size] == ctypes.string_at(place, size)
            assert set(target.raw[size:]) == {0xEE}
        target = ctypes.create_string_buffer(64)
        for place, size in ((end - 8, 9), (end, 1), (low, 8), (0, 8), ((1 << 64) - 4, 8)):
            assert made["read"](address_of(target), place, size) != 0
        assert area
        found.append(True)

    if main:
        read()
    else:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    assert found


def test_the_offset_of_the_stack_is_not_guessed():
    assert stack_block_offset(bytes(64)) is None
    assert stack_block_offset(b"\x90" * 64) is None
    load, size, test = bytes.fromhex("498b8690060000"), bytes.fromhex("498b9698060000"), bytes.fromhex("4885c0")
    assert stack_block_offset(load + test + size) == 0x690
    assert stack_block_offset(load + size) is None
    assert stack_block_offset(load + test + load) is None


@pytest.mark.parametrize("known", [os.getpid(), 1 << 22], ids=["ours", "none"])
def test_a_process_that_is_not_the_known_one_asks_who_it_is(known):
    """Nobody has the second id; a block is open, as it is in a child that shares the memory."""
    gate = ctypes.create_string_buffer(b"\xff" * 8, 8)
    asm = Assembler()
    emit_memory_routines(asm, NAMES, ReadingFacts(pid=known, slot=0x10, gate=address_of(gate)))
    area, made = memory_routines(asm)
    source, target = ctypes.create_string_buffer(b"hello", 64), ctypes.create_string_buffer(64)
    assert made["read"](address_of(target), address_of(source), 5) == 0
    assert target.value == b"hello"
    assert made["write"](address_of(target), address_of(source, 1), 4) == 0
    assert target.value == b"elloo"
    assert made["read"](address_of(target), 8, 4) != 0
    assert area


def test_the_listing_of_a_chain_is_what_its_code_says():
    inputs = (Input(InputKind.REGISTER, "rcx"), Input(InputKind.REGISTER, "r15"), Input(InputKind.STORAGE))
    first = HandlerFacts(NativeCode(RET, (*inputs, Input(InputKind.REGISTER, "rsi")), frozenset({"rsi"}), 8, 1), (1,))
    code = NativeCode(b"\x90" + RET, (*inputs, Input(InputKind.INSTANCE)), frozenset({"r9"}), 8, 1)
    second = HandlerFacts(code, (2,), instances=0x3000, enters=True)
    content, entry, listing = assemble_handler_chain(FACTS, (first, second, first), 0x10000)
    lines = [text for _, _, text in disassemble.format(content[entry - 0x10000 :], entry)]
    assert "(bad)" not in lines
    # one saving of all that any of them changes, one restoring
    pushes = [text.split()[1] for text in lines[:12] if text.startswith("push ")]
    assert pushes == ["rax", "rax", "rbx", "rdi", "rcx", "rdx", "rsi", "r9", "r11"]
    assert lines.count("ret") == 1 + 3  # the routine's and the handlers'
    assert lines.count("inc qword ptr [rbx+rax]") == 3
    assert lines.count("lock inc qword ptr [rdi+rax]") == 3
    # what the first one may have changed comes from where it is saved, the rest from where it is
    assert lines.count("mov [rsp], rcx") == 1
    assert lines.count("mov [rsp+0x8], r15") == 3
    assert listing().count("call handler") == 3
    assert len(content) <= chain_bytes((first, second, first))


@pytest.mark.parametrize(
    ("changes", "follows"),
    [
        ({}, True),
        ({"inputs": (Input(InputKind.REGISTER, "rip", written=True),)}, False),
        ({"inputs": (Input(InputKind.REGISTER, "rsp", written=True),)}, False),
        ({"inputs": (Input(InputKind.CONTEXT, "errno"),)}, False),
        ({"inputs": (Input(InputKind.INSTANCE),)}, False),
        ({"clobbers": frozenset({"df"})}, False),
        ({"vectors": True}, False),
    ],
)
def test_what_can_be_called_with_others(changes, follows):
    """Not what sends the thread elsewhere, floats, strings, nor a second one with an instance."""
    first = HandlerFacts(NativeCode(RET, (Input(InputKind.INSTANCE),), frozenset(), 8, 1), instances=1, enters=True)
    plain = NativeCode(RET, (), frozenset(), 8, 1)
    assert can_follow([first], HandlerFacts(plain._replace(**changes))) is follows
    assert can_follow([], HandlerFacts(plain, takes_target=True)) is False
    reads = HandlerFacts(plain._replace(inputs=(Input(InputKind.ROUTINE, "read"),)))
    assert can_follow([reads], reads)
    assert not can_follow([reads], replace(reads, reading=ReadingFacts(system_calls=False)))
    assert not can_follow([HandlerFacts(plain)] * 4, HandlerFacts(plain))
