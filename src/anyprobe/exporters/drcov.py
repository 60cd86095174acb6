"""Coverage as DynamoRIO's drcov files, version 2, which Lighthouse, lightkeeper, Cartographer and drcov2lcov read.

A table of modules as text, then eight bytes for each block that has run: ``u32 start, u16 size, u16 module``. Starts
are from where the module's file begins in memory. Larger blocks are written as several.
"""

import struct
from collections.abc import Iterator
from typing import TextIO

from anyprobe.core.printable import printable
from anyprobe.data.findings.coverage import Coverage, CoveredModule
from anyprobe.exporters.base import Measurement, Needs

_BLOCK = struct.Struct("<IHH")
_LARGEST = 0xFFFF


class Drcov:
    """Writes the blocks that have run. Neither how often, nor what is not known, can be said in the format."""

    name = "drcov"
    needs = Needs.COVERAGE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write one file."""
        stream.flush()
        stream.buffer.write(document(found.together.coverage or Coverage()))
        stream.buffer.flush()


def document(coverage: Coverage) -> bytes:
    """Return the file."""
    rows = [
        f"{number:3d}, {each.base:#x}, {each.end:#x}, 0x0, 0x0, 0x0, {printable(each.path)}\n"
        for number, each in enumerate(coverage.modules)
    ]
    blocks = [
        _BLOCK.pack(start, size, number)
        for number, module in enumerate(coverage.modules)
        for start, size in _blocks(module)
    ]
    head = (
        "DRCOV VERSION: 2\nDRCOV FLAVOR: drcov\n"
        f"Module Table: version 2, count {len(rows)}\n"
        "Columns: id, base, end, entry, checksum, timestamp, path\n"
        f"{''.join(rows)}BB Table: {len(blocks)} bbs\n"
    )
    return head.encode() + b"".join(blocks)


def _blocks(module: CoveredModule) -> Iterator[tuple[int, int]]:
    for function in module.functions:
        for offset, hits in function.blocks.items():
            start, size = function.start + offset - module.base, function.sizes.get(offset, 0)
            while hits and size > 0:
                yield start, min(size, _LARGEST)
                start, size = start + _LARGEST, size - _LARGEST


EXPORTER = Drcov()
