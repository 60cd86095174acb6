"""Programs that are not run by the processor but by another program: what is mapped as their text is only read there.

A probe in such text is translated along with it, or never met; the emulator's own code is not what was asked for.
"""

import os
import re
from collections.abc import Iterable

from anyprobe.target.procfs import Mapping

_TRANSLATORS = (
    (re.compile(r"/(?:vgpreload_[\w-]+|[\w-]+-(?:amd64|x86)-linux)(?:\.so)?$"), "valgrind", "valgrind"),
    (re.compile(r"/libdynamorio[\w.-]*\.so[\d.]*$"), "DynamoRIO", ""),
    (re.compile(r"/(?:pinbin|libpin(?:vm|crt|3dwarf|dwarf)[\w.-]*\.so[\d.]*)$"), "Pin", ""),
)
"""What translators map by which they are known: a pattern, a name, and what else the path must contain."""
_DELETED = " (deleted)"
"""What the kernel says of an executable that an upgrade has replaced."""
_GUESTS = (
    "aarch64(?:_be)?|alpha|arm(?:eb)?|cris|hexagon|hppa|i386|loongarch64|m68k|microblaze(?:el)?|mips(?:64|n32)?(?:el)?"
    "|nios2|or1k|ppc(?:64|64le)?|riscv(?:32|64)|s390x|sh4(?:eb)?|sparc(?:32plus|64)?|x86_64|xtensa(?:eb)?"
)
"""What qemu's user emulators are for; its other programs, ``qemu-img`` say, emulate nothing in their own process."""
_EMULATORS = re.compile(rf"qemu-(?:{_GUESTS})(?:-static)?|rosetta|box(?:64|86)|FEX(?:Interpreter|Loader)?")
"""The executables of emulators, which may have been started through ``binfmt_misc``."""


def emulator_of(exe: str, mappings: Iterable[Mapping]) -> str | None:
    """Return the name of what runs a process in the processor's place, if anything does."""
    found = _EMULATORS.fullmatch(os.path.basename(exe.removesuffix(_DELETED)))
    if found is not None:
        return found[0]
    for mapping in mappings:
        for pattern, name, also in _TRANSLATORS:
            if pattern.search(mapping.path) and also in mapping.path:
                return name
    return None
