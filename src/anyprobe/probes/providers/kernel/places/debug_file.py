"""The running kernel's ``vmlinux`` with debug information, where it is installed: lines, and inlined functions."""

import bisect
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.target.kernel.symbols import KERNEL

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image

_PLACES = (
    "/usr/lib/debug/boot/vmlinux-{}", "/usr/lib/debug/lib/modules/{}/vmlinux", "/lib/modules/{}/build/vmlinux",
    "/lib/modules/{}/vmlinux", "/boot/vmlinux-{}",
)  # fmt: skip
_NOTES, _NOTES_OF_A_MODULE = "/sys/kernel/notes", "/sys/module/{}/notes/.note.gnu.build-id"


class DebugFile:
    """A ``vmlinux`` with debug information; its functions are known by their names, since the kernel may be moved."""

    def __init__(self, image: "Image") -> None:
        """Read nothing yet."""
        self._image = image
        from anyprobe.binary.objects.symbols import STT_FUNC, static_symbols

        table = static_symbols(image.elf)
        self._functions: list[tuple[int, str]] = []
        if table is not None:
            rows = (table.symbols["info"] & 0xF == STT_FUNC).nonzero()[0].tolist()
            self._functions = sorted((int(table.symbols["value"][row]), table.name(row)) for row in rows)

    def _function_at(self, address: int) -> tuple[str, int] | None:
        """Return the function that an address is in, and how far."""
        at = bisect.bisect_right(self._functions, address, key=lambda each: each[0]) - 1
        return None if at < 0 else (self._functions[at][1], address - self._functions[at][0])

    def places_of_line(self, file: str, line: int) -> tuple[list[tuple[str, int]], list[int]]:
        """Return where control comes to a line, in all functions, and all lines of the file that have code."""
        paths = self._image.debug_info.lines(file).values()
        places = {self._function_at(address) for lines in paths for address in lines.get(line, ())}
        return sorted(filter(None, places)), sorted({each for lines in paths for each in lines})

    def containing_inlined(self, name: str) -> list[str]:
        """Return the functions into which the compiler has put a function."""
        from anyprobe.binary.dwarf.inlined import inlined_instances

        places = map(self._function_at, inlined_instances(self._image.debug_info, name))
        return sorted({place[0] for place in places if place is not None})


@lru_cache(maxsize=1)
def installed() -> DebugFile:
    """Return the file for the running kernel; raise ``UnsupportedTarget`` with what is missing."""
    from anyprobe.binary.images.image import Image

    wanted, others = build_id(), []
    for path in _paths():
        image = Image.open(path)
        if image.elf.section(".debug_info") is None:
            others.append(f"{path} has none")
        elif wanted and image.build_id != wanted:
            others.append(f"{path} is of another kernel")
        else:
            return DebugFile(image)
    release = os.uname().release
    why = "; ".join([*others, f"it is in the package linux-image-{release}-dbg or kernel-debuginfo"])
    raise UnsupportedTarget(f"no vmlinux of Linux {release} with debug information is installed: {why}")


def _paths() -> Iterator[str]:
    release = os.uname().release
    return (path for form in _PLACES if os.path.isfile(path := form.format(release)))


def build_id(module: str = KERNEL) -> str | None:
    """Return the build-id of the running kernel, or of a module of it; None where it tells none."""
    from anyprobe.binary.objects.elf import NT_GNU_BUILD_ID, notes_in

    try:
        with open(_NOTES if module == KERNEL else _NOTES_OF_A_MODULE.format(module), "rb") as file:
            content = file.read()
    except OSError:
        return None
    found = (each.hex() for owner, kind, each in notes_in(content) if owner == "GNU" and kind == NT_GNU_BUILD_ID)
    return next(found, None)
