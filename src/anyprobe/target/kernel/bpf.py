"""bpf(2) and its maps: the one place from which this system call is made."""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from functools import cache
from typing import Final

from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel import descriptors
from anyprobe.target.system import gateway

ATTRIBUTE_BYTES: Final = 144
"""Bytes of the largest command that is used; a kernel that knows fewer bytes wants zeros in the rest."""
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_NEXT_KEY, _INFO = 0, 1, 2, 4, 15
_COMMANDS = {
    0: "create a map", 1: "look up in a map", 2: "change a map", 4: "go through a map", 5: "load a program",
    10: "run a program", 11: "list programs", 13: "open a program", 15: "tell of an object",
    17: "attach to a raw tracepoint", 19: "open type information", 20: "tell of a descriptor",
    23: "list type information", 28: "attach a program", 30: "open a link", 31: "list links",
}  # fmt: skip
_HASH_MAP, _ARRAY_MAP, _STACKS_MAP, _RING = 1, 2, 7, 27
_NAME_BYTES, _TYPES_INFO_BYTES = 64, 32


def call(command: int, attribute: bytes | ctypes.Array[ctypes.c_char], what: str = "") -> int:
    """Make the system call; raise ``KernelRefused`` if it fails, which says ``what`` or else what the command does.

    An array is written to where the kernel answers.
    """
    if isinstance(attribute, bytes):
        attribute = ctypes.create_string_buffer(attribute.ljust(ATTRIBUTE_BYTES, b"\0"), ATTRIBUTE_BYTES)
    address = ctypes.addressof(attribute)
    said = what or _COMMANDS.get(command, f"bpf command {command}")
    return descriptors.made(said, lambda: gateway.bpf(command, address, ATTRIBUTE_BYTES))


def create_array(size: int) -> int:
    """Return a descriptor of a map with one value of ``size`` bytes, all zero."""
    return call(_MAP_CREATE, struct.pack("<IIII", _ARRAY_MAP, 4, size, 1))


def read_array(descriptor: int, size: int) -> bytes:
    """Return the value of such a map."""
    key, value = ctypes.c_uint32(0), ctypes.create_string_buffer(size)
    call(_MAP_LOOKUP, struct.pack("<I4xQQQ", descriptor, ctypes.addressof(key), ctypes.addressof(value), 0))
    return value.raw


def write_array(descriptor: int, content: bytes) -> None:
    """Replace the value of such a map, all of it: the kernel reads as many bytes as the value has."""
    key, value = ctypes.c_uint32(0), ctypes.create_string_buffer(content, len(content))
    call(_MAP_UPDATE, struct.pack("<I4xQQQ", descriptor, ctypes.addressof(key), ctypes.addressof(value), 0))


def create_hash(key_size: int, value_size: int, capacity: int) -> int:
    """Return a descriptor of a hash map, whose elements are there from the beginning."""
    return call(_MAP_CREATE, struct.pack("<IIII", _HASH_MAP, key_size, value_size, capacity))


def create_stacks(depth: int, capacity: int) -> int:
    """Return a descriptor of a map of stacks."""
    return call(_MAP_CREATE, struct.pack("<IIII", _STACKS_MAP, 4, 8 * depth, capacity))


def create_ring(size: int) -> int:
    """Return a descriptor of a ring buffer of ``size`` bytes, a power of two and at least a page."""
    return call(_MAP_CREATE, struct.pack("<IIII", _RING, 0, 0, size))


def look_up(descriptor: int, key: bytes, size: int) -> bytes | None:
    """Return the value of a key, ``None`` if it is not there."""
    name, value = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(size)
    try:
        call(_MAP_LOOKUP, struct.pack("<I4xQQQ", descriptor, ctypes.addressof(name), ctypes.addressof(value), 0))
    except KernelRefused as refusal:
        if refusal.errno != errno.ENOENT:
            raise
        return None
    return value.raw


def set_value(descriptor: int, key: bytes, value: bytes) -> None:
    """Give a key a value in a hash map."""
    name, content = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(value, len(value))
    call(_MAP_UPDATE, struct.pack("<I4xQQQ", descriptor, ctypes.addressof(name), ctypes.addressof(content), 0))


def keys_of(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield the keys of a map from which nothing is deleted meanwhile."""
    following = ctypes.create_string_buffer(size)
    address = 0
    while True:
        try:
            call(_MAP_NEXT_KEY, struct.pack("<I4xQQ", descriptor, address, ctypes.addressof(following)))
        except KernelRefused as refusal:
            if refusal.errno != errno.ENOENT:
                raise
            return
        yield following.raw
        key = ctypes.create_string_buffer(following.raw, size)
        address = ctypes.addressof(key)


def information(descriptor: int, size: int, given: bytes = b"") -> tuple[bytes, int]:
    """Return what the kernel tells of an object, and how many bytes of that it knows.

    ``given`` is what the structure holds before: addresses of memory for texts.
    """
    told = ctypes.create_string_buffer(given.ljust(size, b"\0"), size)
    attribute = struct.pack("<IIQ", descriptor, size, ctypes.addressof(told))
    buffer = ctypes.create_string_buffer(attribute.ljust(ATTRIBUTE_BYTES, b"\0"), ATTRIBUTE_BYTES)
    call(_INFO, buffer)
    known: int = struct.unpack_from("<I", buffer, 4)[0]
    return told.raw, known


def next_number(command: int, number: int) -> int | None:
    """Return the number of the next object of a kind after ``number``, None if there is none."""
    buffer = ctypes.create_string_buffer(struct.pack("<I", number).ljust(ATTRIBUTE_BYTES, b"\0"), ATTRIBUTE_BYTES)
    try:
        call(command, buffer)
    except KernelRefused as refusal:
        if refusal.errno != errno.ENOENT:
            raise
        return None
    found: int = struct.unpack_from("<I", buffer, 4)[0]
    return found


def name_of_types(descriptor: int) -> str:
    """Return whose types an object of BTF has: a module's name, or ``vmlinux``."""
    name = ctypes.create_string_buffer(_NAME_BYTES)
    information(descriptor, _TYPES_INFO_BYTES, struct.pack("<QIIQI", 0, 0, 0, ctypes.addressof(name), _NAME_BYTES))
    return name.value.decode()


@cache
def possible_processors() -> int:
    """Return how many processors the kernel may ever have, which is one more than the highest number."""
    with open("/sys/devices/system/cpu/possible") as file:
        return int(file.read().replace(",", "-").strip().rpartition("-")[2]) + 1


def online_processors() -> list[int]:
    """Return the numbers of the processors that are running."""
    path = "/sys/devices/system/cpu/online"
    with os.fdopen(descriptors.made("list its processors", lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))) as file:
        ranges = [part.partition("-")[::2] for part in file.read().strip().split(",")]
    return [number for first, last in ranges for number in range(int(first), int(last or first) + 1)]


def first_processor() -> int:
    """Return the number of a processor that is running."""
    return min(os.sched_getaffinity(0))
