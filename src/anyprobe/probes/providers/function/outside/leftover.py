"""Switching off, and removing, what sessions have installed, whoever they were: from the target's journals alone."""

from anyprobe.data.findings.leftover import RemovalReport, SwitchReport
from anyprobe.journal.installed import find_journals
from anyprobe.journal.memfds import is_ours
from anyprobe.splice.apply.recovery.recovery import remove as remove_from
from anyprobe.splice.apply.recovery.recovery import remove_everywhere
from anyprobe.splice.apply.recovery.suspension import resume, suspend
from anyprobe.target.process.process import Process


def switch(pid: int, *, on: bool) -> SwitchReport:
    """Take everything of anyprobe out of a process's text for a while, or put it in again; its session may be alive."""
    process = Process.open(pid)
    try:
        if not find_journals(process.mem, process.mappings()):
            return SwitchReport(pid, on)
        found = resume(process) if on else suspend(process)
    finally:
        process.close()
    return SwitchReport(pid, on, found.changed, found.unchanged, found.foreign, found.pause_us)


def remove(pid: int) -> RemovalReport:
    """Remove everything of anyprobe from a process and from all processes that share its sessions' memory."""
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
