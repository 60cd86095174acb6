"""Which instruction forms occur in files: one instance of each code, operand kinds, prefixes and shape of operand."""

import os
import struct
from pathlib import Path

from iced_x86 import Code, Decoder, OpKind, Register

from anyprobe.isa.decode import FLOWS, Flow

FOLDERS = ("/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/python3.11", "/usr/lib/gcc/x86_64-linux-gnu/12")
_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")


def executable_sections(path):
    """Yield (address, content) of a 64-bit x86 ELF file's executable sections, or of its segments if it has none."""
    content = Path(path).read_bytes()
    if content[:5] != b"\x7fELF\x02" or content[18:20] != b"\x3e\x00":
        return
    (at,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    for number in range(count):
        kind, flags, address, offset, length = struct.unpack_from("<IQQQQ", content, at + number * size + 4)
        if flags & 4 and kind == 1:  # SHF_EXECINSTR, SHT_PROGBITS
            yield address, content[offset : offset + length]


def elf_files(folders=FOLDERS):
    """Return every distinct ELF file below some folders, the small ones first."""
    found = {}
    for folder in folders:
        for directory, _, names in os.walk(folder):
            for name in names:
                path = Path(directory, name)
                try:
                    with path.open("rb") as file:
                        if file.read(5) == b"\x7fELF\x02":
                            status = path.stat()
                            found[status.st_dev, status.st_ino] = status.st_size, str(path.resolve())
                except OSError:
                    continue
    return [path for _, path in sorted(found.values())]


def prefixes(raw):
    """Return the set of legacy prefixes that change what an instruction is; segments count, branch hints do too."""
    count = 0
    while count < len(raw) and raw[count] in _PREFIXES:
        count += 1
    return frozenset(raw[:count])


def shape(iced):
    """Return what matters about a memory operand."""
    base, index = iced.memory_base, iced.memory_index
    if OpKind.MEMORY not in (iced.op_kind(number) for number in range(iced.op_count)):
        return ""
    known = {Register.NONE: "abs", Register.RIP: "rip", Register.EIP: "eip", Register.RSP: "rsp", Register.ESP: "esp"}
    return known.get(base, "base") + ("+index" if index != Register.NONE else "")


class Forms:
    """One instance of every form seen."""

    def __init__(self):
        self.instances = {}
        self.instructions = 0
        self.undecodable = 0
        self._seen = set()

    def add(self, iced, raw):
        kinds = tuple(iced.op_kind(number) for number in range(iced.op_count))
        key = iced.code, kinds, shape(iced), prefixes(raw), iced.has_op_mask, iced.is_broadcast
        if FLOWS[iced.code] is not Flow.NEXT:  # what is rewritten depends on all of these
            key += iced.op0_register, iced.memory_base, iced.memory_index, iced.memory_displ_size
        self.instances.setdefault(key, raw)

    def codes(self):
        """Return the instances in hex, in an order that does not change."""
        return sorted({raw.hex() for raw in self.instances.values()})

    def scan(self, content, address=0):
        """Decode some code from its first byte to its last."""
        seen, offset = self._seen, 0
        for iced in Decoder(64, content, ip=address):
            length = iced.len
            code = iced.code
            key = (
                code, iced.op0_kind, iced.op1_kind, iced.op2_kind, iced.memory_base, iced.memory_index == 0,
                iced.segment_prefix, iced.has_lock_prefix, iced.has_op_mask, iced.op0_register,
            )  # fmt: skip
            self.instructions += 1
            if code == Code.INVALID:
                self.undecodable += 1
            elif key not in seen:
                seen.add(key)
                self.add(iced, content[offset : offset + length])
            offset += length

    def scan_file(self, path, limit=None):
        for address, content in executable_sections(path):
            self.scan(content[:limit], address)
