"""The check in front of what sets filters for system calls: its assembly, and what it says, in this very process."""

import ctypes
import mmap

import pytest

from anyprobe.isa import disassemble
from anyprobe.splice.userspace.seccomp_hook import filter_check

PRCTL, SECCOMP, SET_SECCOMP = 157, 317, 22


@pytest.mark.parametrize("numbered", [False, True])
def test_it_is_a_few_instructions_that_write_one_word(numbered):
    code = filter_check(numbered=numbered)
    text = [text for _, _, text in disassemble.format(code.code, 0)]
    assert text[-1] == "ret"
    assert sum("[rax]" in each for each in text) == 1
    assert code.clobbers == {"rax", "flags"}


@pytest.mark.parametrize(
    ("numbered", "first", "second", "said"),
    [
        (False, SET_SECCOMP, 2, True),
        (False, SET_SECCOMP | 1 << 40, 2, True),
        (False, 15, SET_SECCOMP, False),
        (True, SECCOMP, 1, True),
        (True, PRCTL, SET_SECCOMP, True),
        (True, PRCTL, 15, False),
        (True, SET_SECCOMP, SET_SECCOMP, False),
        (True, 0, SET_SECCOMP, False),
    ],
)
def test_it_says_when_a_filter_comes(numbered, first, second, said):
    area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(filter_check(numbered=numbered).code)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(area)))
    word = ctypes.c_uint32()
    words = (ctypes.c_uint64 * 3)(first, second, ctypes.addressof(word))
    call(ctypes.addressof(words))
    assert bool(word.value) == said
