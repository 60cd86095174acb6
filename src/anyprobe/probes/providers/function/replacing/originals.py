"""What functions of a shared object need of the program: the way to what they replace, and addresses.

The way is a few instructions in the shared object's own last page of code, so it lasts as long as that: it marks the
call, by a register that no caller has anything in, and goes to the replaced function's entry. The handler there lets
marked calls go on. Where the function is not replaced any more, the way simply leads to it.
"""

import struct
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.core.address import PAGE
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.printable import printable
from anyprobe.isa.encode import encode, head

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.resolve import ResolvedSite

ORIGINAL, ADDRESS = "anyprobe_original_", "anyprobe_address_"
_MARK = 0xA9B6_0000_0000_0000
"""No address: its upper bits are neither a program's nor a kernel's."""
_WAY_BYTES = 32
_MARKING = encode("mov r11, mark").content[:2]
_JUMP = head("jmp qword [rel after]") + bytes(4)


def mark_of(entry: int) -> int:
    """Return what r11 has when the function at an entry is called as it was."""
    return _MARK | entry


def connect(host: "ProbeHost", loaded: "LoadedObject", site: "ResolvedSite") -> None:
    """Fill in what a shared object wants to know of a function that is about to be replaced, and of its object."""
    memory = host.process.mem
    addresses = {name: _address(site.object, name) for name in _wanted(loaded)}
    for name in site.function.names:
        for place in _places(loaded, ORIGINAL + name):
            memory.write(place, _way(host, loaded, site.address).to_bytes(8, "little"))
    for name, address in addresses.items():
        for place in _places(loaded, ADDRESS + name):
            memory.write(place, address.to_bytes(8, "little"))


def _places(loaded: "LoadedObject", name: str) -> list[int]:
    from anyprobe.binary.objects.variables import variables_named

    return [each.start + loaded.bias for each in variables_named(loaded.image.symbol_tables, name)]


def _wanted(loaded: "LoadedObject") -> set[str]:
    """Return the names of which a shared object wants to have the addresses."""
    tables = loaded.image.symbol_tables
    names = (name for table in tables for name in table.names(np.arange(len(table.symbols))))
    return {name.removeprefix(ADDRESS) for name in names if name.startswith(ADDRESS)}


def _address(loaded: "LoadedObject", name: str) -> int:
    """Return where the function or the variable of an object is that has a name; raise if there is not one."""
    starts = {each.start + loaded.bias for each in loaded.image.functions.lookup(name)} | {*_places(loaded, name)}
    if len(starts) != 1:
        many = f"{len(starts)} of this name" if starts else f"no {printable(name)}"
        raise UnsupportedTarget(f"{ADDRESS}{printable(name)}: {loaded.name} has {many}")
    return starts.pop()


def _way(host: "ProbeHost", loaded: "LoadedObject", entry: int) -> int:
    """Return where the way to the function at an entry is, made if it is not there yet."""
    code = _MARKING + struct.pack("<Q", mark_of(entry)) + _JUMP + struct.pack("<Q", entry)
    memory = host.process.mem
    segment = max((each for each in loaded.image.elf.loads if each.executable), key=lambda each: each.vaddr)
    end = segment.vaddr + segment.memsz + loaded.bias
    for place in range((end | PAGE - 1) + 1 - _WAY_BYTES, end + _WAY_BYTES - 1, -_WAY_BYTES):
        found = memory.read(place, len(code))
        if found == code:
            return place
        if found[:2] != _MARKING or found[8:10] != code[8:10]:  # not the way to another function
            memory.write(place, code)
            return place
    raise UnsupportedTarget(f"{loaded.name} has no room after its code for a way to the function that is replaced")
