"""Fork children that have ended: what they have counted is kept by the controller, their memory is for others."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.data.layouts.layout import CHILD_BYTES
from anyprobe.data.readers.reader import EndedCounts
from anyprobe.journal.memfds import is_ours
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.data.readers.reader import BankReader, ForkChild
    from anyprobe.probes.providers.function.forks.children import Children
    from anyprobe.splice.regions.code_region import SlotBank

_SHARE = 4
"""One part in so many of the copies may belong to children of which it is not known whether they have ended."""
_SECONDS = 0.1
"""How long others wait for a look, as long as half of the copies are free: the rest is left to the next one."""


class EndedChildren:
    """Looks for them, where copies become few."""

    def __init__(self) -> None:
        """Know none."""
        self._seen: dict[int, frozenset[ForkChild]] = {}
        self._alive: dict[int, int] = {}
        self._doubtful: dict[int, frozenset[ForkChild]] = {}

    def unmapped(
        self, bank: "SlotBank", never_seen: "list[ForkChild]", inodes: frozenset[int]
    ) -> "tuple[ForkChild, ...]":
        """Return which of some children have ended, of which no process was ever found: no process maps their copies.

        Only those that had their copy at the look before: a child may just have taken one and not mapped it yet.
        """
        before = self._doubtful.get(id(bank), frozenset())
        self._doubtful[id(bank)] = frozenset(never_seen)
        doubtful = before.intersection(never_seen)
        if not doubtful:
            return ()
        pids, offsets = _living(inodes, bank.arena.inode)
        return tuple(child for child in doubtful if not _is_mapped(bank, child, pids, offsets))

    def look(
        self,
        bank: "SlotBank",
        reader: "BankReader",
        children: "Children",
        inodes: frozenset[int],
        forget: Callable[[int], object],
    ) -> None:
        """Keep what children have counted that have ended, and give their copies to others.

        Only those that had their copy at the look before: a child may just have taken one and not mapped it yet.
        ``forget`` is called with the number of each copy, from 1, before another child may have it.
        """
        there = frozenset(child for child in reader.copies if not child.ended)
        before = self._seen.get(id(bank), frozenset())
        self._seen[id(bank)] = there
        if len(there) - self._alive.get(id(bank), 0) < bank.layout.children // _SHARE:
            return
        pids, offsets = _living(inodes, bank.arena.inode)
        self._alive[id(bank)] = 0
        until, left = time.monotonic() + _SECONDS, len(there)
        for child in sorted(there & before, key=lambda child: child.number):
            if time.monotonic() > until and left < bank.layout.children // 2:
                break
            at = _place_of(bank, child)
            if _is_mapped(bank, child, pids, offsets):
                self._alive[id(bank)] += 1
                continue
            children.note(bank, [child])
            counts, threads = reader.compact(child), reader.compact_threads(child) if reader.by_thread else {}
            forget(child.number + 1)
            if not bank.arena.give_back(at, bank.layout.child_bytes):  # it stays the child's, and counts no more
                continue
            bank.ended = bank.ended or EndedCounts(bank.layout)
            kept = replace(child, ended=len(bank.ended.children) + 1)
            bank.ended.add(kept, counts, threads)
            children.end(bank, child, kept)
            left -= 1
            entry = bank.piece.offset + bank.layout.children_offset + CHILD_BYTES * child.number
            bank.arena.view(entry, CHILD_BYTES)[:] = bytes(CHILD_BYTES)


def _place_of(bank: "SlotBank", child: "ForkChild") -> int:
    return bank.piece.offset + bank.layout.child_offset(child.number)


def _is_mapped(bank: "SlotBank", child: "ForkChild", pids: frozenset[int], offsets: "list[tuple[int, int]]") -> bool:
    at = _place_of(bank, child)
    return child.tid in pids or any(low <= at < high for low, high in offsets)


def _living(inodes: frozenset[int], inode: int) -> tuple[frozenset[int], list[tuple[int, int]]]:
    """Return the processes with a session's memory, as they call themselves, and which parts of a memfd are mapped."""
    pids: set[int] = set()
    parts: list[tuple[int, int]] = []
    for pid in procfs.read_processes():
        if pid == os.getpid():
            continue
        with suppress(OSError, ValueError):
            own = [m for m in procfs.read_mappings(pid) if is_ours(m) and m.inode in inodes]
            if own:
                pids.add(pid)
                pids |= {int(each) for each in procfs.read_status(pid).get("NSpid", "").split()}
                parts += [(m.offset, m.offset + m.end - m.start) for m in own if m.inode == inode]
    return frozenset(pids), parts
