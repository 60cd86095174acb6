"""What has become of what a session has installed: made by its changes, lost with modules, written over by others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from anyprobe.core.errors import TargetError
from anyprobe.splice.apply.outcomes import settle
from anyprobe.splice.apply.staleness import Losses
from anyprobe.splice.apply.text_watch import TRAPPED, TextWatch

if TYPE_CHECKING:
    from anyprobe.core.refusal import Refusal
    from anyprobe.splice.apply.recovery.saved_copies import Saved
    from anyprobe.splice.apply.sigreturn_targets import Way
    from anyprobe.splice.edits import Edit, Module
    from anyprobe.splice.emitted import EmittedSplice, FunctionChange
    from anyprobe.splice.regions.holdings import Holdings
    from anyprobe.target.base import Target
    from anyprobe.target.system.procfs import Mapping as MemoryMapping

_MOST_TOLD = 20


class MadeChanges(Protocol):
    """A transaction that is made."""

    @property
    def remaining(self) -> "Sequence[FunctionChange]":
        """The changes that are made."""
        ...

    @property
    def left_ways(self) -> "AbstractSet[Way]":
        """The ways back on which no thread was."""
        ...

    def refusal_of(self, change: "FunctionChange") -> "Refusal | None":
        """Return why a change is not."""
        ...

    def finish(self) -> None:
        """Clear the journal of what is not in place."""
        ...


class Witness(Protocol):
    """What else has to do with a session's changes, and has records in its journals."""

    def note_made(self, made: MadeChanges) -> None:
        """Take note of changes that are made, before the journal is cleared."""
        ...

    def note_losses(self, mappings: "Sequence[MemoryMapping]") -> None:
        """Take note of what is not mapped any more."""
        ...

    def note_lost(self) -> None:
        """Take note that splices are lost."""
        ...

    def clear_records(self) -> None:
        """Have the journals list no more what is lost."""
        ...

    def yield_to_breakpoint(self, splice: "EmittedSplice", modules: "Sequence[Module]") -> str:
        """See to a splice on which a breakpoint was set; return what is to be said of it."""
        ...


class Upkeep:
    """Knows the modules of one session, and looks whether their splices are there."""

    def __init__(self, target: "Target", holdings: "Holdings", modules: "list[Module]", witness: Witness) -> None:
        """Look after ``modules``, now and later; ``witness`` hears of changes and losses."""
        self._target, self._holdings, self._witness = target, holdings, witness
        self._losses, self._text = Losses(), TextWatch()
        self._noted: Callable[[], object] = lambda: None
        self.modules = modules
        """What is spliced, or may be."""

    def add_module(self, module: "Module") -> None:
        """Look after a module, too."""
        if module not in self.modules:
            self.modules.append(module)

    @property
    def evicted(self) -> bool:
        """Whether another anyprobe has removed the session."""
        return self._losses.evicted

    @property
    def is_installed(self) -> bool:
        """Whether anything of the session is in the target."""
        return bool(self._holdings.arenas) and not self._losses.evicted

    @property
    def saved_copies(self) -> "Sequence[Saved]":
        """Where the program may have saved a splice's bytes as its own, to be written back at some time."""
        return list(self._text.saved.values())

    def note_losses(self, mappings: "Sequence[MemoryMapping]") -> None:
        """Take note of what is installed no more, by the memory map."""
        memory = self._holdings.inodes()
        if not self._losses.evicted and self._losses.misses(memory, mappings):
            self._target.verify()  # after an exec nothing is where it was, and no other session's doing
        self._witness.note_losses(mappings)
        if self._losses.note(self.modules, memory, mappings, self._target.mem):
            self._witness.note_lost()

    def clear_records(self) -> None:
        """Have the journals list no more what is lost. Precondition: no other session changes them now."""
        self._losses.clear_records(self._holdings.records)
        self._witness.clear_records()

    def forget_lost(self, mappings: "Sequence[MemoryMapping]") -> None:
        """Have the journals list no more what is lost, as the memory map has it now."""
        self.note_losses(mappings)
        if not self._losses.evicted:
            self.clear_records()

    def forget_splices(self) -> None:
        """Let all go that is known of splices, of a session that is over."""
        self._holdings.records.forget()
        self._text = TextWatch()
        for module in self.modules:
            module.functions.clear()

    def look_for_returned(self) -> None:
        """See which overwritten splices are there again: they can be taken out like any other."""
        self._text.look_for_returned(self._target.mem)

    def look_at_text(self, mappings: "Sequence[MemoryMapping]") -> "tuple[list[str], list[EmittedSplice]]":
        """See which splices were overwritten since the last look; return what is to be said, and what has to go."""
        found = self._text.look(self.modules, self._target.mem)
        found += self._text.in_writable(self.modules, mappings)
        leaving = self._text.leaving(self.modules)
        told = [f"at {splice.address:#x}: {why}" for splice, why in found if why is not TRAPPED]
        trapped = [splice for splice, why in found if why is TRAPPED]
        told += [
            f"at {at.address:#x}: {TRAPPED}; {self._witness.yield_to_breakpoint(at, self.modules)}" for at in trapped
        ]
        return told[:_MOST_TOLD] + self._losses.tell_replaced(), leaving

    @contextmanager
    def telling(self, noted: Callable[[], object]) -> Iterator[None]:
        """Have ``noted`` called, within a ``with`` block, when changes are made and taken note of: a thread may wait.

        What else is to be done comes after it.
        """
        before, self._noted = self._noted, noted
        try:
            yield
        finally:
            self._noted = before

    def conclude(self, made: MadeChanges, arming: "Mapping[Edit, str]") -> None:
        """Take note of what has changed, then clear the journal, which may fail; ``arming``: how each edit is made."""
        self._witness.note_made(made)
        for edit, how in arming.items():
            if edit.change is not None:
                settle(edit, edit.change, made.refusal_of(edit.change), how)
        self._noted()
        made.finish()
        with suppress(TargetError):  # a process that has ended changes nothing any more
            self._text.begin(made.remaining, self._target.mem)
