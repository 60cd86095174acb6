"""What is installed in an address space, and in which processes: read from maps and journals, of any session."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.errors import SessionConflict, TargetError
from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.journal.memfds import MEMFD_NAME, MEMFD_PATH, is_ours
from anyprobe.journal.records import FoundJournal, Owner, read_journal, read_owner
from anyprobe.target.system import procfs
from anyprobe.target.system.procfs import Mapping

if TYPE_CHECKING:
    from anyprobe.target.base import ProcessFacts


class Part(NamedTuple):
    """Where a part of a file is executable in an address space."""

    start: int
    end: int
    device: str
    inode: int
    offset: int


def parts_of(mappings: Iterable[Mapping]) -> tuple[Part, ...]:
    """Return the executable parts among an object's mappings."""
    return tuple(Part(m.start, m.end, m.device, m.inode, m.offset) for m in mappings if m.executable)


def journal_places(mappings: Iterable[Mapping]) -> list[Mapping]:
    """Return the mappings that journals are in, or will be once they have a header."""
    return [m for m in mappings if m.path == MEMFD_PATH and m.perms == "r--p" and is_ours(m)]


def find_journals(memory: Memory, mappings: Iterable[Mapping]) -> list[FoundJournal]:
    """Return all journals in an address space."""
    with _readable():
        found = [read_journal(memory, m.start, m.end - m.start) for m in journal_places(mappings)]
    return [journal for journal in found if journal is not None]


def find_owners(memory: Memory, mappings: Iterable[Mapping]) -> dict[int, Owner]:
    """Return who wrote the journals in an address space, by the address of each journal."""
    with _readable():
        found = {m.start: read_owner(memory, m.start) for m in journal_places(mappings)}
    return {address: owner for address, owner in found.items() if owner is not None}


@contextmanager
def _readable() -> Iterator[None]:
    """An unread journal may list splices that lead into what the others would have unmapped: never go on without it."""
    try:
        yield
    except MemoryFault as fault:
        raise TargetError(f"a journal cannot be read: {fault}") from fault


def owner_alive(owner: Owner) -> bool:
    """Return whether the controller that wrote a journal still runs."""
    with suppress(OSError):
        stat = procfs.read_stat(owner.pid)
        return stat.start_time == owner.start_time and not stat.ended
    return False


def processes_with_splices(inodes: frozenset[int] | None = None, since: int = 0) -> list[int]:
    """Return the processes that map an anyprobe memfd: any, or those with one of the given inodes (fork children too).

    ``since`` leaves out those that started before this time, as ``/proc/PID/stat`` has it: a process has a session's
    memory by a fork after the session began, or because it shares an address space with one that has.
    """
    found = []
    for pid in procfs.read_processes() if inodes is None or inodes else ():
        if pid == os.getpid():
            continue
        with suppress(OSError):
            if since and procfs.read_stat(pid).start_time < since:  # a tenth of what its maps cost
                continue
            content = procfs.read_file(f"/proc/{pid}/maps") or procfs.read_file(f"/proc/{procfs.voice(pid)}/maps")
            if MEMFD_NAME not in content:
                continue
            if any(is_ours(m) and (inodes is None or m.inode in inodes) for m in procfs.parse_maps(content)):
                found.append(pid)
    return found


def check_sessions(
    process: "ProcessFacts", mappings: "Sequence[Mapping]", own: Owner, journals: int, beside: frozenset[bytes]
) -> None:
    """Raise if another session is installed than those ``beside``, or fewer own ``journals`` than there should be."""
    found = find_owners(process.mem, mappings).values()
    if sum(owner.session == own.session for owner in found) < journals:
        raise removed(process.pid)
    for owner in found:
        if owner.session == own.session or owner.session in beside or owner.ended:
            continue
        if owner_alive(owner):
            raise SessionConflict(
                f"process {process.pid} is being probed by another anyprobe session (process {owner.pid}); "
                f"end that one first, or run: anyprobe detach -p {process.pid}"
            )
        raise SessionConflict(
            f"process {process.pid} still has splices of an anyprobe session that died (process {owner.pid}); "
            f"run: anyprobe detach -p {process.pid}"
        )


def removed(pid: int) -> SessionConflict:
    """Return what to raise where the session is installed no more."""
    return SessionConflict(f"another anyprobe has removed this session from process {pid}; start a new one")
