"""What is registered in a process, in the form of the kernel's list: read from outside, from the journals alone."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from anyprobe.binary.images.modules import LoadedObject, ProcessFiles, loaded_objects
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.data.findings.leftover import Leftover
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.journal.installed import find_journals
from anyprobe.journal.memfds import MEMFD_PATH
from anyprobe.journal.records import INTERNAL, FoundJournal, Record, RecordKind
from anyprobe.journal.registrations import Entry, listed
from anyprobe.splice.apply.recovery.restoring import in_window, windows_of
from anyprobe.splice.plan.splices import TRAP
from anyprobe.target.process.process import Process
from anyprobe.target.system import procfs

_DISPLACEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Installed:
    """What the journals in a process say: what is registered, and the sites that were changed for it."""

    registered: list[Leftover]
    """Without registrations, which older versions did not write: the sites."""
    sites: list[Leftover]


def inspect(pid: int) -> Installed:
    """Read the journals in a process; changes nothing."""
    process = Process.open(pid)
    try:
        mappings = process.mappings()
        others = [m for m in mappings if m.path != MEMFD_PATH]
        files = ProcessFiles(procfs.voice(pid), memory=process.mem)
        return _Inspection(process, loaded_objects(others, files=files, executable=process.exe)).of(
            find_journals(process.mem, mappings)
        )
    finally:
        process.close()


def probed_processes() -> list[int]:
    """Return the processes that have probes, or had some whose memory is still mapped, of those one may look at."""
    found = []
    for pid in sorted(procfs.read_processes()):
        with suppress(OSError, TargetError):
            if any(mapping.path == MEMFD_PATH for mapping in procfs.read_mappings(pid)):
                found.append(pid)
    return found


class _Inspection:
    """One look at a process."""

    def __init__(self, process: Process, objects: list[LoadedObject]) -> None:
        self._process, self._objects = process, objects
        self._letters: dict[int, set[str]] = {}
        """The kinds of the probes that a site serves, by its address."""

    def of(self, journals: Sequence[FoundJournal]) -> Installed:
        windows = windows_of(journals)
        sites, registered = [], []
        for session in dict.fromkeys(journal.owner.session for journal in journals):
            own = [journal for journal in journals if journal.owner.session == session]
            found = [
                self._site(journal, record, windows.get(record.address, []))
                for journal in own
                for record in journal.of(RecordKind.SPLICE)
            ]
            entries = [entry for journal in own for entry in listed(journal)]
            lines = list(self._lines(entries, found, own[0])) if entries else [s for s in found if not s.internal]
            registered += sorted(lines, key=lambda line: (line.address, line.type))
            sites += [self._with_letters(site) for site in found]
        return Installed(registered, sites)

    def _site(self, journal: FoundJournal, record: Record, ends: list[bytes]) -> Leftover:
        flags: tuple[str, ...] = ("OPTIMIZED",) if record.new != TRAP else ()
        try:
            now = self._process.mem.read(record.address, len(record.new))
            if ends and in_window(now, record.old, *ends):
                flags = ()  # an int3 leads to the patch
            elif now != record.new:
                flags = ("DISABLED",) if now == record.old else ("GONE",)
        except MemoryFault:
            flags = ("GONE",)
        if record.extra & INTERNAL:
            flags = (*flags, "INTERNAL")
        module, symbol, offset, _ = self._place(record.address)
        return Leftover(
            address=record.address,
            type="k",
            symbol=symbol,
            offset=offset,
            module=module,
            strategy=_strategy(record),
            flags=flags,
            session=journal.owner.session.hex(),
            owner=journal.owner.pid,
            size=len(record.new),
        )

    def _lines(self, entries: Iterable[Entry], sites: Sequence[Leftover], journal: FoundJournal) -> Iterator[Leftover]:
        """Yield a line for each entry, its state from the sites that serve it."""
        probes = sorted((site for site in sites if not site.internal), key=lambda site: site.address)
        lows = [site.address for site in probes]
        for entry in entries:
            module, symbol, offset, size = self._place(entry.address)
            start = entry.address - offset
            near = probes[bisect_left(lows, start) : bisect_left(lows, start + max(size, offset + 1))]
            covering = [site for site in near if site.address <= entry.address < site.address + site.size]
            serving = near if entry.letter == "r" else covering or near
            for site in serving:
                self._letters.setdefault(site.address, set()).add(entry.letter)
            yield Leftover(
                address=entry.address,
                type=entry.letter,
                symbol=symbol,
                offset=offset,
                module=module,
                strategy=serving[0].strategy if serving else "",
                flags=self._flags(entry, serving),
                session=journal.owner.session.hex(),
                owner=journal.owner.pid,
            )

    def _with_letters(self, site: Leftover) -> Leftover:
        return replace(site, type="".join(sorted(self._letters.get(site.address, "k"))))

    def _flags(self, entry: Entry, serving: Sequence[Leftover]) -> tuple[str, ...]:
        states = [site.flags for site in serving]
        if entry.gone or (states and all("GONE" in flags for flags in states)) or not self._is_there(entry.address):
            return ("GONE",)
        if entry.disabled or (states and all("DISABLED" in flags for flags in states)):
            return ("DISABLED",)
        return ("OPTIMIZED",) if states and all("OPTIMIZED" in flags for flags in states) else ()

    def _is_there(self, address: int) -> bool:
        try:
            self._process.mem.read(address, 1)
        except MemoryFault:
            return False
        return True

    def _place(self, address: int) -> tuple[str, str, int, int]:
        """Return module, function, offset and the function's size."""
        for loaded in self._objects:
            if address not in loaded:
                continue
            try:
                vaddr = loaded.link_time(address)
                function = loaded.image.functions.containing(vaddr)
            except TargetError:
                return loaded.name, f"{address:#x}", 0, 0
            if function is not None:
                return loaded.name, function.name, vaddr - function.start, function.size
            return loaded.name, f"{loaded.name}+{vaddr:#x}", 0, 0
        return "", f"{address:#x}", 0, 0


def _strategy(record: Record) -> str:
    """Return how a splice reaches its patch, from its bytes: the opcode is written except when only its target is."""
    if record.new == TRAP:
        return "trap"
    if len(record.new) == _DISPLACEMENT_BYTES and record.new[:1] != b"\xe9" and record.new[:1] != b"\x36":
        return "retarget"
    return "jump" if len(record.new) == JUMP_BYTES else "punned"
