"""The routines by which handlers ask the kernel, run in this very process, and their assembly."""

import ctypes
import mmap
import re
import threading
import time
from pathlib import Path

import pytest

from anyprobe.isa import disassemble
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.handlers.context_routines import NAMES, emit_context_routines
from anyprobe.splice.codegen.handlers.memory_routines import ReadingFacts

CALLEE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)


def made(*, allowed):
    asm = Assembler()
    emit_context_routines(asm, NAMES, ReadingFacts(system_calls=allowed))
    code = asm.finish(0)
    area = mmap.mmap(-1, 1 << 14, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    return area, {name: CALLEE(address + asm.offset_of(name)) for name in NAMES}


@pytest.fixture(scope="module")
def routines():
    area, found = made(allowed=True)
    yield found
    assert area


def test_the_listing_is_what_the_code_says():
    asm = Assembler()
    emit_context_routines(asm, NAMES, ReadingFacts())
    code = asm.finish(0x1000)
    shown = [text for _, _, text in disassemble.format(code, 0x1000)]
    assert "(bad)" not in shown
    assert shown.count("syscall") == 4
    claimed = re.findall(r"\b(?:push|pop) r\w+", asm.listing(0x1000))
    assert [text for text in shown if re.fullmatch(r"(?:push|pop) r\w+", text)] == claimed


def test_the_name_of_a_thread(routines):
    target = ctypes.create_string_buffer(b"?" * 24)
    assert routines["comm"](ctypes.addressof(target), 0, 0) == len(Path("/proc/thread-self/comm").read_text()) - 1
    assert target.raw[:16].rstrip(b"\0").decode() == Path("/proc/thread-self/comm").read_text()[:-1]
    assert target.raw[16:24] == b"?" * 8


def test_the_longest_name(routines):
    found = []

    def run():
        libc = ctypes.CDLL(None)
        libc.prctl(15, b"fifteen letters")
        target = ctypes.create_string_buffer(24)
        found.append((routines["comm"](ctypes.addressof(target), 0, 0), target.value))
        libc.prctl(15, b"")
        found.append((routines["comm"](ctypes.addressof(target), 0, 0), target.value))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(15, b"fifteen letters"), (0, b"")]


def test_as_much_as_can_be_read(routines):
    area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    area[mmap.PAGESIZE - 4 : mmap.PAGESIZE] = b"last"
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    target = ctypes.create_string_buffer(64)
    there = ctypes.addressof(target)
    assert routines["peek"](there, start + mmap.PAGESIZE - 4, 64) == 4
    assert target.value == b"last"
    assert routines["peek"](there, start, 64) == 64
    assert routines["peek"](there, start + mmap.PAGESIZE, 64) < 0
    assert routines["peek"](there, 8, 64) < 0
    libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 3)


def test_how_long_a_thread_has_been_on_processors(routines):
    before = time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)
    found = routines["cpu_time"](0, 0, 0)
    assert before < found < time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)


def test_where_system_calls_are_filtered_nothing_is_known():
    area, routines = made(allowed=False)
    target = ctypes.create_string_buffer(b"?" * 24)
    assert routines["comm"](ctypes.addressof(target), 0, 0) == -1
    assert routines["peek"](ctypes.addressof(target), ctypes.addressof(target), 8) == -1
    assert routines["cpu_time"](0, 0, 0) == -1
    assert target.value == b"?" * 24
    assert area
