"""Programs of BPF: loaded, run, attached, and what the kernel says of them."""

import ctypes
import errno
import os
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from anyprobe.core.code import BpfProgram
from anyprobe.core.errors import KernelRefused, TargetError
from anyprobe.target.kernel import bpf, descriptors, perf

_LOAD, _RUN, _OPEN_RAW, _CREATE_LINK = 5, 10, 17, 28
PROGRAM_OF_A_KPROBE: Final = 2
"""``BPF_PROG_TYPE_KPROBE``: its context is the registers."""
PROGRAM_OF_AN_EVENT: Final = 5
"""``BPF_PROG_TYPE_TRACEPOINT``: its context is the record of the event."""
PROGRAM_OF_A_SAMPLE: Final = 7
"""``BPF_PROG_TYPE_PERF_EVENT``: for software events and timers."""
PROGRAM_OF_A_TRACEPOINT: Final = 17
"""``BPF_PROG_TYPE_RAW_TRACEPOINT``: its context is the words that the tracepoint passes."""
PROGRAM_OF_A_FUNCTION: Final = 26
"""``BPF_PROG_TYPE_TRACING``: its context is the parameters of the function, by its type."""
PROGRAM_OF_A_SYSTEM_CALL: Final = 31
"""``BPF_PROG_TYPE_SYSCALL``: its context is memory of the program that runs it, which it may read and write."""
TRACED: Final = 23
"""``BPF_TRACE_RAW_TP``."""
ENTRY: Final = 24
"""``BPF_TRACE_FENTRY``."""
EXIT: Final = 25
"""``BPF_TRACE_FEXIT``."""
_EVENT, MULTI = 41, 42
_SLEEPABLE = 1 << 4
_MAP, _MAP_VALUE = 1, 2
"""In the source register of a 16-byte load: a map, and the address of a value in a map."""
_LOG_BYTES, _TRACE, _SUMMARY, _WORDS = 1 << 20, 1, 4, 6
_PROCESSED = r"processed (\d+) insns"
_STEP = r"(?m)^(\d+): \("
_NOT_THE_PROGRAM = frozenset({errno.EPERM, errno.ENOMEM, *descriptors.TOO_MANY})
"""What the kernel says where the verifier has nothing against a program."""
_READS_THE_KERNEL = "bpf_probe_read_kernel"
"""The beginning of the names of helper functions that are not there in a locked-down kernel."""
_LOAD_TRIES = 5
"""As libbpf has it: the verifier gives up with ``EAGAIN`` when a signal is to be handled."""
_PROGRAM_INFO_BYTES, _RECURSION_AT = 232, 208
_LINK_INFO_BYTES, _EVENT_MISSED_AT, _MULTI_MISSED_AT = 64, 48, 32


class VerifierRefusal(TargetError):  # noqa: N818 - like the refusals of sites
    """The kernel's verifier does not accept a program; the text ends with its words."""

    def __init__(self, refusal: KernelRefused, log: str, trace: str) -> None:
        """Keep what it says, and what it has gone through if there is a trace of that."""
        self.words = log.strip().splitlines()[-_WORDS:]
        super().__init__("\n".join([str(refusal), *self.words]))
        steps = re.search(_PROCESSED, log)
        self.is_of_code = steps is not None and int(steps[1]) > 0
        """Whether it is about the instructions, and not about what they are to be attached to."""
        found = re.findall(_STEP, trace)
        self.at = int(found[-1]) if found else None
        """The instruction at which it stopped, where that is known."""

    @property
    def because(self) -> str:
        """What forbids something to programs of any kind, nothing where it is up to the program."""
        reads = any(_READS_THE_KERNEL in each for each in self.words)
        locked = descriptors.locked_down() if reads else ""
        return f"programs may not read the kernel's memory: {locked}" if locked else ""


class Kind(NamedTuple):
    """What a program is for: its type, how it is attached, and to which function or tracepoint of which module."""

    type: int
    attached: int = 0
    function: int = 0
    """The number of its type in BTF."""
    module: int = 0
    """A descriptor of the BTF of a module, 0 for the kernel's own."""


SYSTEM_CALL = Kind(PROGRAM_OF_A_SYSTEM_CALL)


def placed(program: BpfProgram, maps: Mapping[int, int], tables: Mapping[int, int] | None = None) -> bytes:
    """Return the instructions with the descriptors of the maps that stand for storages in them.

    ``tables`` are those of hash maps and stacks, by storage.
    """
    code = bytearray(program.code)
    for each in program.references:
        at = 8 * each.index
        offset = struct.unpack_from("<i", code, at + 4)[0]
        code[at + 1] = code[at + 1] & 0xF | (_MAP if each.table else _MAP_VALUE) << 4
        struct.pack_into("<i", code, at + 4, (tables or {})[each.storage] if each.table else maps[each.storage])
        struct.pack_into("<i", code, at + 12, 0 if each.table else offset)
    return bytes(code)


