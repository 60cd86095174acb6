"""The look in front of ``sigaction``: its assembly, and what it says, in this very process."""

import ctypes
import mmap
import signal

import pytest

from anyprobe.isa import disassemble
from anyprobe.splice.userspace.sigaction_hook import sets_fault_action


def test_it_is_a_few_instructions_that_write_nothing():
    code = sets_fault_action()
    text = [text for _, _, text in disassemble.format(code.code, 0)]
    assert text == [
        "mov ecx, [rdi]", "cmp ecx, 0x1f", "ja 0x16", "mov eax, 0x9b0", "bt eax, ecx", "jae 0x16",
        "mov rax, [rdi+0x8]", "ret",
        "xor eax, eax", "ret",
    ]  # fmt: skip
    assert code.clobbers == {"rax", "rcx", "flags"}


@pytest.mark.parametrize(
    ("number", "action", "said"),
    [
        (signal.SIGSEGV, 0x1234, True),
        (signal.SIGILL, 0x1234_0000_0000, True),
        (signal.SIGTRAP, 0x1234, True),
        (signal.SIGBUS, 0x1234, True),
        (signal.SIGFPE, 0x1234, True),
        (signal.SIGSEGV | 1 << 40, 0x1234, True),
        (signal.SIGSEGV, 0, False),
        (signal.SIGALRM, 0x1234, False),
        (signal.SIGSEGV + 32, 0x1234, False),
        (0xFFFF_FFFF, 0x1234, False),
    ],
)
def test_it_says_when_a_handler_for_faults_comes(number, action, said):
    area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(sets_fault_action().code)
    call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(area)))
    words = (ctypes.c_uint64 * 2)(number, action)
    assert bool(call(ctypes.addressof(words))) == said
