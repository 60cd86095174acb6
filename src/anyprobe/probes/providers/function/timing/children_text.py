"""Return points in fork children that were made before these were known: what the parent's text has got since.

A child has the text that its parent had, and the same memory for patches. So a change of the parent's is made in the
child as it is, in a stop of the child's own, listed in the child's own journal: all of it, or the child stays as it
is, and its calls that end there are ``learning``.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.journal.installed import find_journals
from anyprobe.journal.memfds import is_ours
from anyprobe.journal.records import Journal, RecordKind
from anyprobe.splice.apply.saved_pcs import FramesOnStacks
from anyprobe.splice.apply.transaction import Transaction
from anyprobe.splice.emitted import EmittedSplice, FunctionChange
from anyprobe.splice.regions.holdings import SpliceRecords
from anyprobe.target.process.exclusion import exclusive
from anyprobe.target.process.permission import tracer_of
from anyprobe.target.process.process import Process

if TYPE_CHECKING:
    from anyprobe.core.memory import Memory
    from anyprobe.journal.records import FoundJournal
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.target.process.stopping import Stop
    from anyprobe.target.system.procfs import Mapping as Mapped

_AT_A_TIME = 0.1
"""Seconds that one look may take: of many children the others are seen to at the next one."""
_LOCK_PATIENCE = 0.02
"""Seconds to wait for another controller of a child: the session's other threads wait meanwhile."""
_STOP_PATIENCE = 0.2
"""Seconds in which all threads of a child have to stop, for the same reason."""
_PAUSES = 10
"""How many times as long as a try took that failed a child is left alone."""
_TRIES = 50
"""How often one child is tried: a thread may be in the way, or another tool in the process, for ever."""


@dataclass(slots=True)
class _Child:
    text: int = 0
    """The last change that it is known to have."""
    tried: int = 0
    """How often what comes after could not be made."""
    next_try: float = 0.0
    """When to try again."""


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

    def look(self, words: Mapping[int, int]) -> None:
        """See to the children that live.

        ``words`` are where each has the number of the last change of its text, with the inode of the journal that
        each word is in.
        """
        if not self._changes or not words:
            return
        now = time.monotonic()
        latest, until = max(self._changes), now + _AT_A_TIME
        there = self.session.children.alive()
        self._children = {key: self._children.get(key, _Child()) for key in there}
        stale = [
            key
            for key, child in self._children.items()
            if child.text < latest and child.tried < _TRIES and child.next_try <= now
        ]
        for key in sorted(stale, key=lambda key: self._children[key].tried):
            child, begun = self._children[key], time.monotonic()
            if begun > until:
                return
            with suppress(TargetError, MemoryFault, OSError):
                if tracer_of(key[0]):
                    continue  # to be seen to once it is let go
                child.tried += 1
                child.text = self._bring_up(key[0], words, latest)
            child.tried *= child.text < latest
            if child.text < latest:
                ended = time.monotonic()
                child.next_try = ended + _PAUSES * (ended - begun)

    def _bring_up(self, pid: int, words: Mapping[int, int], latest: int) -> int:
        """Return which change a child's text has at the end."""
        process = Process.open(pid)
        try:
            with exclusive(process, _LOCK_PATIENCE), process.translated("learning return points in"):
                found = _inherited(process, words)
                text = max(found.values(), default=latest)  # without any such word the child has nothing of the session
                while text < latest:
                    number = min(each for each in self._changes if each > text)
                    changes = self._changes[number]
                    if changes is None or not self._make(process, changes):
                        break
                    text = number
                    for each in [each for each, known in found.items() if known < text]:
                        process.mem.write(each, text.to_bytes(8, "little"))
                        found[each] = text
                return text
        finally:
            process.close()

    def _make(self, process: Process, changes: Sequence[FunctionChange]) -> bool:
        """Make changes in a child; return whether it has all of them."""
        if not changes:
            return True
        targets, mappings = self.session.mappings(), process.mappings()
        wanted = [each for each in targets if is_ours(each)]
        if not has_all(mappings, wanted):
            return False
        changes = [each for each in changes if not _is_made(process.mem, each)]
        if not changes:
            return True
        if any(change.traps for change in changes):
            return False
        own = self.session.splicing.holdings.owner.session
        journals = [each for each in find_journals(process.mem, mappings) if each.owner.session == own]
        records, needed = SpliceRecords(), sum(len(change.added) for change in changes)
        journal = _known(process, journals, records, [splice for each in changes for splice in each.removed], needed)
        if journal is None:
            return False
        files = {change: _file_at(change.address, targets) for change in changes}
        transaction: Transaction[Stop] | None = None
        try:
            transaction = Transaction(process, changes, journal, records, FramesOnStacks(process))
            transaction.rehearse()
            with process.stop(_STOP_PATIENCE) as stop:
                stop.verify()
                still = has_all(stop.mappings, wanted)
                for change, file in files.items():
                    if _file_at(change.address, stop.mappings) != file or file is None:
                        transaction.refuse(change, Refusal(Reason.GONE, change.address, "the child has another module"))
                if still and transaction.struck(stop) is None:
                    transaction.run(stop)
        except BaseException:
            if transaction is None:
                with suppress(TargetError, MemoryFault):
                    records.clear(splice for change in changes for splice in change.added)
            elif not transaction.done:
                transaction.forget()
            raise
        if not transaction.done:
            transaction.forget()
            return False
        transaction.finish()
        return len(transaction.remaining) == len(changes)


def _inherited(process: Process, words: Mapping[int, int]) -> dict[int, int]:
    """Return what stands in those words that a child has: where a journal was mapped later its own memory may be."""
    journals = [each for each in process.mappings() if is_ours(each) and each.offset == 0]
    return {
        at: int.from_bytes(process.mem.read(at, 8), "little")
        for at, inode in words.items()
        if inode and any(each.start <= at < each.end and each.inode == inode for each in journals)
    }


def _file_at(address: int, mappings: "Iterable[Mapped]") -> tuple[object, ...] | None:
    """Return which part of which file is mapped at an address."""
    found = next((each for each in mappings if each.start <= address < each.end), None)
    return None if found is None else (found.device, found.inode, found.offset - found.start)


def _is_made(memory: "Memory", change: FunctionChange) -> bool:
    """Return whether a child has inherited a change: it may have been made right before the fork."""
    return all(memory.read(splice.address, len(splice.new)) == splice.new for splice in change.added) and all(
        memory.read(splice.address, len(splice.new)) != splice.new
        for splice in change.removed
        if splice.address not in {each.address for each in change.added}
    )


def has_all(theirs: "Iterable[Mapped]", wanted: "Iterable[Mapped]") -> bool:
    """Return whether a child has all memory that patches need: what was mapped after the fork it has not.

    The same addresses are not enough: there may be another session's memory there. Only counters, which are written,
    are elsewhere in the same file once a child has blocks of its own.
    """
    there = [each for each in theirs if is_ours(each)]  # by address
    for piece in wanted:
        end = piece.start
        for each in there:
            if each.end <= end or each.inode != piece.inode or each.perms != piece.perms:
                continue
            if each.start > end:
                break
            if piece.writable or each.offset - each.start == piece.offset - piece.start:
                end = each.end
        if end < piece.end:
            return False
    return True


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
