"""What sessions have installed in a process, whoever they were, and its removal: from the target's journals alone."""

from anyprobe.binary.modules import LoadedObject, ProcessFiles, loaded_objects
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.data.leftover import Leftover, RemovalReport, SwitchReport
from anyprobe.splice.arena import MEMFD_PATH, is_ours
from anyprobe.splice.installed import find_journals
from anyprobe.splice.journal import INTERNAL, FoundJournal, Record, RecordKind
from anyprobe.splice.livewrites import in_window
from anyprobe.splice.planned import TRAP
from anyprobe.splice.recovery import remove as remove_from
from anyprobe.splice.recovery import remove_everywhere, windows_of
from anyprobe.splice.suspension import resume, suspend
from anyprobe.target.process import Process

_JUMP_BYTES = 5
_DISPLACEMENT_BYTES = 4


def inspect(pid: int) -> list[Leftover]:
    """Return the splices that the journals in a process list; changes nothing."""
    process = Process.open(pid)
    try:
        mappings = process.mappings()
        others = [m for m in mappings if m.path != MEMFD_PATH]
        files = ProcessFiles(pid, memory=process.mem)
        objects = loaded_objects(others, files=files, executable=process.exe)
        journals = find_journals(process.mem, mappings)
        windows = windows_of(journals)
        return [
            _leftover(process, journal, record, objects, windows.get(record.address, []))
            for journal in journals
            for _, record in journal.records
            if record.kind is RecordKind.SPLICE
        ]
    finally:
        process.close()


def _leftover(
    process: Process, journal: FoundJournal, record: Record, objects: list[LoadedObject], ends: list[bytes]
) -> Leftover:
    flags: tuple[str, ...] = ("OPTIMIZED",)
    try:
        now = process.mem.read(record.address, len(record.new))
        if ends and in_window(now, record.old, *ends):
            flags = ()  # an int3 leads to the patch
        elif now != record.new:
            flags = ("DISABLED",) if now == record.old else ("GONE",)
    except MemoryFault:
        flags = ("GONE",)
    if record.extra & INTERNAL:
        flags = (*flags, "INTERNAL")
    module, symbol, offset = _place(record.address, objects)
    return Leftover(
        address=record.address,
        type="k" if record.new == TRAP else "j",
        symbol=symbol,
        offset=offset,
        module=module,
        strategy=_strategy(record),
        flags=flags,
        session=journal.owner.session.hex(),
        owner=journal.owner.pid,
    )


def _place(address: int, objects: list[LoadedObject]) -> tuple[str, str, int]:
    for loaded in objects:
        if address not in loaded:
            continue
        try:
            vaddr = loaded.link_time(address)
            function = loaded.image.functions.containing(vaddr)
        except TargetError:
            return loaded.name, f"{address:#x}", 0
        if function is not None:
            return loaded.name, function.name, vaddr - function.start
        return loaded.name, f"{loaded.name}+{vaddr:#x}", 0
    return "", f"{address:#x}", 0


def _strategy(record: Record) -> str:
    """Return how a splice reaches its patch, from its bytes: the opcode is written except when only its target is."""
    if record.new == TRAP:
        return "trap"
    if len(record.new) == _DISPLACEMENT_BYTES and record.new[:1] != b"\xe9" and record.new[:1] != b"\x36":
        return "retarget"
    return "jump" if len(record.new) == _JUMP_BYTES else "punned"


def switch(pid: int, *, on: bool) -> SwitchReport:
    """Take everything of ours out of a process's text for a while, or put it in again; whoever made it may be alive."""
    process = Process.open(pid)
    try:
        if not find_journals(process.mem, process.mappings()):
            return SwitchReport(pid, on)
        found = resume(process) if on else suspend(process)
    finally:
        process.close()
    return SwitchReport(pid, on, found.changed, found.unchanged, found.foreign, found.pause_us)


def remove(pid: int) -> RemovalReport:
    """Remove everything of ours from a process and from all processes that share its sessions' memory."""
    process = Process.open(pid)
    try:
        mappings = [m for m in process.mappings() if is_ours(m)]
        inodes = frozenset(m.inode for m in mappings)
        size = sum(m.end - m.start for m in mappings)
        removals = [remove_from(process)]
    finally:
        process.close()
    failed: list[str] = []
    if inodes:
        others, failed = remove_everywhere(inodes, but=pid)
        removals += others
    touched = [removal for removal in removals if removal.splices or size]
    return RemovalReport(
        processes=tuple(removal.pid for removal in touched),
        restored=sum(removal.splices for removal in removals),
        unmapped_bytes=size,
        gone=sum(len(removal.foreign) for removal in removals),
        not_quiet=tuple(f"{removal.pid}: {mapping}" for removal in removals for mapping in removal.kept),
        failed=tuple(failed),
    )