def load(code: bytes, kind: Kind = SYSTEM_CALL, name: str = "anyprobe") -> int:
    """Load a program and return its descriptor; raise ``VerifierRefusal`` with the verifier's last words."""
    try:
        return _load(code, kind, name, None)
    except KernelRefused as failure:
        if failure.errno in _NOT_THE_PROGRAM:
            raise
        log, trace = (ctypes.create_string_buffer(_LOG_BYTES) for _ in range(2))
        try:
            return _load(code, kind, name, log, _SUMMARY)
        except KernelRefused as again:
            said = log.value.decode(errors="replace")
            if not said.strip() or again.errno in _NOT_THE_PROGRAM:
                raise
            with suppress(KernelRefused):  # as it has to be
                os.close(_load(code, kind, name, trace, _TRACE))
            steps = trace.value.decode(errors="replace")
            if re.search(_PROCESSED, steps) is None:  # there was no room for it, and older kernels keep the beginning
                steps = ""
            raise VerifierRefusal(again, said, steps) from None


def _load(code: bytes, kind: Kind, name: str, log: "ctypes.Array[ctypes.c_char] | None", level: int = 0) -> int:
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    flags = _SLEEPABLE if kind.type == PROGRAM_OF_A_SYSTEM_CALL else 0
    logged = (0, 0, 0) if log is None else (level, _LOG_BYTES, ctypes.addressof(log))
    attribute = struct.pack("<IIQQ", kind.type, len(code) // 8, *map(ctypes.addressof, (instructions, licence)))
    attribute += struct.pack("<IIQII", *logged, 0, flags)
    attribute += struct.pack("<15sxII", name.encode(), 0, kind.attached)
    attribute = attribute.ljust(108, b"\0") + struct.pack("<II", kind.function, kind.module)
    for _ in range(_LOAD_TRIES - 1):
        try:
            return bpf.call(_LOAD, attribute)
        except KernelRefused as failure:
            if failure.errno != errno.EAGAIN:
                raise
    return bpf.call(_LOAD, attribute)


def run(descriptor: int, context: ctypes.Array[ctypes.c_uint64]) -> int:
    """Run a program of a system call on a context; return the lower half of its result."""
    size = ctypes.sizeof(context)
    test = struct.pack("<IIIIQQIIII", descriptor, 0, 0, 0, 0, 0, 0, 0, size, 0)
    test += struct.pack("<QQ", ctypes.addressof(context), 0)
    attribute = ctypes.create_string_buffer(test.ljust(bpf.ATTRIBUTE_BYTES, b"\0"), bpf.ATTRIBUTE_BYTES)
    bpf.call(_RUN, attribute)
    result: int = struct.unpack_from("<I", attribute, 4)[0]
    return result


def attach_raw(program: int, tracepoint: str) -> int:
    """Attach a program to a raw tracepoint by name; it is there until the returned descriptor is closed."""
    name = ctypes.create_string_buffer(tracepoint.encode())
    return bpf.call(_OPEN_RAW, struct.pack("<QI", ctypes.addressof(name), program))


def attach_typed(program: int) -> int:
    """Attach a program to what it was loaded for: the entry or exit of a function, or a typed tracepoint."""
    return bpf.call(_OPEN_RAW, struct.pack("<QI", 0, program), "attach a program to what it was loaded for")


def attach_to_event(program: int, event: int) -> int | None:
    """Attach a program to a perf event; both descriptors have to be closed in the end.

    None: by the event itself, since this kernel makes no link of both (before Linux 5.15) and so tells no misses.
    """
    try:
        return bpf.call(_CREATE_LINK, struct.pack("<IIII", program, event, _EVENT, 0))
    except KernelRefused as refusal:
        if refusal.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
            raise
        try:
            perf.set_program(event, program)
        except KernelRefused:
            raise refusal from None
    return None


def attach_to_many(program: int, cookies: Mapping[int, int], *, returning: bool = False) -> int:
    """Attach a program to many functions at once (``kprobe.multi``, Linux 5.18): addresses, with what it is told."""
    count = len(cookies)
    places, told = (ctypes.c_uint64 * count)(*cookies), (ctypes.c_uint64 * count)(*cookies.values())
    attribute = struct.pack("<IIIIII", program, 0, MULTI, 0, int(returning), count)
    attribute += struct.pack("<QQQ", 0, ctypes.addressof(places), ctypes.addressof(told))
    return bpf.call(_CREATE_LINK, attribute)


def recursion_misses(program: int) -> int | None:
    """Return how often a program did not run since one was running on the processor; None: the kernel tells not."""
    told, known = bpf.information(program, _PROGRAM_INFO_BYTES)
    return struct.unpack_from("<Q", told, _RECURSION_AT)[0] if known >= _RECURSION_AT + 8 else None


def link_misses(link: int, *, many: bool = False) -> int | None:
    """Return what the kernel missed at the kprobes of a link; None: the kernel tells not (before Linux 6.7).

    Both places grew into the structure together, and no other member made it as long before.
    """
    told, known = bpf.information(link, _LINK_INFO_BYTES)
    if known < _EVENT_MISSED_AT + 8:
        return None
    missed: int = struct.unpack_from("<Q", told, _MULTI_MISSED_AT if many else _EVENT_MISSED_AT)[0]
    return missed
