"""Debug information that the compiler has split off (``-gsplit-dwarf``): the ``.dwo`` file of a unit."""

import os
from collections.abc import Iterator

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.objects.elf import ElfFile
from anyprobe.core.errors import UnsupportedTarget


def split_off(skeleton: dw.Unit, prefix: str) -> dw.Unit:
    """Return the unit that a skeleton stands for; raise ``UnsupportedTarget`` where its file is missing or another's.

    ``prefix``: the target's root. Addresses are the skeleton's.
    """
    name, others = skeleton.split, False
    for place in _places(skeleton, name, prefix):
        if not os.path.isfile(place):
            continue
        found = dw.Dwarf(ElfFile.open(place, unlinked=True), skeleton=skeleton)
        for unit in found.units:
            if unit.split_identity == skeleton.split_identity:
                return unit
        others = True
    why = "which is of another build" if others else "which is not there"
    raise UnsupportedTarget(f"its debug information is split off into {name}, {why}")


def _places(skeleton: dw.Unit, name: str, prefix: str) -> Iterator[str]:
    """Yield where the file may be: where the compiler has put it, in either root; beside the program."""
    compiled_in = skeleton.entry.attributes.get(dw.AT_COMP_DIR)
    whole = os.path.join(skeleton.text(*compiled_in) if compiled_in is not None else "", name)
    for before in dict.fromkeys((prefix, "")):
        if whole.startswith("/"):
            yield f"{before}{whole}"
    folder = os.path.dirname(os.path.realpath(skeleton.dwarf.path))
    yield os.path.join(folder, name)
    yield os.path.join(folder, os.path.basename(name))
