"""The look before ``sigaction``: its assembly, and what it says, in this very process."""

import ctypes
import mmap
import signal

import pytest

from anyprobe.isa import disassemble
from anyprobe.splice.userspace.sigaction_hook import FLAGS_AT, sets_watched_action


def test_it_is_a_few_instructions_that_write_nothing():
    code = sets_watched_action()
    text = [text for _, _, text in disassemble.format(code.code, 0)]
    assert text == [
        "mov ecx, [rdi]", "dec ecx", "cmp ecx, 0x3f", "ja 0x34",
        "mov rax, [rdi+0x8]", "test rax, rax", "je 0x34", "cmp qword ptr [rax], 0x1", "jbe 0x34",
        "test dword ptr [rax+0x88], 0x8000000", "jne 0x33",
        "cmp ecx, 0x1e", "ja 0x34", "mov eax, 0x4d8", "bt eax, ecx", "jae 0x34",
        "ret",
        "xor eax, eax", "ret",
    ]  # fmt: skip
    assert code.clobbers == {"rax", "rcx", "flags"}


ONSTACK, SIGINFO = 0x08000000, 4


@pytest.mark.parametrize(
    ("number", "flags", "said"),
    [
        (signal.SIGSEGV, 0, True),
        (signal.SIGILL, SIGINFO, True),
        (signal.SIGTRAP, 0, True),
        (signal.SIGBUS, 0, True),
        (signal.SIGFPE, 0, True),
        (signal.SIGSEGV | 1 << 40, 0, True),
        (signal.SIGSEGV, None, False),
        (signal.SIGALRM, SIGINFO, False),
        (signal.SIGALRM, ONSTACK, True),
        (signal.SIGALRM, None, False),
        (signal.SIGSEGV + 32, ~ONSTACK & 0xFFFFFFFF, False),
        (0xFFFF_FFFF, 0, False),
    ],
)
def test_it_says_when_a_handler_for_faults_or_on_another_stack_comes(number, flags, said):
    area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(sets_watched_action().code)
    call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(area)))
    action = ctypes.create_string_buffer(152)  # glibc's struct sigaction
    if flags is not None:
        action[:8] = (0x401000).to_bytes(8, "little")
        action[FLAGS_AT : FLAGS_AT + 4] = flags.to_bytes(4, "little")
    words = (ctypes.c_uint64 * 2)(number, 0 if flags is None else ctypes.addressof(action))
    assert bool(call(ctypes.addressof(words))) == said


@pytest.mark.parametrize(("number", "address"), [(1000, 8), (0, 8), (signal.SIGSEGV, None), (signal.SIGALRM, None)])
def test_it_looks_at_no_action_of_what_is_no_signal_and_wants_no_default(number, address):
    """glibc refuses such a number before it looks, and the default and to ignore are no handlers."""
    area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(sets_watched_action().code)
    call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(area)))
    action = ctypes.create_string_buffer(152)
    action[FLAGS_AT : FLAGS_AT + 4] = ONSTACK.to_bytes(4, "little")
    for default in (signal.SIG_DFL, signal.SIG_IGN):
        action[0] = int(default)
        words = (ctypes.c_uint64 * 2)(number, address or ctypes.addressof(action))
        assert not call(ctypes.addressof(words))
