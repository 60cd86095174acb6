"""``.eh_frame``: function bounds, signal trampolines, and where each function's exception table is."""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.elf import PT_GNU_EH_FRAME, ElfFile, Segment
from anyprobe.binary.objects.leb128 import read_uleb
from anyprobe.core.arrays import unique

# Pointer encodings (DW_EH_PE_*): the low four bits are the format, the next three what the value is relative to.
OMIT = 0xFF
FORMATS = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x08: "<q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
PCREL, DATAREL = 0x10, 0x30
_WIDE = {0x00: "<i8", 0x03: "<u4", 0x04: "<u8", 0x08: "<i8", 0x0B: "<i4", 0x0C: "<i8"}


@dataclass(frozen=True, eq=False)
class UnwindTable:
    """What the unwind entries say, one row per entry, ascending by start."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    lsda: NDArray[np.int64]
    """Address of the exception table, 0 where there is none."""
    signal_frame: NDArray[np.bool_]
    """Whether the entry describes a signal-return trampoline."""
    framed: NDArray[np.bool_]
    """Whether something else than a return address is on top of the stack at the start: no function, but a part."""

    @classmethod
    def empty(cls) -> "UnwindTable":
        """Return a table without rows."""
        none = np.empty(0, np.int64)
        return cls(none, none, none, np.empty(0, np.bool_), np.empty(0, np.bool_))

    def covers(self, addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which addresses some entry tells of."""
        if not len(self.starts):
            return np.zeros(len(addresses), np.bool_)
        rows = np.searchsorted(self.starts, addresses, side="right") - 1
        return (rows >= 0) & (addresses < self.ends[np.maximum(rows, 0)])


@dataclass(frozen=True, slots=True)
class _Common:
    """What a CIE says of its entries."""

    pointer: int
    lsda: int
    augmented: bool
    signal: bool


def read_encoded(content: bytes, at: int, encoding: int, address: int) -> tuple[int, int]:
    """Return a pointer of an ``encoding`` at offset ``at`` (whose own address is ``address``) and the offset after."""
    form = FORMATS.get(encoding & 0x0F)
    if form is None:
        value, after = read_uleb(content, at)
    else:
        value, after = struct.unpack_from(form, content, at)[0], at + struct.calcsize(form)
    if encoding & 0x70 == PCREL and value:
        value += address
    return value & 0xFFFF_FFFF_FFFF_FFFF, after


def unwind_table(elf: ElfFile) -> UnwindTable:
    """Return every entry of ``.eh_frame``; an object without one has no rows.

    A table that cannot be read is an error rather than an absent one: it would hide exception landing pads.
    """
    try:
        places = entry_addresses(elf)
        return _read_entries(elf, places) if len(places) else UnwindTable.empty()
    except (LookupError, ValueError, struct.error, StopIteration) as error:
        raise elf.damaged(f"the unwind table: {error}") from error


def entry_addresses(elf: ElfFile) -> NDArray[np.int64]:
    """Return the addresses of all FDEs: from the sorted table of ``.eh_frame_hdr``, else by walking."""
    table = sorted_entries(elf)
    if table is not None:
        return table[:, 1]
    header = _header(elf)
    if header is None:
        section = elf.section(".eh_frame")
        return _walk(elf, section.address, section.size) if section and section.size else np.empty(0, np.int64)
    frame, _ = read_encoded(elf.read(header.vaddr, 12), 4, elf.read(header.vaddr, 2)[1], header.vaddr + 4)
    segment = next(each for each in elf.loads if each.vaddr <= frame < each.vaddr + each.filesz)
    return _walk(elf, frame, segment.vaddr + segment.filesz - frame)


def sorted_entries(elf: ElfFile) -> NDArray[np.int64] | None:
    """Return the table of ``.eh_frame_hdr``: where each FDE's code starts and where the FDE is; None without one."""
    header = _header(elf)
    if header is None:
        return None
    head = elf.read(header.vaddr, 12)
    version, frame_enc, count_enc, table_enc = head[:4]
    if version != 1 or count_enc != 0x03 or table_enc != DATAREL | 0x0B or frame_enc & 0x0F != 0x0B:
        return None
    count = struct.unpack_from("<I", head, 8)[0]
    table: NDArray[Any] = elf.array("<i4", header.vaddr + 12, 2 * count)
    return table.astype(np.int64).reshape(-1, 2) + header.vaddr


def _header(elf: ElfFile) -> Segment | None:
    return next((each for each in elf.segments if each.kind == PT_GNU_EH_FRAME), None)


def _walk(elf: ElfFile, address: int, size: int) -> NDArray[np.int64]:
    """Return the FDE addresses of an ``.eh_frame`` without a usable table."""
    content = elf.read(address, size)
    places: list[int] = []
    at = 0
    while at + 8 <= size:
        length, kind = struct.unpack_from("<II", content, at)
        if length in (0, 0xFFFF_FFFF) or at + 4 + length > size:
            break  # the terminator, or a 64-bit entry, which no x86-64 compiler writes
        if kind:
            places.append(address + at)
        at += 4 + length
    return np.array(places, np.int64)


