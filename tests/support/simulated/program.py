"""A program for a simulated target: functions in assembly, laid out at an address and known to the code analysis."""

from collections.abc import Iterator, Mapping

import numpy as np

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.objects.text import ModuleText
from anyprobe.core.address import AddressRange, page_ceil
from anyprobe.core.refusal import Refusal
from anyprobe.isa.assemble import Assembler
from anyprobe.journal.installed import parts_of
from anyprobe.splice.edits import Module
from support.bytes_memory import BytesMemory
from support.simulated.target import SimulatedTarget

LINK, BIAS = 0x1000, 0x5555_5555_4000
_INODE = 2
_BYTES = ".byte "
_PATH = "/simulated/program"


class Program:
    """The text of one object in a target, and its functions by name."""

    def __init__(self, target: SimulatedTarget, listings: Mapping[str, str], *, alignment: int = 16) -> None:
        """Assemble functions, one after the other, with labels of their names, and map them."""
        asm = Assembler()
        self.starts: dict[str, int] = {}
        ends = []
        for name, listing in listings.items():
            padding = -len(asm) % alignment
            asm.raw(b"\xcc" * padding, "int3")
            self.starts[name] = LINK + len(asm)
            asm.label(name)
            for line in filter(None, map(str.strip, listing.splitlines())):
                if line.startswith(_BYTES):
                    asm.raw(bytes.fromhex(line.removeprefix(_BYTES).partition("#")[0]), line)
                else:
                    asm.code(line)
            ends.append(LINK + len(asm))
        self.content = asm.finish(LINK)
        self.target, self.ends = target, ends
        self.low = LINK + BIAS
        self.high = self.low + page_ceil(len(self.content))
        target.mem.add(self.low, self.high - self.low, "r-xp", _PATH, inode=_INODE, offset=LINK)
        target.mem.write(self.low, self.content)
        self._analysed = self.new_module()

    def new_module(self) -> Module:
        """Return the module as a session begins with it: analysed, nothing spliced."""
        starts = list(self.starts.values())
        text = ModuleText(
            name="program", ranges=(AddressRange(LINK, LINK + len(self.content)),),
            memory=BytesMemory(LINK, self.content),
            function_starts=np.array(starts, dtype=np.int64), function_ends=np.array(self.ends, dtype=np.int64),
            entries=np.array(starts, dtype=np.int64), forbidden=(), noreturn=frozenset(), own_stubs={}, is_go=False,
            is_pie=True,
        )  # fmt: skip
        own = [m for m in self.target.mappings() if m.path == _PATH]
        return Module("program", CodeMap(text), BIAS, self.low, self.high, parts=parts_of(own))

    def __getitem__(self, name: str) -> int:
        """Return a function's run-time address."""
        return self.starts[name] + BIAS

    def code(self, name: str) -> FunctionCode:
        """Return a function as the analysis knows it."""
        found = self._analysed.code.function_at(self.starts[name])
        assert not isinstance(found, Refusal), found
        return found

    def instructions(self, name: str) -> Iterator[int]:
        """Yield the link-time addresses of a function's instructions."""
        return (insn.address for insn in self.code(name).insns)

    def call(self, name: str, *arguments: int) -> int:
        """Call a function in the target's first thread."""
        return self.target.call(self[name], *arguments)

    def text(self) -> bytes:
        """Return what the target has as its text now."""
        return self.target.mem.read(self.low, len(self.content))

    def is_pristine(self) -> bool:
        """Return whether the target's text is what was assembled."""
        return self.text() == self.content
