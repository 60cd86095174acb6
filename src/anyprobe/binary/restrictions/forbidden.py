"""Code that must never be displaced: restartable sequences, cancellation ranges, signal returns, text relocations."""

import re
import struct
from collections.abc import Sequence

import numpy as np

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.relocations import R_RELATIVE, Relocations
from anyprobe.binary.unwind.eh_frame import UnwindTable
from anyprobe.core.address import AddressRange
from anyprobe.core.arrays import among
from anyprobe.core.memory import MemoryFault
from anyprobe.core.refusal import Reason

# mov rax, 15; syscall (48 c7 c0 0f 00 00 00 0f 05), or with mov eax, 15 (b8 0f 00 00 00 0f 05): rt_sigreturn.
# Unwinders match these bytes at the return address of a signal handler, and look one byte before it.
# The search is for what both have, since a pattern that begins with a choice takes twenty times as long.
_SIGRETURN = re.compile(rb"\x0f\x00\x00\x00\x0f\x05")
_TO_RAX = (b"\x48\xc7\xc0", b"\xb8")
# The shuffling of six arguments into system call registers that musl's __syscall_cp_asm and glibc's (>= 2.41)
# __syscall_cancel_arch share: mov r11,rdi; mov rax,rsi; mov rdi,rdx; mov rsi,rcx; mov rdx,r8; mov r10,r9;
# mov r8,[rsp+8]; mov r9,[rsp+16]; mov [rsp+8],r11; syscall; ret. Their signal handlers compare the pc with its ends.
_CANCELLATION = re.compile(
    rb"\x49\x89\xfb\x48\x89\xf0\x48\x89\xd7\x48\x89\xce\x4c\x89\xc2\x4d\x89\xca"
    rb"\x4c\x8b\x44\x24\x08\x4c\x8b\x4c\x24\x10\x4c\x89\x5c\x24\x08\x0f\x05\xc3"
)
# The signature that the kernel demands before an abort address; glibc and everybody else use this one on x86-64.
_RSEQ_SIGNATURE = b"\x53\x30\x05\x53"
_DESCRIPTOR = struct.Struct("<IIQQQ")

_NARROW = (2, 10, 11)
"""Relocations of four bytes: R_X86_64_PC32, 32, 32S; the others are of eight, or are taken for that."""

Forbidden = tuple[AddressRange, str]


def forbidden_ranges(
    elf: ElfFile, ranges: Sequence[AddressRange], unwind: UnwindTable, fixes: Relocations
) -> tuple[tuple[Forbidden, ...], list[int]]:
    """Return the ranges with their reasons, and the entries that restartable sequences add."""
    found: list[Forbidden] = []
    for start, end in zip(unwind.starts[unwind.signal_frame].tolist(), unwind.ends[unwind.signal_frame], strict=True):
        found.append((AddressRange(start, int(end)), Reason.SIGNAL_RETURN.value))
    entries: list[int] = []
    signed = False
    for each in ranges:
        content = elf.read(each.start, len(each))
        for hit in _SIGRETURN.finditer(content):
            load = next((load for load in _TO_RAX if content.endswith(load, 0, hit.start())), None)
            if load is not None:
                area = AddressRange(each.start + max(hit.start() - len(load) - 1, 0), each.start + hit.end())
                found.append((area, Reason.SIGNAL_RETURN.value))
        found += [
            (_cancellation_range(content, hit, each.start), Reason.CANCELLATION_RANGE.value)
            for hit in _CANCELLATION.finditer(content)
        ]
        signed = signed or _RSEQ_SIGNATURE in content
    if signed:
        for descriptor in _descriptors(elf, fixes):
            sequence = _sequence(elf, ranges, *descriptor)
            found += sequence[0]
            entries += sequence[1]
    found += [(area, Reason.TEXT_RELOCATION.value) for area in _relocated(ranges, fixes)]
    return tuple(dict.fromkeys(found)), entries


def _relocated(ranges: Sequence[AddressRange], fixes: Relocations) -> list[AddressRange]:
    """Return the bytes of code that the loader changes (``DT_TEXTREL``): the file does not have what will run."""
    narrow = among(fixes.kinds, np.array(_NARROW, np.int64))
    starts = np.concatenate((fixes.offsets, fixes.in_place))
    sizes = np.concatenate((np.where(narrow, 4, 8), np.full(len(fixes.in_place), 8)))
    inside = np.zeros(len(starts), np.bool_)
    for each in ranges:
        inside |= (starts + sizes > each.start) & (starts < each.end)
    places = zip(starts[inside].tolist(), sizes[inside].tolist(), strict=True)
    return [AddressRange(start, start + size) for start, size in places]


def _cancellation_range(content: bytes, hit: re.Match[bytes], base: int) -> AddressRange:
    """Return the range from the check of the cancellation flag to the return after the system call."""
    start = hit.start()
    for head, tests in ((b"\x8b\x07", (b"\xf6\x07", b"\x85\xc0")),):  # mov eax,[rdi]; test byte [rdi],x | test eax,eax
        at = content.rfind(head, max(start - 16, 0), start)
        if at >= 0 and content[at + 2 : at + 4] in tests:
            start = at
    end = hit.end()
    if content[end : end + 1] in (b"\xeb", b"\xe9"):  # musl: __cp_cancel: jmp __cancel, right after
        end += 2 if content[end] == 0xEB else 5
    return AddressRange(base + start, base + end)


def _descriptors(elf: ElfFile, fixes: Relocations) -> list[tuple[int, int, int]]:
    """Return (start, post-commit offset, abort) of what may be ``struct rseq_cs``: its section, else all data."""
    section = elf.section("__rseq_cs")
    if section is not None:
        areas = [(section.address, section.size)]
    else:
        areas = [(each.vaddr, each.filesz) for each in elf.loads if not each.executable]
    relative = np.flatnonzero(fixes.kinds == R_RELATIVE)
    written = dict(zip(fixes.offsets[relative].tolist(), fixes.addends[relative].tolist(), strict=True))
    found: list[tuple[int, int, int]] = []
    for address, size in areas:
        first = address + 31 & ~31
        content = elf.read(first, max(address + size - first, 0) // 32 * 32)
        for at in _candidates(content):
            _, _, start, length, abort = _DESCRIPTOR.unpack_from(content, at)
            place = first + at
            found.append((written.get(place + 8, start), length, written.get(place + 24, abort)))
    return found


def _candidates(content: bytes) -> list[int]:
    """Return the offsets of 32-byte records that begin with version 0, no flags, and have a short length."""
    words = np.frombuffer(content, "<u8").reshape(-1, 4)
    hits = np.flatnonzero((words[:, 0] == 0) & (words[:, 2] > 0) & (words[:, 2] < 1 << 16))
    return [int(row) * 32 for row in hits]


def _sequence(
    elf: ElfFile, ranges: Sequence[AddressRange], start: int, length: int, abort: int
) -> tuple[list[Forbidden], list[int]]:
    """Return the ranges and entries of one restartable sequence, nothing if the record is something else."""
    inside = [each for each in ranges if start in each]
    if not inside or not any(abort in each for each in ranges):
        return [], []
    try:
        if elf.read(abort - 4, 4) != _RSEQ_SIGNATURE:
            return [], []
    except MemoryFault:
        return [], []
    # The signature is an operand (0f b9 3d SIG: ud1), so the instruction before the abort address begins 3 earlier.
    # After the abort address only the first instruction has to stay; 16 bytes hold any.
    return [
        (AddressRange(start, start + length), Reason.RSEQ.value),
        (AddressRange(abort - 7, abort + 16), Reason.RSEQ.value),
    ], [start, start + length, abort]
