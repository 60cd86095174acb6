"""Return points in fork children that were made before these were known: what the parent's text has got since.

A child has the text that its parent had, and the same memory for patches. So a change of the parent's is made in the
child as it is, in a stop of the child's own, listed in the child's own journal: all of it, or the child stays as it
is, and its calls that end there are ``learning``.
"""

import time
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.apply.saved_pcs import FramesOnStacks
from anyprobe.splice.apply.transaction import Transaction
from anyprobe.splice.emitted import EmittedSplice, FunctionChange
from anyprobe.splice.journal.installed import find_journals
from anyprobe.splice.journal.memfds import is_ours
from anyprobe.splice.journal.records import Journal, RecordKind
from anyprobe.splice.regions.holdings import SpliceRecords
from anyprobe.target.process.process import Process

if TYPE_CHECKING:
    from anyprobe.core.memory import Memory
    from anyprobe.probes.host import ProbeHost
    from anyprobe.splice.journal.records import FoundJournal
    from anyprobe.target.system.procfs import Mapping

_AT_A_TIME = 0.1
"""Seconds that one look may take: of many children the others are seen to at the next one."""
_TRIES = 50
"""How often one child is tried: a thread may be in the way, or another tool in the process, for ever."""


@dataclass(slots=True)
class _Child:
    text: int = 0
    """The last change that it is known to have."""
    tried: int = 0
    """How often what comes after could not be made."""


@dataclass(slots=True)
class ChildrenText:
    """Brings the text of fork children up to date with that of a session's target."""

    session: "ProbeHost"
    _changes: dict[int, "tuple[FunctionChange, ...] | None"] = field(default_factory=dict)
    """By number; None: what cannot be made elsewhere."""
    _children: dict[tuple[int, float | None], _Child] = field(default_factory=dict)

    def note(self, number: int, changes: "Sequence[FunctionChange] | None") -> None:
        """Take note of a change of the target's text; None: of one that children cannot have."""
        self._changes[number] = None if changes is None else tuple(changes)

    def look(self, words: AbstractSet[int]) -> None:
        """See to the children that live; ``words``: where each has the number of the last change of its text."""
        if not self._changes or not words:
            return
        latest, until = max(self._changes), time.monotonic() + _AT_A_TIME
        there = self.session.children.alive()
        self._children = {key: self._children.get(key, _Child()) for key in there}
        behind = [key for key, child in self._children.items() if child.text < latest and child.tried < _TRIES]
        for key in sorted(behind, key=lambda key: self._children[key].tried):
            child = self._children[key]
            child.tried += 1
            with suppress(TargetError, MemoryFault, OSError):
                child.text = self._bring_up(key[0], words, latest)
            child.tried *= child.text < latest
            if time.monotonic() > until:
                return

    def _bring_up(self, pid: int, words: AbstractSet[int], latest: int) -> int:
        """Return which change a child's text has at the end."""
        process = Process.open(pid)
        try:
            with process.exclusive(), process.translated("learning return points in"):
                text = min(int.from_bytes(process.mem.read(each, 8), "little") for each in words)
                while text < latest:
                    number = min(each for each in self._changes if each > text)
                    changes = self._changes[number]
                    if changes is None or not self._make(process, changes):
                        break
                    text = number
                    for each in words:
                        process.mem.write(each, text.to_bytes(8, "little"))
                return text
        finally:
            process.close()

    def _make(self, process: Process, changes: Sequence[FunctionChange]) -> bool:
        """Make changes in a child; return whether it has all of them."""
        changes = [each for each in changes if not _is_made(process.mem, each)]
        if not changes:
            return True
        if any(change.traps for change in changes):
            return False
        ours = [each for each in self.session.mappings() if is_ours(each)]
        mappings = process.mappings()
        if not _has_all(mappings, ours):
            return False
        own = self.session.splicing.holdings.owner.session
        journals = [each for each in find_journals(process.mem, mappings) if each.owner.session == own]
        records, needed = SpliceRecords(), sum(len(change.added) for change in changes)
        journal = _known(process, journals, records, [splice for each in changes for splice in each.removed], needed)
        if journal is None:
            return False
        transaction = Transaction(process, changes, journal, records, FramesOnStacks(process))
        transaction.rehearse()
        try:
            with process.stop() as stop:
                stop.verify()
                for change in changes:
                    if not self._is_same(change.address, stop.mappings):
                        transaction.refuse(change, Refusal(Reason.GONE, change.address, "the child has another module"))
                if transaction.struck(stop) is None:
                    transaction.run(stop)
        except BaseException:
            if not transaction.done:
                transaction.forget()
            raise
        if not transaction.done:
            transaction.forget()
            return False
        transaction.finish()
        return len(transaction.remaining) == len(changes)

    def _is_same(self, address: int, mappings: "Iterable[Mapping]") -> bool:
        """Return whether a child has the same file at an address as the target."""

        def part(those: "Iterable[Mapping]") -> tuple[object, ...] | None:
            found = next((each for each in those if each.start <= address < each.end), None)
            return None if found is None else (found.device, found.inode, found.offset - found.start)

        return part(mappings) == part(self.session.mappings()) is not None


def _is_made(memory: "Memory", change: FunctionChange) -> bool:
    """Return whether a child has inherited a change: it may have been made right before the fork."""
    return all(memory.read(splice.address, len(splice.new)) == splice.new for splice in change.added) and all(
        memory.read(splice.address, len(splice.new)) != splice.new
        for splice in change.removed
        if splice.address not in {each.address for each in change.added}
    )


def _has_all(theirs: "Iterable[Mapping]", ours: "Iterable[Mapping]") -> bool:
    """Return whether a child has all memory that patches need: what was mapped after the fork it has not."""
    there: list[tuple[int, int]] = []
    for each in theirs:  # by address; its own blocks are mapped over a part of what it has inherited
        if is_ours(each) and there and there[-1][1] == each.start:
            there[-1] = there[-1][0], each.end
        elif is_ours(each):
            there.append((each.start, each.end))
    return all(any(start <= each.start and each.end <= end for start, end in there) for each in ours)


def _known(
    process: Process,
    journals: "Sequence[FoundJournal]",
    records: SpliceRecords,
    removed: Sequence[EmittedSplice],
    needed: int,
) -> Journal | None:
    """Return a journal of a child with room for more; ``records`` get to know where what is removed is listed."""
    chosen = None
    for found in journals:
        journal = Journal.found(process.mem, found)
        listed = {(each.address, each.new): index for index, each in found.records if each.kind is RecordKind.SPLICE}
        there = {
            splice: listed[splice.address, splice.new] for splice in removed if (splice.address, splice.new) in listed
        }
        records.know(journal, there)
        if chosen is None and journal.room() >= needed:
            chosen = journal
    return chosen
