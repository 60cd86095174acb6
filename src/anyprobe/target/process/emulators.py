"""Programs that are not run by the processor but by another program: what is mapped as their text is only read there.

A probe in such text is translated along with it, or never met; the emulator's own code is not what was asked for.
What has been renamed is known by texts that it contains.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from anyprobe.target.system import gateway
from anyprobe.target.system.procfs import Mapping

_TRANSLATORS = (
    (r"/(?:vgpreload_[\w-]+|[\w-]+-(?:amd64|x86)-linux)(?:\.so)?$", "valgrind", "valgrind"),
    (r"/libdynamorio[\w.-]*\.so[\d.]*$", "DynamoRIO", ""),
    (r"/(?:pinbin|libpin(?:vm|crt|3dwarf|dwarf)[\w.-]*\.so[\d.]*)$", "Pin", ""),
)
"""What translators map by which they are known: a pattern, a name, and what else the path must contain."""
_DELETED = " (deleted)"
"""What the kernel says of an executable that an upgrade has replaced."""
_GUESTS = (
    "aarch64(?:_be)?|alpha|arm(?:eb)?|cris|hexagon|hppa|i386|loongarch64|m68k|microblaze(?:el)?|mips(?:64|n32)?(?:el)?"
    "|nios2|or1k|ppc(?:64|64le)?|riscv(?:32|64)|s390x|sh4(?:eb)?|sparc(?:32plus|64)?|x86_64|xtensa(?:eb)?"
)
"""What qemu's user emulators are for; its other programs, ``qemu-img`` say, emulate nothing in their own process."""
_EMULATORS = rf"qemu-(?:{_GUESTS})(?:-static)?|rosetta|box(?:64|86)|FEX(?:Interpreter|Loader)?"
"""The executables of emulators, which may have been started through ``binfmt_misc``."""


_TEXTS = (
    ((b"VALGRIND_LAUNCHER\0", b"VALGRIND_LIB\0"), "valgrind"),
    ((b" [options] program [arguments...]", b"usage: qemu-", b"QEMU_LD_PREFIX\0"), "qemu"),
    ((b"BOX64_LOG\0", b"BOX64_NOBANNER\0"), "box64"),
)
"""What the executables of emulators contain, and of valgrind's launcher, all of it, and their names.

The first text of each is looked for first.
"""
_QEMU_NAME = rb"usage: (qemu-\w+) "
_CHUNK = 4 << 20
_OVERLAP = 128


def emulator_of(exe: str, mappings: Sequence[Mapping], image: str) -> str | None:
    """Return the name of what runs a process in the processor's place, if anything does.

    ``exe`` is the path of its executable, ``image`` one by which that can be opened even if it was replaced or deleted.
    """
    found = re.fullmatch(_EMULATORS, os.path.basename(exe.removesuffix(_DELETED)))
    if found is not None:
        return found[0]
    translators = [(re.compile(pattern).search, name, also) for pattern, name, also in _TRANSLATORS]
    for mapping in mappings:
        for search, name, also in translators:
            if search(mapping.path) and also in mapping.path:
                return name
    return _by_content(image, mappings)


def _by_content(image: str, mappings: Sequence[Mapping]) -> str | None:
    """Return the name of the emulator that an executable is, by the constants in it.

    What cannot be opened, as in a FUSE file system of another user, is taken to be none.
    """
    telling = {texts[0] for texts, _ in _TEXTS}
    try:
        if not any(text in content for content in _constants(image, mappings) for text in telling):
            return None  # of large executables, one look at each text of all takes too long
        return _named_by(_constants(image, mappings))
    except OSError:
        return None


def _named_by(contents: Iterable[bytes]) -> str | None:
    seen: set[bytes] = set()
    name = b""
    for content in contents:
        seen |= {text for texts, _ in _TEXTS for text in texts if text in content}
        if not name and (found := re.search(_QEMU_NAME, content)):
            name = found[1]
    whose = next((whose for texts, whose in _TEXTS if seen.issuperset(texts)), None)
    return name.decode() if whose == "qemu" and name else whose


def _constants(image: str, mappings: Iterable[Mapping]) -> Iterator[bytes]:
    """Yield what of an executable is mapped to be read only, in pieces that overlap.

    Text is left out where linkers keep constants apart from it; where not, the file's header lies with it, too.
    """
    fd = gateway.open_file(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        inode = os.fstat(fd).st_ino
        for mapping in mappings:
            if mapping.inode != inode or mapping.writable or (mapping.executable and mapping.offset):
                continue
            at, end, tail = mapping.offset, mapping.offset + mapping.end - mapping.start, b""
            while at < end and (content := gateway.pread(fd, min(_CHUNK, end - at), at)):
                yield tail + content
                at, tail = at + len(content), content[-_OVERLAP:]
    finally:
        gateway.close(fd)
