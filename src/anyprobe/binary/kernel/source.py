"""Where a kernel's code is read from: a live kernel's memory and listing, or a ``vmlinux`` file."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from anyprobe.binary.kernel.addresses import BIAS, LOWEST, LowMemory
from anyprobe.binary.kernel.embedded import embedded_listing
from anyprobe.binary.kernel.image import KernelImage
from anyprobe.binary.kernel.names import KernelNames
from anyprobe.binary.kernel.tables import Areas, KernelTables
from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.symbols import STB_LOCAL, STT_FUNC, STT_NOTYPE, static_symbols
from anyprobe.core.address import AddressRange
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import Memory, MemoryFault

KERNEL = "vmlinux"


@dataclass(frozen=True, eq=False)
class KernelSource:
    """The symbols and the memory of one kernel; addresses within are those of the analysis."""

    names: KernelNames
    memory: Memory
    is_live: bool

    @classmethod
    def live(cls, listing: bytes, memory: Memory) -> "KernelSource":
        """Take the text of ``/proc/kallsyms``, and memory at the kernel's own addresses."""
        return cls(KernelNames(listing), LowMemory(memory), True)

    @classmethod
    def of_file(cls, path: str, listing: bytes | None = None) -> "KernelSource":
        """Read a ``vmlinux``; without symbols its own listing names them, or the ``System.map`` that is given."""
        elf = ElfFile.open(path)
        known = listing or listing_of(elf) or embedded_listing(elf.content)
        if not known:
            raise UnsupportedTarget(f"{path}: has no symbols, nor the kernel's listing; its System.map is needed")
        return cls(KernelNames(known), LowMemory(elf), False)

    @cached_property
    def kernel(self) -> KernelImage:
        """The kernel itself; raises ``UnsupportedTarget`` where the listing does not tell of its text."""
        text = self.names.between("_stext", "_etext")
        if not text:
            raise UnsupportedTarget("the kernel's symbols do not say where its code is (_stext, _etext)")
        areas = Areas.of_kernel(self.names)
        if self.is_live:  # it has applied them, and used their memory for something else
            areas = areas._replace(alternatives=None)
        constants = self.names.between("__start_rodata", "__end_rodata")
        return self._image(KERNEL, text, areas, () if constants is None else (constants,))

    def module(self, name: str, text: AddressRange, areas: Areas) -> KernelImage:
        """Return the image of a module, of which the kernel's own addresses are given."""
        low = Areas(*(None if each is None else _lowered(each) for each in areas))
        return self._image(name, _lowered(text), low, ())

    def _image(self, name: str, text: AddressRange, areas: Areas, constants: Iterable[AddressRange]) -> KernelImage:
        try:
            content = self.memory.read(text.start, len(text))
            data = tuple(self.memory.read(each.start, len(each)) for each in constants)
        except MemoryFault as fault:
            raise UnsupportedTarget(f"{name}: its code cannot be read: {fault}") from None
        return KernelImage(name, text.start, content, self.names, KernelTables(self.memory, areas), data)


def _lowered(area: AddressRange) -> AddressRange:
    return replace(area, start=area.start - BIAS, end=area.end - BIAS)


def listing_of(elf: ElfFile) -> bytes:
    """Return the symbols of a file as a listing."""
    table = static_symbols(elf)
    if table is None:
        return b""
    code = {number for number, each in enumerate(elf.sections) if each.flags & 4}
    lines: list[tuple[int, str]] = []
    columns = (table.symbols[name].tolist() for name in ("value", "info", "shndx"))
    for number, (value, info, section) in enumerate(zip(*columns, strict=True)):
        if value >= LOWEST and info & 15 in (STT_FUNC, STT_NOTYPE, 1):
            is_local, kind = info >> 4 == STB_LOCAL, info & 15
            is_code = section in code and (kind == STT_FUNC or (kind == STT_NOTYPE and not is_local))
            letter = "t" if is_code else "d"
            shown = letter if is_local else letter.upper()
            lines.append((value, f"{value:016x} {shown} {table.raw_name(number)}\n"))
    lines.sort(key=lambda line: line[0])
    return "".join(line for _, line in lines).encode()
