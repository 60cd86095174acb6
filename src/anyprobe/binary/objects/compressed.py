"""Sections of object files as they were before they were compressed (``SHF_COMPRESSED``)."""

import zlib

from anyprobe.binary.objects.elf import SHF_COMPRESSED, ElfFile, Section
from anyprobe.core.errors import UnsupportedTarget

_ZLIB, _ZSTD = 1, 2
_HEADER = 24
_SIZE_LIMIT = 4 << 30
"""Bytes that a section may have when it is unpacked."""


def unpacked(elf: ElfFile, section: Section, what: str) -> bytes:
    """Return a section's content, decompressed where it is not stored as it is.

    Args:
        elf: the file.
        section: one of its sections.
        what: what the section holds, for the message that it is damaged.

    Raises:
        UnsupportedTarget: it is damaged, too large, or compressed in an unknown way.
    """
    raw = elf.section_bytes(section)
    if not section.flags & SHF_COMPRESSED:
        return raw
    packing = int.from_bytes(raw[:4], "little")
    if packing not in (_ZLIB, _ZSTD):
        raise UnsupportedTarget(f"{elf.path}: {section.name} is compressed in a way that is not known ({packing})")
    size = int.from_bytes(raw[8:16], "little")
    if size > _SIZE_LIMIT:
        raise UnsupportedTarget(f"{elf.path}: {section.name} is too large ({size >> 20} MiB)")
    try:
        return _from_zstd(raw[_HEADER:], size) if packing == _ZSTD else _from_zlib(raw[_HEADER:], size)
    except ValueError:
        raise UnsupportedTarget(f"{elf.path}: damaged {what}") from None


def _from_zlib(packed: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(packed, max(size, 1))
    except zlib.error as error:
        raise ValueError from error


def _from_zstd(packed: bytes, size: int) -> bytes:
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            return bytes(stream.read(size))
    except zstandard.ZstdError as error:
        raise ValueError from error
