"""Giving text its own bytes back, as journals tell: laid out before the stop, compared and written in it."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.address import PAGE, page_floor
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.records import AT_HANDLER, FoundJournal, Record, RecordKind
from anyprobe.splice.apply.text import write_at_rest
from anyprobe.splice.apply.uprobes import BREAKPOINT, has_breakpoint_only, without_splice
from anyprobe.splice.plan.splices import TRAP
from anyprobe.target.base import TextMemory

if TYPE_CHECKING:
    from anyprobe.target.system.procfs import Mapping


_TELLING = 4
"""So many bytes of a splice are in other code by no chance: they lead to a patch."""


def in_window(found: bytes, *ends: bytes) -> bool:
    """Return whether ``found`` is what stands at a site in the middle of a change: an ``int3``, then some of either.

    ``ends`` are the bytes before and after, of several changes where more than one may have been under way.
    """
    tails = [end for end in ends if len(end) >= len(found)]
    return found[:1] == TRAP and all(any(byte == end[at] for end in tails) for at, byte in enumerate(found[1:], 1))


class _Page(NamedTuple):
    """What has to become of a page that holds ``before``."""

    before: bytes
    pieces: tuple[tuple[int, bytes], ...]
    """What to write, and at which offsets; nothing where no splice is left."""
    foreign: tuple[int, ...]
    taken: tuple[int, ...]
    """Where splices are taken out."""
    is_sure: bool
    """Whether bytes are among them that are in no other code by chance."""


class TextRestoration:
    """The text that splices of journals have changed, page by page."""

    def __init__(
        self,
        memory: TextMemory,
        journals: Sequence[FoundJournal],
        never_written: Callable[[int], bool] = lambda page: False,  # noqa: ARG005 - as it is called
        *,
        at_handlers: bool | None = None,
    ) -> None:
        """Lay out what is to be written, from what memory holds now; nothing needs to be stopped.

        ``never_written`` tells of a page just read that it is the file's own. Where a splice of one byte or two seems
        to be in such a page, another library has come to its address. ``at_handlers``: only those splices that show
        signal handlers the program's pcs, or only the others.
        """
        self._memory, self._never_written = memory, never_written
        self._windows = windows_of(journals)
        self._records: dict[int, list[Record]] = {}
        for record in (r for journal in journals for r in journal.of(RecordKind.SPLICE)):
            if at_handlers is not None and bool(record.extra & AT_HANDLER) is not at_handlers:
                continue
            self._records.setdefault(page_floor(record.address), []).append(record)
        self._pages: dict[int, _Page] = {}
        for address in self._records:
            with suppress(MemoryFault):
                self._pages[address] = self._lay_out(address, memory.read(address, PAGE))
        self.pages: list[int] = []
        """The addresses of the pages looked at, in order; valid after ``write``."""
        self.splices = 0
        """How many splices were taken out."""
        self.foreign: tuple[int, ...] = ()
        """Where there are bytes that are neither a splice's nor the original ones; they are left alone."""

    def write(self, mappings: "Sequence[Mapping]") -> None:
        """Write the old bytes back, one write per page, heads first come first. What has changed is laid out again.

        Raises ``TargetError`` if text cannot be read that is still mapped: nothing may be forgotten or unmapped then.
        """
        self.pages.clear()
        foreign: list[int] = []
        for address in sorted(self._records):
            try:
                now = self._memory.read(address, PAGE)
            except MemoryFault as fault:
                if any(m.start <= record.address < m.end for record in self._records[address] for m in mappings):
                    raise TargetError(f"text cannot be restored: {fault}") from fault
                continue  # the module was unmapped
            page = self._pages.get(address)
            if page is None or page.before != now:
                page = self._lay_out(address, now)
            if page.pieces and not page.is_sure and self._never_written(address):
                page = page._replace(pieces=(), foreign=page.foreign + page.taken, taken=())
            if not all(self._can_write(address + low, content, mappings) for low, content in page.pieces):
                page = page._replace(foreign=page.foreign + page.taken, taken=())
            self.splices += len(page.taken)
            foreign += page.foreign
            self.pages.append(address)
        self.foreign = tuple(foreign)

    def _can_write(self, address: int, content: bytes, mappings: "Sequence[Mapping]") -> bool:
        """Write, and return whether that was possible: shared memory, put in the place of text, may be closed to it.

        What fails in private memory is raised: another try may succeed.
        """
        try:
            write_at_rest(self._memory, address, content)
        except MemoryFault:
            if any(m.start <= address < m.end and not m.private and not m.writable for m in mappings):
                return False
            raise
        return True

    def _lay_out(self, address: int, before: bytes) -> _Page:
        after = bytearray(before)
        low, high, sure = PAGE, 0, False
        taken: list[int] = []
        foreign: list[int] = []
        breakpoints: list[int] = []
        for record in self._records[address]:
            offset = record.address - address
            now = before[offset : offset + len(record.new)]
            ends = self._windows.get(record.address, [])
            content = b""
            if now == record.new or (ends and in_window(now, record.old, *ends)):
                content = record.old
            elif now in (record.old, *ends):
                pass
            elif (mended := without_splice(now, record.old, record.new)) or has_breakpoint_only(now, record.old):
                content = mended or b""
                breakpoints += [offset + at for at, byte in enumerate(now) if byte == BREAKPOINT != record.old[at]]
            else:
                foreign.append(record.address)
            if content:
                after[offset : offset + len(content)] = content
                low, high = min(low, offset), max(high, offset + len(content))
                taken.append(record.address)
                sure |= len(record.new) >= _TELLING
        # A change that was cut short leaves two records of one site: the bytes of either may be there.
        unknown = tuple(dict.fromkeys(at for at in foreign if at not in taken))
        pieces = _pieces(after, low, high, breakpoints)
        return _Page(before, pieces, unknown, tuple(taken), sure)


def _pieces(after: bytearray, low: int, high: int, left_alone: Sequence[int]) -> tuple[tuple[int, bytes], ...]:
    """Return what is to be written of a page from ``low`` to ``high``, some bytes left alone.

    The kernel takes a breakpoint away whenever it likes: what was read must not be written again.
    """
    within = sorted(at for at in set(left_alone) if low <= at < high)
    starts, ends = [low, *(at + 1 for at in within)], [*within, high]
    return tuple((start, bytes(after[start:end])) for start, end in zip(starts, ends, strict=True) if start < end)


def windows_of(journals: Sequence[FoundJournal]) -> dict[int, list[bytes]]:
    """Return the bytes before and after of sites at which a change without a stop may have left an ``int3``."""
    found: dict[int, list[bytes]] = {}
    for record in (r for journal in journals for r in journal.of(RecordKind.WINDOW)):
        found.setdefault(record.address, []).extend((record.old, record.new))
    return found