def _read_entries(elf: ElfFile, places: NDArray[np.int64]) -> UnwindTable:
    """Decode all FDEs at once, one group for each kind of CIE."""
    low = int(places.min())
    segment = next(each for each in elf.loads if each.vaddr <= low < each.vaddr + each.filesz)
    raw: NDArray[Any] = elf.array("u1", segment.vaddr, segment.filesz)
    raw = np.concatenate([raw[low - segment.vaddr :], np.zeros(32, np.uint8)])
    content = raw.tobytes()
    offsets = places - low
    offsets = offsets[(offsets >= 0) & (offsets < len(raw) - 32)]
    backwards = _gather(raw, offsets + 4, "<u4")
    commons = offsets + low + 4 - backwards
    columns: list[NDArray[np.int64]] = []
    for common in unique(commons).tolist():
        shared = _read_common(elf, common)
        group = offsets[commons == common]
        columns.append(_read_group(raw, content, low, group, shared))
    rows = np.concatenate(columns, axis=1)
    rows = rows[:, (rows[0] > 0) & (rows[1] > rows[0])]
    rows = rows[:, np.argsort(rows[0], kind="stable")]
    return UnwindTable(rows[0], rows[1], rows[2], rows[3].astype(np.bool_), rows[4].astype(np.bool_))


def _gather(raw: NDArray[Any], offsets: NDArray[np.int64], kind: str) -> NDArray[np.int64]:
    """Return the numbers of a kind at unaligned offsets."""
    dtype = np.dtype(kind)
    sliding: NDArray[Any] = np.ndarray((len(raw) - dtype.itemsize + 1,), dtype, raw.data, strides=(1,))
    return sliding[offsets].astype(np.int64)


def _read_group(
    raw: NDArray[Any], content: bytes, low: int, offsets: NDArray[np.int64], shared: _Common
) -> NDArray[np.int64]:
    """Return starts, ends, exception tables, signal marks and frame marks of the FDEs that share a CIE."""
    kind = _WIDE[shared.pointer & 0x0F]
    width = np.dtype(kind).itemsize
    starts = _gather(raw, offsets + 8, kind)
    if shared.pointer & 0x70 == PCREL:
        starts += offsets + low + 8
    ends = starts + (_gather(raw, offsets + 8 + width, kind.replace("i4", "u4")))
    tables = np.zeros(len(offsets), np.int64)
    if shared.augmented and shared.lsda != OMIT:
        at = offsets + 8 + 2 * width
        if (raw[at] >= 0x80).any():
            at = np.array([read_uleb(content, each)[1] for each in at.tolist()], np.int64)
        else:
            at = at + 1
        values = _gather(raw, at, _WIDE[shared.lsda & 0x0F])
        pcrel = (at + low) if shared.lsda & 0x70 == PCREL else np.zeros_like(at)
        tables = np.where(values != 0, values + pcrel, 0)
    framed = _are_framed(raw, offsets, width, shared)
    return np.stack([starts, ends, tables, np.full(len(offsets), shared.signal, np.int64), framed.astype(np.int64)])


_DEF_CFA, _DEF_CFA_REGISTER, _DEF_CFA_OFFSET = 0x0C, 0x0D, 0x0E
_WORD = 8


def _are_framed(raw: NDArray[Any], offsets: NDArray[np.int64], width: int, shared: _Common) -> NDArray[np.bool_]:
    """Return which FDEs begin with a rule that the frame is larger than a return address.

    Functions are entered by a call and grow their frames after their first instruction.
    """
    if shared.signal:
        return np.zeros(len(offsets), np.bool_)
    rules = offsets + 8 + 2 * width
    if shared.augmented:
        rules = rules + 1 + raw[rules]
    inside = (rules + 1 < offsets + 4 + _gather(raw, offsets, "<u4")) & (rules + 1 < len(raw))
    rules = np.where(inside, rules, 0)
    rule, operand = raw[rules], raw[np.where(inside, rules + 1, 0)]
    larger = (rule == _DEF_CFA_OFFSET) & (operand != _WORD)
    framed: NDArray[np.bool_] = inside & (larger | (rule == _DEF_CFA) | (rule == _DEF_CFA_REGISTER))
    return framed


def _read_common(elf: ElfFile, address: int) -> _Common:
    """Read a CIE."""
    length = struct.unpack("<I", elf.read(address, 4))[0]
    body = elf.read(address + 4, length)
    version, end = body[4], body.index(b"\0", 5)
    augmentation = body[5:end].decode("ascii")
    at = end + 1 + (8 if augmentation.startswith("eh") else 0)
    _, at = read_uleb(body, at)  # code alignment
    _, at = read_uleb(body, at)  # data alignment, signed but of the same length
    at = at + 1 if version == 1 else read_uleb(body, at)[1]  # return address register
    pointer, lsda, signal = 0, OMIT, False
    if not augmentation.startswith("z"):
        return _Common(pointer, lsda, False, signal)
    _, at = read_uleb(body, at)
    for letter in augmentation[1:]:
        if letter == "R":
            pointer, at = body[at], at + 1
        elif letter == "L":
            lsda, at = body[at], at + 1
        elif letter == "P":
            _, at = read_encoded(body, at + 1, body[at], 0)
        elif letter == "S":
            signal = True
    return _Common(pointer, lsda, True, signal)
