"""Taking all splices out of a process for a while, and putting them in again, from its journals alone.

Patches, counters and journals stay. The session that made the splices finds the program's own bytes where they are out,
which is what a library that was loaded anew looks like, and works on with that.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyprobe.core.address import page_floor
from anyprobe.core.errors import StopTimeout, TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.installed import find_journals
from anyprobe.journal.records import FoundJournal, Record, RecordKind
from anyprobe.splice.apply.blocked_syscalls import SYSCALL, is_asleep
from anyprobe.splice.apply.dead_jumps import is_dead_jump, leave, listed
from anyprobe.splice.apply.recovery.restoring import windows_of
from anyprobe.splice.apply.saved_pcs import Stacks
from anyprobe.splice.apply.suspended_contexts import may_park, parked_pcs
from anyprobe.splice.apply.text import write_at_rest
from anyprobe.splice.memory.file_pages import never_written
from anyprobe.splice.plan.splices import TRAP
from anyprobe.splice.userspace.signal_actions import has_traps

if TYPE_CHECKING:
    from anyprobe.target.base import ProcessQuiescence, ProcessTarget

PATIENCE, PAUSE = 2.0, 0.002
_SIGTRAP = 5
_REACH = 48
"""How far after the head of a splice at most what it displaces ends."""


@dataclass(frozen=True, slots=True)
class Switched:
    """What became of the splices of a process."""

    changed: int
    unchanged: int
    """How many sites were as wanted already."""
    foreign: tuple[int, ...]
    """Addresses whose bytes are neither anyprobe's nor the program's; left alone."""
    pause_us: int


def suspend(process: "ProcessTarget") -> Switched:
    """Restore the bytes of the program everywhere, in one stop."""
    return _switch(process, _objection_to_suspending, on=False)


def resume(process: "ProcessTarget") -> Switched:
    """Put all splices in again, in one stop."""
    return _switch(process, _objection_to_resuming, on=True)


def _switch(
    process: "ProcessTarget",
    objection: "Callable[[ProcessTarget, ProcessQuiescence, Sequence[FoundJournal]], str]",
    *,
    on: bool,
) -> Switched:
    deadline = time.monotonic() + PATIENCE
    with process.exclusive(), process.translated("switching the probes of"):
        process.meets_traps |= has_traps(find_journals(process.mem, process.mappings()))
        may_park(process, process.mappings())
        while True:
            with process.stop() as stop:
                stop.verify()
                journals = find_journals(process.mem, stop.mappings)
                why = objection(process, stop, journals)
                found = None if why else _write(process, journals, on=on)
            if found is not None:
                changed, unchanged, foreign = found
                return Switched(changed, unchanged, tuple(foreign), stop.pause_us)
            if time.monotonic() > deadline:
                raise StopTimeout(f"the probes of process {process.pid} cannot be switched now: {why}")
            time.sleep(PAUSE)


def _objection_to_suspending(
    process: "ProcessTarget", stop: "ProcessQuiescence", journals: Sequence[FoundJournal]
) -> str:
    """Return who stands on bytes that are to be the program's again; they are moved on where that can be."""
    held = leave(process.mem, listed(journals), stop)
    return ", ".join(held)


def _objection_to_resuming(
    process: "ProcessTarget", stop: "ProcessQuiescence", journals: Sequence[FoundJournal]
) -> str:
    """Return who stands between bytes that are to be overwritten, or could not stand a trap."""
    records = list(_splices(journals))
    if any(record.new == TRAP for record in records):
        for thread in stop.threads:
            if thread.blocks(_SIGTRAP):
                return f"thread {thread.tid} has SIGTRAP blocked"
    inside, heads = between(records), {record.address for record in records}
    stacks = Stacks(process.mem, stop.mappings)
    for thread in stop.threads:
        if any(pc in inside for pc in stacks.code_words(thread)):
            return f"thread {thread.tid} is between bytes that will be overwritten"
        call = thread.registers.rip - len(SYSCALL)  # the kernel may have it executed once more
        if call not in heads and not inside.isdisjoint((call, call + 1)) and is_asleep(process.mem, thread):
            return f"thread {thread.tid} is inside a system call that will be overwritten"
    if any(pc in inside for parent in stop.waiting for pc in stacks.words_after(parent)):
        return "a parent in vfork is between bytes that will be overwritten"
    if not inside.isdisjoint(parked_pcs(process, stop.mappings, stop.threads)):
        return "a signal handler will return between bytes that will be overwritten"
    return ""


def between(records: Iterable[Record]) -> set[int]:
    """Return where no thread may come back to once splices are in: after the first byte of what is written.

    A jump in dead bytes may lie in what another splice displaces. Then no thread may stand at it, or before it.
    """
    inside: set[int] = set()
    host = -_REACH
    for record in sorted(records, key=lambda record: record.address):
        inside.update(range(record.address + 1, record.address + len(record.new)))
        if not is_dead_jump(record):
            host = record.address
        elif record.address - host < _REACH:
            inside.update(range(host + 1, record.address + 1))
    return inside


def _splices(journals: Iterable[FoundJournal]) -> list[Record]:
    return [record for journal in journals for record in journal.of(RecordKind.SPLICE)]


def _write(process: "ProcessTarget", journals: Sequence[FoundJournal], *, on: bool) -> tuple[int, int, list[int]]:
    """Write all bytes, those of a page at once: what only works together never lies on two."""
    if windows_of(journals):
        raise TargetError(f"process {process.pid} is being changed while it runs; try again when that is over")
    pages: dict[int, list[Record]] = {}
    for record in _splices(journals):
        pages.setdefault(page_floor(record.address), []).append(record)
    changed, unchanged, foreign = 0, 0, []
    laid_out: dict[int, tuple[int, bytearray, list[int]]] = {}
    for page, records in pages.items():
        fresh: list[int] = []
        low = min(record.address for record in records)
        high = max(record.address + len(record.new) for record in records)
        try:
            before = process.mem.read(low, high - low)
        except MemoryFault:
            continue  # the module was unmapped
        after = bytearray(before)
        for record in records:
            at = record.address - low
            wanted, other = (record.new, record.old) if on else (record.old, record.new)
            now = before[at : at + len(wanted)]
            unchanged += now == wanted
            if now == other:
                after[at : at + len(wanted)] = wanted
                fresh.append(record.address)
            elif now != wanted:
                foreign.append(record.address)
        if fresh:
            laid_out[page] = low, after, fresh
    others = never_written(process, laid_out)
    for page, (low, after, fresh) in laid_out.items():
        if page in others:  # another library, with the same bytes here
            foreign += fresh
        else:
            write_at_rest(process.mem, low, bytes(after))
            changed += len(fresh)
    return changed, unchanged, foreign
