"""Lines for LLVM, and where it has put their code: each marked place in the source is a line of its own."""

import struct
from contextlib import suppress

from llvmlite import ir as llvm

from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.llvm.object_file import ObjectFile

_SECTION = ".BTF.ext"
_HEAD = struct.Struct("<HBBIIIII")
_RECORD = struct.Struct("<IIII")
_COLUMN_BITS = 10


class Debug:
    """Debug information of one function."""

    def __init__(self, builder: llvm.IRBuilder) -> None:
        """Describe the function that is being built."""
        self._builder, self.marks = builder, list[ir.Mark]()
        module = builder.module
        file = module.add_debug_info("DIFile", {"filename": "handler", "directory": "/"})
        unit = module.add_debug_info(
            "DICompileUnit",
            {
                "language": llvm.DIToken("DW_LANG_C99"), "file": file, "producer": "anyprobe", "isOptimized": True,
                "runtimeVersion": 0, "emissionKind": llvm.DIToken("FullDebug"),
            },
            is_distinct=True,
        )  # fmt: skip
        kind = module.add_debug_info("DISubroutineType", {"types": module.add_metadata([None])})
        self._scope = module.add_debug_info(
            "DISubprogram",
            {
                "name": builder.function.name, "scope": file, "file": file, "line": 1, "type": kind, "unit": unit,
                "spFlags": llvm.DIToken("DISPFlagDefinition | DISPFlagOptimized"),
            },
            is_distinct=True,
        )  # fmt: skip
        builder.function.set_metadata("dbg", self._scope)
        number = llvm.IntType(32)
        for name, value in (("Dwarf Version", 4), ("Debug Info Version", 3)):
            flag = [llvm.Constant(number, 2), name, llvm.Constant(number, value)]
            module.add_named_metadata("llvm.module.flags", module.add_metadata(flag))
        module.add_named_metadata("llvm.dbg.cu", unit)

    def mark(self, place: ir.Mark) -> None:
        """Let what is built from here on be of a place."""
        self.marks.append(place)
        values = {"line": len(self.marks), "column": 1, "scope": self._scope}
        self._builder.debug_metadata = self._builder.module.add_debug_info("DILocation", values)


def lines_of(found: ObjectFile) -> list[tuple[int, int]]:
    """Return at which instructions which lines begin."""
    content = next((each.content for each in found.sections if each.name == _SECTION), b"")
    with suppress(struct.error):
        *_, head, _, _, at, size = _HEAD.unpack_from(content)
        position, end = head + at + 4, head + at + size
        lines = []
        while position < end:
            _, count = struct.unpack_from("<II", content, position)
            position += 8
            for _ in range(count):
                offset, _, _, line = _RECORD.unpack_from(content, position)
                lines.append((offset // 8, line >> _COLUMN_BITS))
                position += _RECORD.size
        return sorted(lines)
    return []
