"""Semaphores of USDT markers: counted up by one for as long as a session listens to what they guard.

They go up before the first place is armed, so that who is forked with the probes has them up, too, and down when the
last one is gone. Precondition of all changes here: no other anyprobe is in the process.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.records import Journal, Record
from anyprobe.splice.edits import Edit
from anyprobe.splice.regions.banks import Hook

if TYPE_CHECKING:
    from anyprobe.splice.regions.access import Access
    from anyprobe.target.system.procfs import Mapping


@dataclass(slots=True)
class _Held:
    """One semaphore that is up, and where the journal says so."""

    journal: Journal
    index: int
    record: Record


class Semaphores:
    """The semaphores that one session counts up and down."""

    def __init__(self, access: "Access") -> None:
        """Hold none."""
        self._access = access
        self._listeners: dict[int, set[Hook]] = {}
        """By address: the hooks for which a semaphore is to be up."""
        self._held: dict[int, _Held] = {}
        self._lost: list[_Held] = []
        """What the journals still list, and need not."""
        self._complaints: list[str] = []

    def complaints(self) -> list[str]:
        """Return what the user should know, once."""
        told, self._complaints = self._complaints, []
        return told

    def raise_for(self, edits: Iterable[Edit]) -> None:
        """Count up the semaphores of what is about to be armed."""
        fresh: list[int] = []
        for edit in edits:
            for want in edit.added if edit.change is not None else ():
                hook = want.tag
                if isinstance(hook, Hook) and hook.semaphore:
                    self._listeners.setdefault(hook.semaphore, set()).add(hook)
                    fresh += [hook.semaphore] if hook.semaphore not in self._held else []
        if fresh:
            mappings = self._access.process.mappings()
            for address in dict.fromkeys(fresh):
                self._raise(address, mappings)

    def settle(self) -> None:
        """Count down the semaphores of what is armed no more, or has not been armed after all."""
        for address, hooks in list(self._listeners.items()):
            hooks -= {hook for hook in hooks if not hook.armed}
            if not hooks:
                del self._listeners[address]
                with suppress(TargetError):  # the target is gone; if it is not, the journal still has the record
                    self._lower(address)

    def note_losses(self, mappings: "Sequence[Mapping]") -> None:
        """Take note of what is not mapped any more: where it comes back, it begins with what its file has."""
        if not self._held:
            return
        from anyprobe.journal.semaphores import is_in_place

        for address, each in list(self._held.items()):
            if not is_in_place(each.record, mappings):
                self._lost.append(self._held.pop(address))

    def clear_records(self) -> None:
        """Have the journals list no more what is lost."""
        for each in self._lost:
            each.journal.clear([each.index])
        self._lost.clear()

    def _raise(self, address: int, mappings: "Sequence[Mapping]") -> None:
        from anyprobe.journal.semaphores import HIGHEST, NUMBER, changing, held, place_of

        memory, journal = self._access.process.mem, self._access.holdings.journal()
        place = place_of(address, mappings)
        if place is None or journal is None:
            what = "is not mapped" if place is None else "finds no room in the journal"
            self._complaints.append(f"the semaphore at {address:#x} {what}: what it guards may never be hit")
            return
        try:
            value = NUMBER.unpack(memory.read(address, NUMBER.size))[0]
            if value == HIGHEST:
                self._complaints.append(f"the semaphore at {address:#x} is at its highest, and was not counted up")
                return
            record = held(address, place)
            (index,) = journal.add([changing(record, value, value + 1)])
            try:
                memory.write(address, NUMBER.pack(value + 1))
            except MemoryFault:
                journal.clear([index])
                raise
            journal.rewrite([(index, record)])
        except MemoryFault as fault:
            self._complaints.append(f"the semaphore at {address:#x} cannot be counted up: {fault}")
            return
        self._held[address] = _Held(journal, index, record)

    def _lower(self, address: int) -> None:
        each = self._held.get(address)
        if each is None:
            return
        from anyprobe.journal.semaphores import NUMBER, changing, is_in_place, released

        memory = self._access.process.mem
        try:
            if is_in_place(each.record, self._access.process.mappings()):
                value = NUMBER.unpack(memory.read(address, NUMBER.size))[0]
                after = released(each.record, value)
                if after == value:
                    self._complaints.append(
                        f"another process has counted down the semaphore at {address:#x} to {value}"
                    )
                else:
                    each.journal.rewrite([(each.index, changing(each.record, value, after))])
                    memory.write(address, NUMBER.pack(after))
            each.journal.clear([each.index])
        except MemoryFault as fault:
            self._complaints.append(f"the semaphore at {address:#x} cannot be counted down: {fault}")
            return
        del self._held[address]
