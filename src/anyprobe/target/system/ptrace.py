"""One function per ptrace request, nothing else."""

import ctypes
import struct

from anyprobe.target.system import gateway

_CONT, _GETREGS, _SETREGS, _DETACH, _SYSCALL, _POKETEXT = 7, 12, 13, 17, 24, 4
_SETOPTIONS, _GETREGSET, _SEIZE, _INTERRUPT = 0x4200, 0x4204, 0x4206, 0x4207
_GETSIGMASK, _SETSIGMASK, _GET_SYSCALL_INFO, _GET_RSEQ_CONFIGURATION = 0x420A, 0x420B, 0x420E, 0x420F
_SECCOMP_GET_FILTER, _GETSIGINFO = 0x420C, 0x4202
_SIGINFO_BYTES = 128
_SYSCALL_STOP = 0x85
_GET_SYSCALL_USER_DISPATCH_CONFIG = 0x4211
_AT_ENTRY = 1
_NT_X86_XSTATE = 0x202
_MOST_STATE = 16384
"""Bytes of extended state that are asked for: AVX-512 and AMX together have 11,008."""

# Without TRACESYSGOOD a controller that dies at a system call stop leaves a SIGTRAP pending, which kills.
OPTION_SYSGOOD = 1
OPTION_EXEC = 1 << 4
OPTION_SUSPEND_SECCOMP = 1 << 21
EVENT_STOP = 128
ALL_SIGNALS = (1 << 64) - 1

_REGISTER_NAMES = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip


class Registers(ctypes.Structure):
    """The general registers of a stopped thread (``struct user_regs_struct``); all values are unsigned."""

    _fields_ = [(name, ctypes.c_uint64) for name in _REGISTER_NAMES]

    r15: int
    r14: int
    r13: int
    r12: int
    rbp: int
    rbx: int
    r11: int
    r10: int
    r9: int
    r8: int
    rax: int
    rcx: int
    rdx: int
    rsi: int
    rdi: int
    orig_rax: int
    rip: int
    cs: int
    eflags: int
    rsp: int
    ss: int
    fs_base: int
    gs_base: int
    ds: int
    es: int
    fs: int
    gs: int

    def copy(self) -> "Registers":
        """Return an independent copy."""
        return Registers.from_buffer_copy(self)


def seize(tid: int, options: int = OPTION_SYSGOOD) -> None:
    """Attach without stopping; this waits while another thread of the process executes a program."""
    gateway.ptrace_waiting(_SEIZE, tid, 0, options)


def interrupt(tid: int) -> None:
    """Ask a seized thread to stop."""
    gateway.ptrace(_INTERRUPT, tid, 0, 0)


def seccomp_filter(tid: int, number: int) -> bytes:
    """Return the program of one filter of a stopped thread, numbered from 0; ``ENOENT``: there is none."""
    length = gateway.ptrace_count(_SECCOMP_GET_FILTER, tid, number, 0)
    program = ctypes.create_string_buffer(8 * length)
    gateway.ptrace_count(_SECCOMP_GET_FILTER, tid, number, ctypes.addressof(program))
    return program.raw


def detach(tid: int, signal: int = 0) -> None:
    """Let a stopped thread go, delivering a signal it met."""
    gateway.ptrace(_DETACH, tid, 0, signal)


def resume(tid: int, signal: int = 0) -> None:
    """Let a stopped thread run (``PTRACE_CONT``)."""
    gateway.ptrace(_CONT, tid, 0, signal)


def resume_to_syscall(tid: int, signal: int = 0) -> None:
    """Let a stopped thread run to its next system call entry or exit."""
    gateway.ptrace(_SYSCALL, tid, 0, signal)


def set_options(tid: int, options: int) -> None:
    """Change the options of a stopped thread."""
    gateway.ptrace(_SETOPTIONS, tid, 0, options)


def get_registers(tid: int, registers: Registers) -> None:
    """Fill ``registers``."""
    gateway.ptrace(_GETREGS, tid, 0, ctypes.addressof(registers))


def set_registers(tid: int, registers: Registers) -> None:
    """Set a stopped thread's general registers."""
    gateway.ptrace(_SETREGS, tid, 0, ctypes.addressof(registers))


def poke(tid: int, address: int, word: int) -> None:
    """Write eight bytes, also into memory that is not writable."""
    gateway.ptrace(_POKETEXT, tid, address, word)


def get_signal_mask(tid: int) -> int:
    """Return the mask that the thread has outside of a system call which swaps masks."""
    mask = ctypes.c_uint64()
    gateway.ptrace(_GETSIGMASK, tid, 8, ctypes.addressof(mask))
    return mask.value


def set_signal_mask(tid: int, mask: int) -> None:
    """Set a stopped thread's signal mask."""
    value = ctypes.c_uint64(mask)
    gateway.ptrace(_SETSIGMASK, tid, 8, ctypes.addressof(value))


def get_extended_state(tid: int) -> bytes:
    """Return x87, SSE, AVX and further state in the layout of XSAVE."""
    buffer = (ctypes.c_char * _MOST_STATE)()
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), len(buffer))
    gateway.ptrace(_GETREGSET, tid, _NT_X86_XSTATE, ctypes.addressof(vector))
    return ctypes.string_at(buffer, vector[1])


def stop_status(tid: int) -> int:
    """Return the wait status of the stop that a thread is in, also where another process has waited for that already.

    Raises ``OSError`` for a thread that is not in a stop of which that can be told.
    """
    buffer = ctypes.create_string_buffer(_SIGINFO_BYTES)
    gateway.ptrace(_GETSIGINFO, tid, 0, ctypes.addressof(buffer))
    signal, _, code = struct.unpack_from("<iii", buffer)
    is_own = code == _SYSCALL_STOP or code > 0xFF  # what is told of a signal is less
    return int(code if is_own else signal) << 8 | 0x7F


def at_syscall_entry(tid: int) -> bool:
    """Return whether a stopped thread is at the entry of a system call, which is then still to be made."""
    buffer = ctypes.create_string_buffer(128)
    gateway.ptrace(_GET_SYSCALL_INFO, tid, len(buffer), ctypes.addressof(buffer))
    return buffer.raw[0] == _AT_ENTRY


def get_rseq_area(tid: int) -> int:
    """Return the address of the thread's registered ``struct rseq``, or 0."""
    buffer = ctypes.create_string_buffer(24)
    gateway.ptrace(_GET_RSEQ_CONFIGURATION, tid, 24, ctypes.addressof(buffer))
    return int(struct.unpack_from("<Q", buffer)[0])


def get_dispatch(tid: int) -> tuple[int, int, int, int]:
    """Return how the thread's system calls are given back to it: mode (0: not), selector's address, offset, length."""
    config = (ctypes.c_uint64 * 4)()
    gateway.ptrace(_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, ctypes.sizeof(config), ctypes.addressof(config))
    return config[0], config[1], config[2], config[3]
