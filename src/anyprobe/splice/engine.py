"""A change of splices in five steps: plan, prepare, emit, arm, settle. One engine per target address space.

The engine works on any ``Target``. What it needs besides is handed in: memory for code and counters, and a change's
surroundings, which are signal handlers and the like for a process (``processes``), or what a kernel has in their place.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from anyprobe.core.checkpoints import checkpoint
from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Refusal
from anyprobe.journal.records import Record, RecordKind
from anyprobe.splice.apply.emission import Emission, worth_moving
from anyprobe.splice.apply.outcomes import abandon, give_up, without_gone
from anyprobe.splice.apply.site_clobbers import SiteClobbers
from anyprobe.splice.apply.staleness import additions, gone, modules_of
from anyprobe.splice.edits import Edit, Module, hook_of
from anyprobe.splice.planning import LivePlanning, Planning
from anyprobe.splice.regions.banks import banks_of
from anyprobe.target.base import Quiescence

if TYPE_CHECKING:
    from anyprobe.journal.records import Journal
    from anyprobe.splice.apply.transaction import Transaction
    from anyprobe.splice.apply.upkeep import Upkeep
    from anyprobe.splice.codegen.timing.trampoline import Trampolines
    from anyprobe.splice.emitted import EmittedPatch, FunctionChange
    from anyprobe.splice.regions.holdings import Holdings
    from anyprobe.target.base import Target
    from anyprobe.target.system.procfs import Mapping as MemoryMapping

_Stop = TypeVar("_Stop", bound=Quiescence)
_AnyStop_contra = TypeVar("_AnyStop_contra", bound=Quiescence, contravariant=True)


class CodeMemory(Protocol):
    """Gets the memory that changes need: for code, counters and journals."""

    def prepare(self, edits: Sequence[Edit]) -> None:
        """See that all that planned edits need is there, with a place to count for each hook; else raise."""
        ...


class Surroundings(Protocol[_Stop]):
    """What the code around a change does, and what it has to be shown, kept from or asked."""

    def evicted(self) -> TargetError:
        """Return the error for a session that another anyprobe has removed."""
        ...

    def check_sessions(self, mappings: "Sequence[MemoryMapping]") -> None:
        """Raise if the target is another session's, or this session's no more."""
        ...

    def first(self) -> Sequence[Edit]:
        """Return the edits that are made by themselves, before others that are made without a stop."""
        ...

    def look(self, edits: Sequence[Edit], *, urgent: bool) -> Sequence[Edit]:
        """See what the program does by now; return the edits with those that this needs, if they are not urgent."""
        ...

    @property
    def view_root(self) -> int:
        """Where the address is kept of the tables that say what handlers are shown."""
        ...

    def describe(self, edits: Sequence[Edit]) -> Iterable[tuple[Edit, Refusal]]:
        """Say in tables what was emitted, which is not in use yet; yield the edits that must not be made."""
        ...

    def install(self, edits: Sequence[Edit]) -> Iterable[tuple[Edit, Refusal]]:
        """Set up what the edits need in the program; yield those that must not be made, which are given up at once."""
        ...

    def begin(self, edits: Sequence[Edit]) -> None:
        """Do what has to be done right before edits are made."""
        ...

    def transaction(self, changes: Sequence["FunctionChange"], journal: "Journal | None") -> "Transaction[_Stop]":
        """Return the transaction that makes some changes."""
        ...

    def stop(
        self, changes: Sequence["FunctionChange"], struck: Callable[[_Stop], Refusal | None]
    ) -> AbstractContextManager[_Stop]:
        """Stop everything, at a moment when changes can be made; ``struck`` says why this one is none."""
        ...

    def settle(self, edits: Sequence[Edit]) -> None:
        """Take note of what is in place, whatever came of the edits."""
        ...

    def note_refusals(self) -> None:
        """After edits that were made or refused: take note of what could not be done for the surroundings."""
        ...


class Whole(Protocol[_AnyStop_contra]):
    """Says when several edits may be made, of which all are made at one moment, or none."""

    def check(self, edits: Sequence[Edit], refusal_of: Callable[[Edit], Refusal | None]) -> None:
        """Raise if one of the edits cannot be made."""
        ...

    def suits(self, stop: _AnyStop_contra) -> bool:
        """Return whether this is the moment; raise where none has come in time."""
        ...

    def wait(self) -> None:
        """Let the program run for a while after a moment that did not suit."""
        ...


class LiveChanges(LivePlanning, Protocol):
    """Makes changes without a stop, as far as that can be."""

    left: "list[EmittedPatch]"
    """Patches that were taken out, in which threads may be asleep."""

    def make(self, edits: Sequence[Edit]) -> dict[Edit, str]:
        """Make and settle what can be made now; return the other edits, and how it is said that they need a stop."""
        ...


class Engine(Generic[_Stop]):
    """Places and removes splices in one target."""

    def __init__(
        self,
        target: "Target",
        holdings: "Holdings",
        planning: Planning,
        memory: CodeMemory,
        surroundings: Surroundings[_Stop],
        upkeep: "Upkeep",
        clobbers: SiteClobbers,
        *,
        live: LiveChanges | None = None,
        note_stubs: "Callable[[Trampolines], None]" = lambda _: None,
        whole: "Callable[[], Whole[_Stop] | None]" = lambda: None,
    ) -> None:
        """Serve a target.

        Args:
            target: The target.
            holdings: What is mapped there for the session.
            planning: Turns edits into plans.
            memory: Gets the memory that changes need.
            surroundings: What the code around a change does and needs.
            upkeep: Knows what has become of what is installed, and has the modules.
            clobbers: Tells what patches may overwrite.
            live: Given where changes are to be made without a stop if that can be.
            note_stubs: Called with stubs that may be used from now on.
            whole: Returns what the present changes need to be made at all, if they need that.

        """
        self._target, self._holdings, self._planning, self._memory = target, holdings, planning, memory
        self._surroundings, self._upkeep, self._clobbers = surroundings, upkeep, clobbers
        self._live, self._note_stubs, self._whole = live, note_stubs, whole
        self.seconds: dict[str, float] = {"resolve": 0.0, "plan": 0.0, "prepare": 0.0, "arm": 0.0}
        """What took how long; ``resolve`` is the caller's."""

    @property
    def modules(self) -> Sequence[Module]:
        """What is spliced, or may be."""
        return self._upkeep.modules

    def add_module(self, module: Module) -> None:
        """Take note of a module in which something may be spliced."""
        self._upkeep.add_module(module)

    def patches(self) -> "list[EmittedPatch]":
        """Return the patches that threads may be asleep in."""
        splices = (splice for module in self.modules for splice in module.splices())
        left = () if self._live is None else self._live.left
        return [*(splice.patch for splice in splices if splice.patch is not None), *left]

    def change(self, edits: Sequence[Edit], *, urgent: bool = False) -> None:
        """Apply edits. Each added hook then has a splice or a refusal; functions fail one by one, never half.

        When it raises (the target is gone, would not stop), everything is as before. ``urgent``: the edits do not wait
        for what else is to be done by now, as for signal handlers that were set since the last look; the caller sees
        to it that there is another look soon.
        """
        if self._live is not None and not urgent and any(edit.added for edit in edits):
            self._change_all(self._surroundings.first())
        self._change_all(edits, urgent=urgent)

    def _change_all(self, edits: Sequence[Edit], *, urgent: bool = False) -> None:
        if not edits:
            return
        try:
            self._change(edits, urgent=urgent)
        except BaseException:
            for edit in edits:
                if edit.outcome is None:
                    abandon(edit)
            raise

    def _change(self, edits: Sequence[Edit], *, urgent: bool) -> None:
        mappings = self._target.mappings()
        self._upkeep.note_losses(mappings)
        if self._upkeep.evicted:
            raise self._surroundings.evicted()
        for module in modules_of(edits):
            module.note_writable(mappings)
        with self._timed("plan"):
            self._planning.use_space(mappings)
            edits = without_gone(self._surroundings.look(edits, urgent=urgent), mappings)
            self._planning.plan_all(edits, self._live)
        try:
            with self._target.exclusive():
                self._carry_out([edit for edit in edits if not edit.idle])
        finally:
            for module in modules_of(edits):  # also where the target has ended: the next start asks for the same plans
                if module.plans is not None:
                    module.plans.save()

    def _carry_out(self, edits: Sequence[Edit]) -> None:
        with self._timed("prepare"):
            self._surroundings.check_sessions(self._target.mappings())
            self._upkeep.clear_records()
            self._memory.prepare(edits)
            self._emit(edits)
            for edit, why in self._surroundings.describe(edits):
                give_up(edit, why)
            self._open_gates()
            for edit, why in self._surroundings.install(edits):
                give_up(edit, why)
        with self._timed("arm"):
            try:
                self._surroundings.begin(edits)
                self._arm(edits)
            finally:
                self._surroundings.settle(edits)
        self._surroundings.note_refusals()

    def _emit(self, edits: Sequence[Edit]) -> None:
        hooks = (hook_of(want) for edit in edits if edit.planned.plan.splices for want in edit.planned.wants)
        emission = Emission(
            self._holdings.code_regions, self._planning.springboards, self._clobbers,
            lambda: self._surroundings.view_root,
            banks=banks_of(hooks) if len(self._holdings.code_regions) > 1 else (),
            moves=worth_moving(edits) and not self._planning.faults_handled,
        )  # fmt: skip
        for edit in edits:
            if edit.added and (refusal := emission.lay_out(edit)) is not None:
                give_up(edit, refusal)
        for number, edit in enumerate(edits):
            if edit.added:
                checkpoint("generating code", number, len(edits))
            if edit.given_up:
                continue
            found = emission.emit(edit)
            if isinstance(found, Refusal):
                give_up(edit, found)
            else:
                edit.emitted(found)

    def _open_gates(self) -> None:
        """Let what was emitted work, once the journal says how to undo it."""
        for home in self._holdings.code_regions:
            for made in home.unlisted:
                journal = next(journal for journal in self._holdings.journals() if journal.room())
                journal.add([Record(RecordKind.RETURNS, made.stubs, made.count, made.table)])
                self._note_stubs(made)
            home.unlisted.clear()
            for record in home.unlisted_copies:
                next(journal for journal in self._holdings.journals() if journal.room()).add([record])
            home.unlisted_copies.clear()
            for bank in (*self._holdings.banks, *self._holdings.goroutine_banks):
                if home.needs_gate(bank):
                    self._target.mem.write(home.gate.address + 8 * bank.index, bank.mask.to_bytes(8, "little"))
                    home.gate_opened(bank)

    def _arm(self, edits: Sequence[Edit]) -> None:
        whole = self._whole()
        if whole is not None:
            whole.check(edits, lambda edit: edit.refusal)
        arming: Mapping[Edit, str] = dict.fromkeys(edits, "") if self._live is None else self._live.make(edits)
        edits, changes = list(arming), [edit.change for edit in arming if edit.change is not None]
        if not changes:
            return
        journal = self._holdings.journal(sum(len(change.added) for change in changes))
        transaction = self._surroundings.transaction(changes, journal)

        def refusal_of(edit: Edit) -> Refusal | None:
            return edit.refusal if edit.change is None else transaction.refusal_of(edit.change)

        try:
            while not transaction.done:
                transaction.rehearse()
                with self._surroundings.stop(changes, transaction.struck) as stop:
                    if whole is None or whole.suits(stop):
                        for edit in additions(edits, stop.mappings):
                            if edit.change is not None:
                                transaction.refuse(edit.change, gone(edit))
                        transaction.run(stop, None if whole is None else lambda: whole.check(edits, refusal_of))
                if whole is not None and not transaction.done:
                    whole.wait()
        except BaseException:
            if transaction.done:  # the release failed, or Ctrl-C came with it
                self._upkeep.conclude(transaction, arming)
            else:
                transaction.forget()
            raise
        self._upkeep.conclude(transaction, arming)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] += time.perf_counter() - begin
