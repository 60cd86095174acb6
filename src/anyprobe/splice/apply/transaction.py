"""One stop, many splices: check everything again, then write, or undo.

Every prefix of the writes is a correct program: patches and springboards are in place before the stop, the journal
lists each splice before its bytes change, and a splice never straddles a page, which the kernel copies as a whole. So
a controller killed at any moment releases threads into a program that works.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from anyprobe.core.address import PAGE, page_floor
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.journal.records import Journal, Record, RecordKind, marked
from anyprobe.splice.apply.blocked_syscalls import SYSCALL, is_asleep
from anyprobe.splice.apply.dead_jumps import destination_of
from anyprobe.splice.apply.sigreturn_targets import Lingering, SigreturnTargets, Way
from anyprobe.splice.apply.text import make_private, write_all_at_rest
from anyprobe.splice.apply.unsafe_pcs import FAULTS, NOWHERE, UnsafePcs, destination
from anyprobe.splice.emitted import EmittedSplice, FunctionChange
from anyprobe.splice.regions.holdings import SpliceRecords
from anyprobe.target.base import Quiescence

if TYPE_CHECKING:
    from anyprobe.target.base import StoppedThread, Target
    from anyprobe.target.system.procfs import Mapping

_Stop = TypeVar("_Stop", bound=Quiescence)
_AnyStop_contra = TypeVar("_AnyStop_contra", bound=Quiescence, contravariant=True)


class SavedPcs(Protocol[_AnyStop_contra]):
    """Finds where threads will come back to that are somewhere else now, for one kind of target."""

    def look(self, mappings: "Sequence[Mapping]") -> None:
        """Find out before the stop what takes long."""
        ...

    def of_all(self, stop: _AnyStop_contra) -> Iterable[tuple[int, Sequence[int]]]:
        """Yield the saved pcs of each thread of a stop, by its number."""
        ...


class TrapTable(Protocol[_AnyStop_contra]):
    """Leads threads from the traps of changes to their patches."""

    def check(self, stop: _AnyStop_contra, changes: Sequence[FunctionChange]) -> Refusal | None:
        """Return why no trap may be placed now, everything being stopped."""
        ...

    def publish(self, changes: Sequence[FunctionChange]) -> None:
        """Make the sites of changes known. Precondition: all is stopped."""
        ...

    def withdraw(self) -> None:
        """After writes that failed and were undone: know the sites no more."""
        ...


@dataclass(slots=True)
class _Page:
    before: bytes
    after: bytearray
    low: int = PAGE
    high: int = 0


class Transaction(Generic[_Stop]):
    """Applies function changes to a target in one stop of its kind.

    All the thinking is done outside the stop: pages are read and made private, the result is laid out, the journal
    lists what is intended (an intended splice whose bytes are the old ones is nothing to undo).
    """

    def __init__(
        self,
        target: "Target",
        changes: Sequence[FunctionChange],
        journal: Journal | None,
        records: SpliceRecords,
        saved_pcs: SavedPcs[_Stop],
        traps: TrapTable[_Stop] | None = None,
        lingering: Lingering | None = None,
    ) -> None:
        """Prepare; changes whose bytes are not what they should be are refused here.

        Args:
            target: What is changed.
            changes: The changes.
            journal: What is to list the splices that are added, where there are any.
            records: Where it is noted which record lists which splice.
            saved_pcs: Finds where threads will come back to.
            traps: Given where traps are among the changes.
            lingering: Given where the program's signal handlers bring threads in patches back to the sites.

        """
        self._target, self._changes, self._journal, self._records = target, changes, journal, records
        self._saved_pcs, self._traps = saved_pcs, traps
        self._pages: dict[int, _Page] = {}
        self._refused: dict[FunctionChange, Refusal] = {}
        self.done = False
        """Whether the changes are in place."""
        for change in changes:
            if not self._put_plain(change):
                self._read(change)
                if change not in self._refused:
                    self._lay_out(change)
        self._check_borrowed()
        self._make_private()
        self._write_journal()
        self._expected = {
            start: b"".join(self._pages[start + number * PAGE].before for number in range(count))
            for start, count in self._runs()
        }
        self._unsafe_pcs = UnsafePcs(changes)
        self._interiors = sorted(
            (
                (*interior, change)
                for change in self.remaining
                for splice in change.added
                if (interior := splice.interior) is not None
            ),
            key=lambda item: item[0],
        )
        self._boards = {
            splice.address: (change, destination_of(splice.address, splice.new))
            for change in changes
            for splice in change.removed
            if splice.is_springboard
        }
        """The jumps in dead bytes that go: who stands at one has left its site and must still come to the patch."""
        self._lows = [low for low, _, _ in self._interiors]
        self._sigreturn_targets = SigreturnTargets(
            () if lingering is None else lingering.with_removed(changes), self._interiors
        )

    @property
    def remaining(self) -> Sequence[FunctionChange]:
        """The changes that are not refused: those that are made, once it is ``done``."""
        refused = self._refused
        return [change for change in self._changes if change not in refused] if refused else self._changes

    def refusal_of(self, change: FunctionChange) -> Refusal | None:
        """Return why a change is left out."""
        return self._refused.get(change)

    @property
    def left_ways(self) -> AbstractSet[Way]:
        """The ways back on which no thread was when the changes were made: none leads there any more."""
        return self._sigreturn_targets.empty(self._refused)

    def _read(self, change: FunctionChange) -> None:
        known = self._pages
        spans = [(splice.address, splice.address + len(splice.old)) for splice in change.removed]
        spans += [splice.extent for splice in change.added]
        for start, end in spans:
            first, last = start & -PAGE, (end - 1) & -PAGE
            if (first in known or self._read_page(first)) and (last in known or self._read_page(last)):
                continue
            self._refused[change] = Refusal(Reason.GONE, start, "the module is no longer mapped")
            return

    def _read_page(self, page: int) -> bool:
        """Read a page; return ``False`` if it is not there any more."""
        try:
            before = self._target.mem.read(page, PAGE)
        except MemoryFault:
            if any(m.start <= page < m.end for m in self._target.mappings()):
                raise  # it is there, with our splices in it
            return False
        self._pages[page] = _Page(before, bytearray(before))
        return True

    def _make_private(self) -> None:
        """Have the kernel copy the pages that will be written, by one byte each, while the program runs."""
        added = [splice for change in self.remaining for splice in change.added]
        # where splices are removed, the pages have been written to before
        wanted = {splice.address & -PAGE for splice in added}
        wanted.update([splice.address + len(splice.old) - 1 & -PAGE for splice in added])
        for page in wanted:
            make_private(self._target.mem, page, self._pages[page].before[:1])

    def refuse(self, change: FunctionChange, refusal: Refusal) -> None:
        """Leave a change out; only before ``run`` or in it."""
        if change not in self._refused:
            self._unapply(change, refusal)

    def rehearse(self) -> None:
        """Look once more, right before the stop: it then finds in the caches what it needs while everybody waits."""
        mappings = self._target.mappings()
        if self._interiors or self._boards:
            self._saved_pcs.look(mappings)
        self._reread()

    def recheck(self) -> None:
        """See whether the text still is what was read, for a change without a stop; refuse what it contradicts."""
        self._reread()

    def struck(self, stop: _Stop) -> Refusal | None:
        """Return a refusal if threads have to run a little first, until none is in the way of a change.

        One has met a trap where something is to be changed, and does not know it yet; or is in a patch that goes and
        whose site does not stay.
        """
        for thread in stop.threads if self._target.meets_traps else ():
            pc = thread.registers.rip
            if self._unsafe_pcs.at(pc) is not None and thread.awaits_trap():
                return Refusal(Reason.TRAP_UNSAFE, pc, f"thread {thread.tid} has just met a trap before {pc:#x}")
        taken = self._sigreturn_targets.taken(self._target.mem, stop, self._unsafe_pcs.leaving)
        return next((why for _, why in taken), None)

    def bytes_at(self, address: int, size: int) -> tuple[bytes, bytes]:
        """Return what memory has, and what it will have, at a place that a change writes to; it lies on one page."""
        page, offset = self._pages[page_floor(address)], address & (PAGE - 1)
        return page.before[offset : offset + size], bytes(page.after[offset : offset + size])

    def run(self, stop: _Stop, check: Callable[[], None] | None = None) -> None:
        """Check and write. Preconditions: everything that shares the address space is stopped and verified.

        Changes that cannot be made now are refused and left out; a failure, of ``check`` too, undoes all and is raised.
        """
        self._reread()
        self._check_traps(stop)
        moves = self._check_threads(stop.threads)
        self._check_waiting_parents(stop)
        self._check_stacks(stop)
        for change, why in self._sigreturn_targets.taken(self._target.mem, stop, self._unsafe_pcs.leaving):
            self.refuse(change, why)
        if check is not None:
            check()
        moved = [
            (thread, thread.registers.rip, target) for thread, change, target in moves if change not in self._refused
        ]
        # before the heads change: a thread let go by our death must not meet them inside
        for thread, _, target in moved:
            thread.registers.rip = target
            thread.store_registers()
        try:
            if self._traps is not None:
                self._traps.publish(self.remaining)
            self._write_pages()
        except BaseException:
            if self._traps is not None:
                self._traps.withdraw()
            for thread, pc, _ in moved:
                thread.registers.rip = pc
                thread.store_registers()
            raise
        self.done = True

    def forget(self) -> None:
        """After a stop that failed, all writes undone: clear the journal of what was intended, if it still can be."""
        for change in self._changes:
            self._refused.setdefault(change, Refusal(Reason.THREAD_IN_SYSCALL, change.address, "the stop failed"))
        with suppress(TargetError, MemoryFault):
            self.finish()

    def finish(self) -> None:
        """After the stop: clear the journal of what is no longer (or did not get) in place."""
        self._records.clear(splice for change in self._changes for splice in self._outlived(change))

    def _outlived(self, change: FunctionChange) -> tuple[EmittedSplice, ...]:
        """Return the splices of a change that the journal need not list any more."""
        why = self._refused.get(change)
        if why is not None and why.reason is Reason.GONE:  # then its splices are no more either
            return change.removed + change.added
        return change.removed if why is None else change.added

    def _runs(self) -> list[tuple[int, int]]:
        """Return (first page, number of pages) of adjacent pages."""
        runs: list[tuple[int, int]] = []
        for page in sorted(self._pages):
            if runs and runs[-1][0] + runs[-1][1] * PAGE == page:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((page, 1))
        return runs

    def _reread(self) -> None:
        """See whether a page changed between preparation and stop; if so, lay everything out anew."""
        changed = False
        for start, count in self._runs():
            content = self._target.mem.read(start, count * PAGE)
            if content == self._expected.get(start):
                continue
            for number in range(count):
                now = content[number * PAGE : (number + 1) * PAGE]
                page = self._pages[start + number * PAGE]
                if now != page.before:
                    page.before, changed = now, True
        if not changed:
            return
        for page in self._pages.values():
            page.after = bytearray(page.before)
        for change in self.remaining:
            if not self._put_plain(change):
                self._lay_out(change)
        self._check_borrowed()

    def _lay_out(self, change: FunctionChange) -> None:
        """Lay a change out in the pages, or leave it out."""
        refusal = self._apply(change)
        if refusal is not None:
            self._refused[change] = refusal

    def _apply(self, change: FunctionChange) -> Refusal | None:
        """Lay the change out in the pages, or say which bytes are not what they should be."""
        for splice in change.removed:
            found = self._get(splice.address, len(splice.new))
            if found not in (splice.new, splice.old):  # old: it was loaded anew
                return Refusal(Reason.FOREIGN_BYTES, splice.address, "another program overwrote the splice")
        for splice in change.removed:
            self._put(splice.address, splice.old)
        for splice in change.added:  # before any is written: the springboard of one may be in what another displaces
            if not self._as_planned(splice):
                self._revert(change)
                return Refusal(
                    Reason.FOREIGN_BYTES, splice.address, "memory differs from the file: another patcher was here"
                )
        for splice in change.added:
            self._put(splice.address, splice.new)
        return None

    def _put_plain(self, change: FunctionChange) -> bool:
        """Lay out a change that only adds one splice, all on one page; return whether it is one, and the bytes fit."""
        if change.removed or len(change.added) != 1:
            return False
        splice = change.added[0]
        address, whole, new = splice.address, splice.whole, splice.new
        offset = address & (PAGE - 1)
        end = offset + len(whole)
        if end > PAGE or len(new) > len(whole) or splice.borrowed or splice.whole_at != address:
            return False
        page = self._pages.get(address - offset)
        if page is None:
            if not self._read_page(address - offset):
                return False
            page = self._pages[address - offset]
        if page.after[offset:end] != whole:
            return False
        end = offset + len(new)
        page.after[offset:end] = new
        page.low = min(page.low, offset)
        page.high = max(page.high, end)
        return True

    def _as_planned(self, splice: EmittedSplice) -> bool:
        """Return whether the bytes to be written are the file's, and the rest of those instructions too."""
        if self._get(splice.address, len(splice.old)) != splice.old:
            return False
        return not splice.whole or self._get(splice.whole_at, len(splice.whole)) == splice.whole

    def _check_borrowed(self) -> None:
        """Leave out puns whose borrowed bytes are not what the file says: they would jump astray."""
        for change in self.remaining:
            for splice in change.added:
                if not splice.borrowed:
                    continue
                at = splice.address + len(splice.old)
                if self._get(at, len(splice.borrowed)) != splice.borrowed:
                    detail = "bytes that the punned jump would depend on have been changed"
                    self._unapply(change, Refusal(Reason.FOREIGN_BYTES, at, detail))
                    break

    def _unapply(self, change: FunctionChange, refusal: Refusal) -> None:
        self._refused[change] = refusal
        self._revert(change)

    def _revert(self, change: FunctionChange) -> None:
        """Put back what was found, which for a splice whose module was loaded anew is not the splice."""
        for splice in (*change.added, *change.removed):
            for start in range(splice.address, splice.address + len(splice.old)):
                page = self._pages[page_floor(start)]
                page.after[start & (PAGE - 1)] = page.before[start & (PAGE - 1)]

    def _get(self, address: int, size: int) -> bytearray:
        offset = address & (PAGE - 1)
        if offset + size <= PAGE:
            return self._pages[address - offset].after[offset : offset + size]
        return self._get(address, PAGE - offset) + self._get(page_floor(address) + PAGE, offset + size - PAGE)

    def _put(self, address: int, content: bytes) -> None:
        offset = address & (PAGE - 1)
        end = offset + len(content)
        if end > PAGE:
            here = PAGE - offset
            self._put(address, content[:here])
            self._put(address + here, content[here:])
            return
        page = self._pages[address - offset]
        page.after[offset:end] = content
        page.low = min(page.low, offset)
        page.high = max(page.high, end)

    def _check_traps(self, stop: _Stop) -> None:
        """Leave out traps that could harm a thread in its present state."""
        refusal = None if self._traps is None else self._traps.check(stop, self._changes)
        if refusal is None:
            return
        for change in self.remaining:
            if change.traps:
                self._unapply(change, refusal)

    def _check_threads(self, threads: Iterable["StoppedThread"]) -> list[tuple["StoppedThread", FunctionChange, int]]:
        """Leave out changes that a thread is in the way of; return which threads must move where."""
        moves = []
        for thread in threads:
            pc = thread.registers.rip
            if (away := self._boards.get(pc) or self._unsafe_pcs.out_of_copy(pc)) is not None:
                moves.append((thread, *away))
                continue
            leaving = self._unsafe_pcs.leaving(pc)
            asleep = is_asleep(self._target.mem, thread) and (leaving or self._unsafe_pcs.at(pc - len(SYSCALL)))
            change = self._unsafe_pcs.at(pc - len(SYSCALL) if asleep else pc) if leaving is None else leaving[0]
            if leaving is not None:
                target = self._way_out(*leaving) if asleep else None
            else:
                target = self._way_in(thread, change, asleep=bool(asleep)) if change is not None else None
            if change is not None and target is not None:
                moves.append((thread, change, target))
        return moves

    def _way_in(self, thread: "StoppedThread", change: FunctionChange, *, asleep: bool) -> int | None:
        """Return where in a patch a thread must go, if it must; leave the change out if it is in the way."""
        pc = thread.registers.rip
        faulted = not asleep and thread.awaits(*FAULTS)
        target = None if change in self._refused else destination(change, pc, asleep=asleep, faulted=faulted)
        if target != NOWHERE:
            return target
        where = "is inside the system call before" if asleep else "is at no instruction of the function at"
        self._unapply(change, Refusal(Reason.THREAD_IN_SYSCALL, pc, f"thread {thread.tid} {where} {pc:#x}"))
        return None

    def _way_out(self, change: FunctionChange, origin: int) -> int | None:
        """Return where a thread asleep in a patch that goes may go, ``origin`` or a new patch; else it stays."""
        into = self._unsafe_pcs.at(origin - len(SYSCALL))
        if into is None:
            return origin
        target = destination(change, origin, asleep=True) if into is change else None
        return None if target == NOWHERE else target

    def _check_waiting_parents(self, stop: _Stop) -> None:
        """Leave out changes that a parent waiting in vfork will come back into: it cannot be moved."""
        for parent in stop.waiting:
            change = self._unsafe_pcs.at(parent.pc)
            if change is not None and change not in self._refused and destination(change, parent.pc) is not None:
                detail = f"thread {parent.tid} waits here for a vfork child"
                self._unapply(change, Refusal(Reason.THREAD_IN_SYSCALL, parent.pc, detail))

    def _check_stacks(self, stop: _Stop) -> None:
        """Leave out several-instruction jumps into whose JTPR some signal handler will return."""
        if not self._interiors and not self._boards:
            return
        for tid, saved in self._saved_pcs.of_all(stop):
            for pc in saved:
                if pc in self._boards:
                    self._refuse_return(tid, self._boards[pc][0], pc)
                index = bisect_right(self._lows, pc) - 1
                if index >= 0 and pc < self._interiors[index][1]:
                    self._refuse_return(tid, self._interiors[index][2], self._interiors[index][0])

    def _refuse_return(self, tid: int, change: FunctionChange, where: int) -> None:
        if change not in self._refused:
            detail = f"a signal handler of thread {tid} will return into the bytes to overwrite"
            self._unapply(change, Refusal(Reason.SIGNAL_CONTEXT_IN_JTPR, where, detail))

    def _write_journal(self) -> None:
        added = [splice for change in self.remaining for splice in change.added]
        if not added:
            return
        assert self._journal is not None
        self._records.add(self._journal, added, [each for change in self.remaining for each in _records_of(change)])

    def _write_pages(self) -> None:
        """Write the changed pages, adjacent ones with one call: the kernel copies page by page."""
        write_all_at_rest(self._target.mem, map(self._rewritten, self._runs()))

    def _rewritten(self, run: tuple[int, int]) -> tuple[int, bytes, bytes]:
        """Return where adjacent pages change, and the bytes before and after."""
        start, count = run
        pages = [self._pages[start + number * PAGE] for number in range(count)]
        low, high = pages[0].low, (count - 1) * PAGE + pages[-1].high
        before = b"".join(page.before for page in pages)[low:high]
        return start + low, before, b"".join(page.after for page in pages)[low:high]


def _records_of(change: FunctionChange) -> Iterator[Record]:
    """Yield what a journal says of the splices that a change adds."""
    internal = any(want.internal for splice in change.added for want in splice.planned.wants)
    shows_pcs = internal and change.shows_pcs
    for splice in change.added:
        patch, old = splice.patch, splice.old
        place = 0 if patch is None else patch.address
        extra = marked(place, internal=internal and splice.planned.internal, at_handler=shows_pcs)
        yield Record(RecordKind.SPLICE, splice.address, len(old), extra, old, splice.new)
