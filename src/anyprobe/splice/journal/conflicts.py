"""Whether a target is a session's to change: no other anyprobe is in it, and the session's own journals are there."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import SessionConflict
from anyprobe.splice.journal.installed import find_owners, owner_alive
from anyprobe.splice.journal.records import Owner

if TYPE_CHECKING:
    from anyprobe.target.base import ProcessFacts
    from anyprobe.target.system.procfs import Mapping


def check_sessions(process: "ProcessFacts", mappings: "Sequence[Mapping]", own: Owner, journals: int) -> None:
    """Raise if another session is installed, or fewer ``journals`` of our own than there should be."""
    found = find_owners(process.mem, mappings).values()
    if sum(owner.session == own.session for owner in found) < journals:
        raise removed(process.pid)
    for owner in found:
        if owner.session == own.session or owner.ended:
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
