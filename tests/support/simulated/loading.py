"""Object files in a simulated target: mapped as the kernel maps them, without a loader that relocates them."""

import os
from pathlib import Path

from anyprobe.binary.images.image import Image
from anyprobe.binary.objects.elf import ElfFile
from anyprobe.core.address import page_ceil, page_floor
from anyprobe.core.mapping import MappingLike
from support.simulated.target import SimulatedTarget


class FilesByPath:
    """Finds the file of a mapping by its path: the target has no root of its own."""

    def open(self, mapping: MappingLike) -> Image:
        """Return the image of a mapped file."""
        return Image.open(mapping.path)


def load(target: SimulatedTarget, path: Path, base: int) -> int:
    """Map the segments of an object file from ``base`` on; return what its addresses are moved by."""
    elf, inode = ElfFile.open(str(path)), os.stat(path).st_ino
    bias = base - page_floor(elf.loads[0].vaddr)
    for each in elf.loads:
        perms = "".join(letter if each.flags & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))
        start, offset = page_floor(each.vaddr), page_floor(each.offset)
        size = page_ceil(each.vaddr + each.memsz) - start
        target.mem.add(start + bias, size, perms + "p", str(path), inode=inode, offset=offset)
        in_file = path.read_bytes()[offset : offset + page_ceil(each.vaddr + each.filesz) - start]
        target.mem.write(start + bias, in_file)
        if "w" in perms:
            end = each.vaddr + each.filesz
            target.mem.write(end + bias, bytes(start + size - end))
    return bias
