"""In which order the dynamic loader has the objects of a process: of functions of one name it binds the first."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress

from anyprobe.binary.images.modules import VDSO, LoadedObject
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import Memory, MemoryFault, read_word

_PT_DYNAMIC, _DT_DEBUG = 2, 21
_MAP, _NEXT = 8, 24
"""Where ``r_map`` lies in ``struct r_debug``, and ``l_next`` in ``struct link_map``, which begins with the bias."""
LOADERS = ("ld-linux", "ld-2", "ld.so", "ld-musl")
"""How the names of dynamic loaders begin."""
_MOST = 65_536
"""Entries of a list that is in order."""


def in_load_order(objects: Sequence[LoadedObject], memory: Memory) -> list[LoadedObject]:
    """Return objects in the order of loading; those of which the loader says nothing, and the vdso, come last."""
    order = {bias: number for number, bias in enumerate(_biases(objects, memory))}
    return sorted(objects, key=lambda each: (each.name == VDSO, order.get(each.bias, len(order)), each.bias))


def first_bias(objects: Sequence[LoadedObject], memory: Memory) -> int | None:
    """Return the bias of the first object of the loader's list, the program's; nothing before there is a list."""
    return next(iter(_biases(objects, memory)), None)


def _biases(objects: Sequence[LoadedObject], memory: Memory) -> list[int]:
    """Return the biases of the loader's list; of a damaged one, and in a static program, those that are to be had."""
    found: list[int] = []
    with suppress(MemoryFault, TargetError):
        found.extend(read_word(memory, entry) for entry in link_maps(objects, memory))
    return found


def loader_list(objects: Sequence[LoadedObject], memory: Memory) -> int:
    """Return the address of the loader's ``struct r_debug``, 0 in a static program and before the loader has set it.

    The executable has it; where that is the loader, which was given the program as an argument, the program.
    """
    for each in sorted(objects, key=lambda each: not each.is_executable):
        with suppress(TargetError, MemoryFault):  # its file cannot be read
            address = _debug_of(each, memory)
            if address:
                return address
            if each.is_executable and not each.name.startswith(LOADERS):
                return 0
    return 0


def _debug_of(loaded: LoadedObject, memory: Memory) -> int:
    table = next((each for each in loaded.image.segments if each.kind == _PT_DYNAMIC), None)
    if table is None or loaded.name == VDSO:
        return 0
    pairs = struct.iter_unpack("<QQ", memory.read(loaded.runtime(table.vaddr), table.filesz & ~15))
    return next((int(value) for tag, value in pairs if tag == _DT_DEBUG), 0)


def link_maps(objects: Sequence[LoadedObject], memory: Memory) -> Iterator[int]:
    """Yield the address of each ``struct link_map`` of the program's own namespace, in the order of loading."""
    debug = loader_list(objects, memory)
    entry = read_word(memory, debug + _MAP) if debug else 0
    for _ in range(_MOST):
        if not entry:
            return
        yield entry
        entry = read_word(memory, entry + _NEXT)
