"""bpf(2): maps and programs of the kernel, as far as loading and test runs of handlers need them."""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Mapping

from anyprobe.core.code import BpfProgram
from anyprobe.core.errors import TargetError

_SYS_BPF = 321
_MAP_CREATE, _MAP_LOOKUP, _MAP_NEXT_KEY, _PROG_LOAD, _PROG_TEST_RUN, _TRACEPOINT_OPEN = 0, 1, 4, 5, 10, 17
_HASH_MAP, _ARRAY_MAP, _STACKS_MAP = 1, 2, 7
PROGRAM_OF_A_TRACEPOINT = 17
"""``BPF_PROG_TYPE_RAW_TRACEPOINT``: its context is the words that the tracepoint passes."""
PROGRAM_OF_A_SYSTEM_CALL = 31
"""``BPF_PROG_TYPE_SYSCALL``: its context is memory of whoever runs it, which it may read and write."""
_SLEEPABLE = 1 << 4
_ATTRIBUTE_BYTES = 144
_MAP, _MAP_VALUE = 1, 2
"""In the source register of a 16-byte load: a map, and the address of a value in a map."""
_LOG_BYTES = 1 << 20
_LOAD_TRIES = 5
"""As libbpf has it: the verifier gives up with ``EAGAIN`` when a signal is to be handled."""


class VerifierRefusal(TargetError):  # noqa: N818 - like the refusals of sites
    """The kernel's verifier does not accept a program; the text ends with its words."""


def _bpf(command: int, attribute: bytes) -> int:
    buffer = ctypes.create_string_buffer(attribute.ljust(_ATTRIBUTE_BYTES, b"\0"), _ATTRIBUTE_BYTES)
    library = ctypes.CDLL(None, use_errno=True)
    result: int = library.syscall(_SYS_BPF, command, buffer, ctypes.c_uint(_ATTRIBUTE_BYTES))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"bpf command {command}")
    return result


def create_array(size: int) -> int:
    """Return a descriptor of a map with one value of ``size`` bytes, all zero."""
    return _bpf(_MAP_CREATE, struct.pack("<IIII", _ARRAY_MAP, 4, size, 1))


def read_array(descriptor: int, size: int) -> bytes:
    """Return the value of such a map."""
    key, value = ctypes.c_uint32(0), ctypes.create_string_buffer(size)
    _bpf(_MAP_LOOKUP, struct.pack("<I4xQQQ", descriptor, ctypes.addressof(key), ctypes.addressof(value), 0))
    return value.raw


def create_hash(key_size: int, value_size: int, capacity: int) -> int:
    """Return a descriptor of a hash map, whose elements are there from the beginning."""
    return _bpf(_MAP_CREATE, struct.pack("<IIII", _HASH_MAP, key_size, value_size, capacity))


def create_stacks(depth: int, capacity: int) -> int:
    """Return a descriptor of a map of stacks."""
    return _bpf(_MAP_CREATE, struct.pack("<IIII", _STACKS_MAP, 4, 8 * depth, capacity))


def look_up(descriptor: int, key: bytes, size: int) -> bytes | None:
    """Return the value of a key, ``None`` if it is not there."""
    name, value = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(size)
    try:
        _bpf(_MAP_LOOKUP, struct.pack("<I4xQQQ", descriptor, ctypes.addressof(name), ctypes.addressof(value), 0))
    except FileNotFoundError:
        return None
    return value.raw


def keys_of(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield the keys of a map that nobody deletes from."""
    following = ctypes.create_string_buffer(size)
    address = 0
    while True:
        try:
            _bpf(_MAP_NEXT_KEY, struct.pack("<I4xQQ", descriptor, address, ctypes.addressof(following)))
        except FileNotFoundError:
            return
        yield following.raw
        key = ctypes.create_string_buffer(following.raw, size)
        address = ctypes.addressof(key)


def attach(descriptor: int, tracepoint: str) -> int:
    """Attach a program to a tracepoint of the kernel; it is there until the returned descriptor is closed."""
    name = ctypes.create_string_buffer(tracepoint.encode())
    return _bpf(_TRACEPOINT_OPEN, struct.pack("<QI", ctypes.addressof(name), descriptor))


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


def load(code: bytes, kind: int = PROGRAM_OF_A_SYSTEM_CALL) -> int:
    """Load a program and return its descriptor; raise ``VerifierRefusal`` with the verifier's last words."""
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    flags = _SLEEPABLE if kind == PROGRAM_OF_A_SYSTEM_CALL else 0
    head = struct.pack("<IIQQ", kind, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(licence))
    try:
        return _load(head + struct.pack("<IIQII", 0, 0, 0, 0, flags))
    except OSError as failure:
        if failure.errno == errno.EPERM:
            raise
        log = ctypes.create_string_buffer(_LOG_BYTES)
        logged = struct.pack("<IIQII", 1, _LOG_BYTES, ctypes.addressof(log), 0, flags)
        try:
            return _load(head + logged)
        except OSError as again:
            words = log.value.decode(errors="replace").strip().splitlines()
            raise VerifierRefusal("\n".join([f"the kernel refuses the program: {again}", *words[-6:]])) from None


def _load(attributes: bytes) -> int:
    for _ in range(_LOAD_TRIES - 1):
        try:
            return _bpf(_PROG_LOAD, attributes)
        except OSError as failure:
            if failure.errno != errno.EAGAIN:
                raise
    return _bpf(_PROG_LOAD, attributes)


def run(descriptor: int, context: ctypes.Array[ctypes.c_uint64]) -> int:
    """Run a program of a system call on a context; return the lower half of its result."""
    size = ctypes.sizeof(context)
    test = struct.pack("<IIIIQQIIII", descriptor, 0, 0, 0, 0, 0, 0, 0, size, 0)
    attribute = ctypes.create_string_buffer(
        (test + struct.pack("<QQ", ctypes.addressof(context), 0)).ljust(_ATTRIBUTE_BYTES, b"\0"), _ATTRIBUTE_BYTES
    )
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(_SYS_BPF, _PROG_TEST_RUN, attribute, ctypes.c_uint(_ATTRIBUTE_BYTES)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "bpf test run")
    result: int = struct.unpack_from("<I", attribute, 4)[0]
    return result


def refused_because() -> str | None:
    """Return why programs cannot be loaded here, ``None`` if they can."""
    trivial = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    try:
        os.close(load(trivial))
    except (OSError, VerifierRefusal) as failure:
        return f"the kernel loads no BPF programs here: {failure}"
    return None
