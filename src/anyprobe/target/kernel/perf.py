"""perf_event_open(2): events that run a program of BPF, and those that sample tasks into a ring."""

import ctypes
import errno
import os
import struct
from functools import cache
from typing import Final, NamedTuple

from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel import bpf, descriptors
from anyprobe.target.system import gateway

_ATTRIBUTE_BYTES = 128
_DISABLED, _FREQUENCY = 1 << 0, 1 << 10
_HARDWARE, _SOFTWARE, _TRACEPOINT, _BREAKPOINT = 0, 1, 2, 5
_ENABLE, _SET_OUTPUT, _SET_PROGRAM = 0x2400, 0x2405, 0x40042408
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR, _NO_IDLE, _MAPPINGS, _NAMES = 1 << 1, 1 << 5, 1 << 6, 1 << 7, 1 << 8, 1 << 9
_TASKS, _ALL_IDENTIFIED, _NO_USER_CHAIN, _MAPPINGS_WITH_FILES = 1 << 13, 1 << 18, 1 << 22, 1 << 23
_EXECUTIONS, _BY_CLOCK, _SWITCHES = 1 << 24, 1 << 25, 1 << 26
TASK, TIME, ADDRESS, CHAIN, REGISTERS, STACK = 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 12, 1 << 13
"""What samples can have, in this order."""
_BP_SP_IP = 0b111 << 6
_GENERAL = 0xFF03FF
GENERAL_REGISTERS = (
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "rip", "rflags",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
"""What samples of watchpoints have, in this order."""
_READS, _WRITES = 1, 2
ANY_PROCESSOR = -1
_MONOTONIC = 1
_SEMAPHORE_BIT = 32
"""From which bit on a uprobe's configuration has the place of a semaphore (``format/ref_ctr_offset``)."""
_DEVICES = "/sys/bus/event_source/devices"
SOFTWARE: Final = {
    "cpu-clock": 0, "task-clock": 1, "page-faults": 2, "context-switches": 3, "cpu-migrations": 4, "minor-faults": 5,
    "major-faults": 6, "alignment-faults": 7, "emulation-faults": 8, "dummy": 9, "bpf-output": 10,
}  # fmt: skip
"""Software events by the names of perf and bpftrace."""
HARDWARE: Final = {
    "cpu-cycles": 0, "instructions": 1, "cache-references": 2, "cache-misses": 3, "branch-instructions": 4,
    "branch-misses": 5, "bus-cycles": 6, "frontend-stalls": 7, "backend-stalls": 8, "ref-cycles": 9,
}  # fmt: skip
"""The processor's events that the kernel knows by a name."""


def _open(what: str, attribute: bytes, processor: int, task: int = -1) -> int:
    buffer = ctypes.create_string_buffer(attribute.ljust(_ATTRIBUTE_BYTES, b"\0"), _ATTRIBUTE_BYTES)
    return descriptors.made(what, lambda: gateway.perf_event_open(ctypes.addressof(buffer), processor, task))


def _attribute(kind: int, config: int, *, period: int = 0, flags: int = 0, first: int = 0, second: int = 0) -> bytes:
    head = struct.pack("<IIQQQQQ", kind, _ATTRIBUTE_BYTES, config, period, 0, 0, flags)
    return head + struct.pack("<IIQQ", 0, 0, first, second)


@cache
def _device(name: str, file: str) -> int:
    """Return a number that the kernel shows of a source of events: its type, or the bit ``config:N``."""
    try:
        with open(f"{_DEVICES}/{name}/{file}") as shown:
            return int(shown.read().rpartition(":")[2])
    except FileNotFoundError as failure:
        raise KernelRefused(f"set a {name}", failure.errno or 0, f"the kernel was built without {name}s") from None


def open_tracepoint(number: int) -> int:
    """Return a descriptor of a tracepoint's event by its number in tracefs.

    It is not enabled: a program that is attached runs nevertheless, on all processors, and nothing else is done.
    """
    return _open("open a tracepoint", _attribute(_TRACEPOINT, number, flags=_DISABLED), bpf.first_processor())


def makes(source: str) -> bool:
    """Return whether this kernel has a source of events (``kprobe``, ``uprobe``), and shows it here."""
    return os.path.exists(f"{_DEVICES}/{source}/type")


def open_kprobe(address: int, *, returning: bool = False) -> int:
    """Return a descriptor of a new kprobe or kretprobe, which is gone when it is closed; as for tracepoints."""
    config = 1 << _device("kprobe", "format/retprobe") if returning else 0
    kind = _device("kprobe", "type")
    attribute = _attribute(kind, config, flags=_DISABLED, second=address)
    return _open(f"set a {'kretprobe' if returning else 'kprobe'}", attribute, bpf.first_processor())


def open_uprobe(path: str, offset: int, *, returning: bool = False, semaphore: int = 0) -> int:
    """Return a descriptor of a new uprobe or uretprobe in all processes, at an offset in a file; as for kprobes.

    ``semaphore`` is where in the file a 16-bit number is that the kernel increments in each process meanwhile.
    """
    config = 1 << _device("uprobe", "format/retprobe") if returning else 0
    config |= semaphore << _SEMAPHORE_BIT
    name = ctypes.create_string_buffer(os.fsencode(path))
    attribute = _attribute(
        _device("uprobe", "type"), config, flags=_DISABLED, first=ctypes.addressof(name), second=offset
    )
    return _open(f"set a {'uretprobe' if returning else 'uprobe'}", attribute, bpf.first_processor())


def open_software(name: str, processor: int, *, period: int = 1) -> int:
    """Return a descriptor of a software event on one processor that runs its program every ``period`` times."""
    return _open(f"open {name}", _attribute(_SOFTWARE, SOFTWARE[name], period=period), processor)


def open_timer(processor: int, *, hertz: int = 0, nanoseconds: int = 0) -> int:
    """Return a descriptor of a timer on one processor, by how often a second or every how many nanoseconds."""
    flags, period = (_FREQUENCY, hertz) if hertz else (0, nanoseconds)
    attribute = _attribute(_SOFTWARE, SOFTWARE["cpu-clock"], period=period, flags=flags)
    return _open("open a timer", attribute, processor)


def open_event(name: str, processor: int, every: int) -> int:
    """Return a descriptor of a software or hardware event that runs its program every so many times, once enabled."""
    kind, number = (_SOFTWARE, SOFTWARE[name]) if name in SOFTWARE else (_HARDWARE, HARDWARE[name])
    try:
        return _open(f"open {name}", _attribute(kind, number, period=every, flags=_DISABLED), processor)
    except KernelRefused as refusal:
        if kind != _HARDWARE or refusal.errno not in {errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV}:
            raise
        detail = "this machine has no such counter, or a virtual machine does not show it"
        raise KernelRefused(refusal.what, refusal.errno, detail) from None


class Sampling(NamedTuple):
    """How tasks are sampled."""

    hertz: int
    stack_bytes: int
    """How much of a stack a sample has."""
    kernel: bool
    """Whether time in the kernel is sampled, too, with the stack there."""


ALL = -1
"""In place of a task: all of them, idle ones left out."""


def open_sampler(task: int, processor: int, how: Sampling) -> int:
    """Return a descriptor of an event that samples a task by its time on a processor, and those that it makes later.

    Once it has a ring, what is mapped executable and which programs are executed are told there, too.
    """
    flags = (_NO_IDLE if task == ALL else _INHERIT) | _FREQUENCY | _telling(how)
    what = TASK | TIME | REGISTERS | STACK | (CHAIN if how.kernel else 0)
    clock = SOFTWARE["cpu-clock"]
    head = struct.pack("<IIQQQQQ", _SOFTWARE, _ATTRIBUTE_BYTES, clock, how.hertz, what, 0, flags)
    rest = struct.pack("<IIQQQQIi", 0, 0, 0, 0, 0, _BP_SP_IP, how.stack_bytes, _MONOTONIC)
    return _open("sample a task", head + rest, processor, task)


def open_switches(task: int, processor: int, how: Sampling) -> int:
    """Return a descriptor of an event that samples a task, and those that it makes, where it gives its processor up.

    Once it has a ring, it is told there, too, when the task has a processor again.
    """
    what = TASK | TIME | REGISTERS | STACK | (CHAIN if how.kernel else 0)
    switches = SOFTWARE["context-switches"]
    flags = _INHERIT | _SWITCHES | _telling(how)
    head = struct.pack("<IIQQQQQ", _SOFTWARE, _ATTRIBUTE_BYTES, switches, 1, what, 0, flags)
    rest = struct.pack("<IIQQQQIi", 0, 0, 0, 0, 0, _BP_SP_IP, how.stack_bytes, _MONOTONIC)
    return _open("sample a task where it sleeps", head + rest, processor, task)


def _telling(how: Sampling) -> int:
    """Return the flags of an event in whose ring it is told what is mapped, executed and made."""
    flags = _NO_HYPERVISOR | _MAPPINGS | _MAPPINGS_WITH_FILES | _NAMES | _EXECUTIONS | _TASKS
    return flags | _ALL_IDENTIFIED | _BY_CLOCK | _NO_USER_CHAIN | (0 if how.kernel else _NO_KERNEL)


class Watchpoint(NamedTuple):
    """Memory that a debug register watches: 1, 2, 4 or 8 bytes, at a multiple of as many."""

    address: int
    size: int
    reads: bool = False
    """Whether reads are met, too."""


def open_watchpoint(task: int, processor: int, how: Sampling, watched: Watchpoint) -> int:
    """Return a descriptor of an event that samples a task, and those that it makes, where it writes to some memory.

    It is met after the write. The debug register is in use until its ring is unmapped, whatever is closed before.
    """
    what = TASK | TIME | ADDRESS | REGISTERS | STACK | (CHAIN if how.kernel else 0)
    head = struct.pack("<IIQQQQQ", _BREAKPOINT, _ATTRIBUTE_BYTES, 0, 1, what, 0, _INHERIT | _telling(how))
    kind = _WRITES | _READS * watched.reads
    place = struct.pack("<IIQQ", 0, kind, watched.address, watched.size)
    rest = struct.pack("<QQIi", 0, _GENERAL, how.stack_bytes, _MONOTONIC)
    try:
        return _open("watch memory", head + place + rest, processor, task)
    except KernelRefused as refusal:
        if refusal.errno != errno.ENOSPC:
            raise
        detail = "no debug register is free: there are four, and a debugger or another watch has some"
        raise KernelRefused(refusal.what, errno.ENOSPC, detail) from None


def open_clock(task: int) -> int:
    """Return a descriptor of an event that counts the nanoseconds of a task, and of those that it makes, on processors.

    It needs no right to sample the kernel.
    """
    attribute = _attribute(_SOFTWARE, SOFTWARE["task-clock"], flags=_INHERIT | _NO_KERNEL)
    return _open("count the time of a task", attribute, ANY_PROCESSOR, task)


def share_ring(event: int, other: int) -> None:
    """Have an event write into the ring of another one on the same processor."""
    _control(event, _SET_OUTPUT, other, "write samples to one ring")


def enable(event: int) -> None:
    """Let an event run its program from now on."""
    _control(event, _ENABLE, 0, "enable an event")


def set_program(event: int, program: int) -> None:
    """Let an event run a program as long as it is open."""
    _control(event, _SET_PROGRAM, program, "attach a program to an event")


def _control(event: int, request: int, value: int, what: str) -> None:
    try:
        gateway.ioctl(event, request, value)
    except OSError as failure:
        raise KernelRefused(what, failure.errno or 0) from None


def count(event: int) -> int:
    """Return how often an event has happened while it was enabled, or its nanoseconds."""
    try:
        return int.from_bytes(gateway.read(event, 8), "little")
    except OSError as failure:
        raise KernelRefused("count an event", failure.errno or 0) from None
