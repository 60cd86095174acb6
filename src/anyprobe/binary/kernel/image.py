"""A kernel, or one of its modules, as an image like any other: its settled text, named by its symbols."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.images.image import Image
from anyprobe.binary.images.reconcile import reconcile
from anyprobe.binary.kernel.endings import NEVER_RETURN
from anyprobe.binary.kernel.ends import trimmed
from anyprobe.binary.kernel.names import KernelNames
from anyprobe.binary.kernel.settled import Settled
from anyprobe.binary.kernel.tables import KernelTables
from anyprobe.binary.objects.bounds import Bounds
from anyprobe.binary.objects.elf import EM_X86_64, ET_EXEC, PF_X, PT_LOAD, ElfFile
from anyprobe.binary.objects.relocations import Relocations
from anyprobe.binary.objects.symbols import SymbolTable
from anyprobe.binary.objects.table_store import CodeFacts, Entries
from anyprobe.binary.objects.text import ModuleText
from anyprobe.binary.unwind.eh_frame import UnwindTable
from anyprobe.core.address import AddressRange
from anyprobe.core.arrays import among, unique
from anyprobe.core.refusal import Reason

_HEADER, _SEGMENT = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
_NOTE_SEGMENT, _NOTE = 4, struct.Struct("<III4s")
_READ = 4
_CALL_BYTES = 5
_WORD = 8


class KernelImage(Image):
    """The code of a kernel in the addresses of the analysis, ``addresses.BIAS`` below the kernel's own."""

    def __init__(
        self,
        name: str,
        start: int,
        text: bytes,
        names: KernelNames,
        tables: KernelTables,
        data: Sequence[bytes] = (),
    ) -> None:
        """Take the text from ``start`` on, and constant data in which there may be addresses of pieces of it."""
        self._names, self.tables, self._data = names, tables, data
        self._area = AddressRange(start, start + len(text))
        self.settled = Settled(start, text, tables, names, names.within(self._area))
        self._symbols = names.table_of(self._area)
        elf = ElfFile(name, _elf(start, self.settled.content, self._told()))
        elf.identity = (len(text),)  # its content has a name, so what is found out about it may be kept
        super().__init__(elf, name)

    def _told(self) -> bytes:
        """Return everything but the text that the facts about the code are made of."""
        tables = self.tables
        rows = (self.settled.keys, self.settled.calls, tables.fixups, tables.bugs, tables.alternatives)
        return b"".join([self._symbols.symbols.tobytes(), self._symbols.strings, *(each.tobytes() for each in rows)])

    @cached_property
    def symbol_tables(self) -> tuple[SymbolTable, ...]:
        """What the listing says."""
        return (self._symbols,)

    @cached_property
    def dynamic_table(self) -> SymbolTable | None:
        """None: nothing is linked at run time."""
        return None

    @cached_property
    def relocations(self) -> Relocations:
        """None: they have been applied."""
        none = np.empty(0, np.int64)
        return Relocations(none, none, none, none, none)

    @cached_property
    def unwind(self) -> UnwindTable:
        """None: kernels have other tables."""
        return UnwindTable.empty()

    @cached_property
    def stored_pointers(self) -> "NDArray[np.int64]":
        """What constant data has addresses of."""
        from anyprobe.binary.kernel.addresses import BIAS

        words = [np.frombuffer(each, "<u8", len(each) // _WORD) for each in self._data]
        every = np.concatenate([*words, np.empty(0, np.uint64)])
        low, high = np.uint64(self._area.start + BIAS), np.uint64(self._area.end + BIAS)
        found: NDArray[np.int64] = unique(every[(every >= low) & (every < high)] - np.uint64(BIAS)).astype(np.int64)
        return found

    def _find_bounds(self) -> Bounds:
        found = reconcile(self.symbol_tables, self.unwind, self.code_ranges, ())
        padding = self._padding_starts
        return replace(found, ends=trimmed(found.starts, found.ends, padding, self._area, self.settled.content))

    @cached_property
    def _padding_starts(self) -> NDArray[np.int64]:
        return self._names.padding_within(self._area)

    @cached_property
    def padding(self) -> list[int]:
        """Where padding before functions begins that has names, ascending: the kernel may put code there."""
        found: list[int] = self._padding_starts.tolist()
        return found

    @cached_property
    def _noreturn(self) -> frozenset[int]:
        found = (self._names.address(name) for name in NEVER_RETURN)
        return frozenset(address for address in found if address is not None and address in self._area)

    def text(self) -> ModuleText:
        """Return everything that the code analysis needs to know."""
        return self._kernel_text

    @cached_property
    def _kernel_text(self) -> ModuleText:
        return replace(super().text(), has_jump_tables=not self.settled.has_thunks, calls_labels=False)

    def _gather_facts(self) -> CodeFacts:
        """Collect what enters functions other than through code, and what the kernel rewrites."""
        settled, tables, starts = self.settled, self.tables, self.functions.starts
        replaced = tables.alternatives
        keys = settled.keys[:, 1:].ravel()
        certain = np.concatenate([starts, keys, tables.fixups[:, 1], tables.warnings, replaced[:, 1:].ravel()])
        stored = self.stored_pointers
        pointed = unique(stored[~among(stored, certain)])
        every = unique(np.concatenate([certain, stored]))
        every = every[(every >= self._area.start) & (every < self._area.end)]
        none = np.empty(0, np.int64)
        entries = Entries(every, none, pointed, unique(stored))
        rewritten = [(AddressRange(low, high), Reason.STATIC_KEY.value) for low, high, _ in settled.keys.tolist()]
        rewritten += [(AddressRange(low, high), Reason.ALTERNATIVE.value) for low, high, _ in replaced.tolist()]
        for places, reason in ((settled.traced, Reason.FTRACE_SITE), (settled.calls, Reason.STATIC_CALL)):
            rewritten += [(AddressRange(at, at + _CALL_BYTES), reason.value) for at in places.tolist()]
        return CodeFacts(entries, tuple(rewritten), self._noreturn, {}, self.functions.cold_parts, none, none, none)


def _elf(start: int, text: bytes, told: bytes) -> bytes:
    """Return an executable of one segment, of which the build-id is made of the text and of what is ``told`` of it."""
    named = hashlib.blake2b(text, digest_size=20)
    named.update(start.to_bytes(8, "little"))
    named.update(told)
    digest = named.digest()
    note = _NOTE.pack(4, len(digest), 3, b"GNU\0") + digest
    head = _HEADER.size + 2 * _SEGMENT.size
    code_at = head + len(note)
    ident = b"\x7fELF\2\1\1".ljust(16, b"\0")
    return b"".join(
        [
            _HEADER.pack(ident, ET_EXEC, EM_X86_64, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 2, 0, 0, 0),
            _SEGMENT.pack(PT_LOAD, PF_X | _READ, code_at, start, start, len(text), len(text), 1),
            _SEGMENT.pack(_NOTE_SEGMENT, _READ, head, 0, 0, len(note), len(note), 4),
            note,
            text,
        ]
    )
