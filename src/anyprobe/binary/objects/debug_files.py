"""Symbols that were stripped away: separate debug files by build-id or link, and ``.gnu_debugdata``."""

import os
import zlib
from collections.abc import Sequence
from dataclasses import replace

from anyprobe.binary.objects import cache
from anyprobe.binary.objects.elf import ElfFile, Section
from anyprobe.binary.objects.symbols import SymbolTable, static_symbols
from anyprobe.core.errors import UnsupportedTarget

_MINI_LIMIT = 256 << 20


def separate_symbols(elf: ElfFile, roots: Sequence[str], prefix: str) -> SymbolTable | None:
    """Return ``.symtab`` of the object's separate debug file, if one is installed and truly belongs to it."""
    debug = separate_debug(elf, roots, prefix)
    table = static_symbols(debug) if debug is not None else None
    if debug is None or table is None:
        return None
    return replace(table, identity=debug.identity or ())


def separate_debug(elf: ElfFile, roots: Sequence[str], prefix: str, wanted: str = "") -> ElfFile | None:
    """Return the object's separate debug file, if one is installed and truly belongs to it; ``wanted``: a section."""
    for path in _candidates(elf, roots, prefix):
        if not os.path.isfile(path):
            continue
        try:
            debug = ElfFile.open(path)
        except UnsupportedTarget:
            continue
        if _belongs(elf, debug) and (not wanted or debug.section(wanted) is not None):
            return debug
    return None


MINI = ".gnu_debugdata"
"""The section with an ELF file of symbols alone, compressed."""


def mini_symbols(elf: ElfFile) -> SymbolTable | None:
    """Return the symbols of ``.gnu_debugdata``; None where there are none, or the section is damaged."""
    section = elf.section(MINI)
    if section is None:
        return None
    unpacked = _unpacked(elf, section)
    try:
        return static_symbols(ElfFile(f"{elf.path} ({MINI})", unpacked)) if unpacked else None
    except UnsupportedTarget:
        return None


def _unpacked(elf: ElfFile, section: Section) -> bytes:
    """Decompress the section, which takes so long for large libraries that the result is worth keeping."""
    packed = elf.section_bytes(section)
    source = {"size": len(packed), "checksum": zlib.crc32(packed)}  # files of one build-id may have been stripped apart
    kept = cache.load(elf.build_id, "debugdata")
    if kept is not None and kept[0] == source and "content" in kept[1]:
        return kept[1]["content"].tobytes()
    import lzma

    import numpy as np

    try:
        unpacked = lzma.LZMADecompressor().decompress(packed, _MINI_LIMIT)
    except (lzma.LZMAError, EOFError):
        return b""
    cache.store(elf.build_id, "debugdata", source, {"content": np.frombuffer(unpacked, np.uint8)})
    return unpacked


def _candidates(elf: ElfFile, roots: Sequence[str], prefix: str) -> list[str]:
    """Return where the debug file may be, within the target's root first."""
    paths: list[str] = []
    prefixes = [prefix, ""] if prefix else [""]
    if elf.build_id and len(elf.build_id) > 2:
        tail = f".build-id/{elf.build_id[:2]}/{elf.build_id[2:]}.debug"
        paths += [f"{before}{root}/{tail}" for before in prefixes for root in roots]
    link = _link(elf)
    if link:
        folder = os.path.dirname(elf.path)
        paths += [f"{folder}/{link}", f"{folder}/.debug/{link}"]
        plain = folder.removeprefix(prefix) if prefix else folder
        paths += [f"{before}{root}{plain}/{link}" for before in prefixes for root in roots]
    return [path for path in dict.fromkeys(paths) if path != elf.path]


def _link(elf: ElfFile) -> str:
    """Return the file name in ``.gnu_debuglink``."""
    section = elf.section(".gnu_debuglink")
    if section is None:
        return ""
    name = elf.section_bytes(section).partition(b"\0")[0].decode("utf-8", "replace")
    return name if "/" not in name else ""


def _belongs(elf: ElfFile, debug: ElfFile) -> bool:
    """Return whether a debug file was made from the object: by build-id, else by the link's checksum."""
    if elf.build_id or debug.build_id:
        return elf.build_id == debug.build_id
    section = elf.section(".gnu_debuglink")
    if section is None or section.size < 4:
        return False
    return int.from_bytes(elf.section_bytes(section)[-4:], "little") == zlib.crc32(debug.content)
