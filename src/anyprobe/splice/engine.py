"""A change of splices in five steps: plan, prepare, emit, arm, settle. One engine per target address space."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.layout import MAXACTIVE
from anyprobe.splice.apply.emission import Emission, worth_moving
from anyprobe.splice.apply.outcomes import abandon, give_up, settle, without_gone
from anyprobe.splice.apply.preparation import Counting, Preparation, ThreadSlotUnusable
from anyprobe.splice.apply.recovery.saved_copies import Saved
from anyprobe.splice.apply.saved_pcs import FramesOnStacks
from anyprobe.splice.apply.semaphores import Semaphores
from anyprobe.splice.apply.sigreturn_targets import Lingering
from anyprobe.splice.apply.site_clobbers import ClobberSource, SiteClobbers
from anyprobe.splice.apply.staleness import Losses, additions, gone, modules_of
from anyprobe.splice.apply.text_watch import TRAPPED, TextWatch
from anyprobe.splice.apply.transaction import Transaction
from anyprobe.splice.apply.uprobes import see_to
from anyprobe.splice.codegen.stub_directory import StubDirectory
from anyprobe.splice.edits import Edit, Module
from anyprobe.splice.emitted import EmittedPatch, EmittedSplice
from anyprobe.splice.journal.records import Owner, Record, RecordKind
from anyprobe.splice.journal.registrations import Roster
from anyprobe.splice.memory.arena import Arena
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import AUTO, Strategy
from anyprobe.splice.planning import Planning
from anyprobe.splice.regions.access import Access
from anyprobe.splice.regions.code_region import Neighbourhood, SlotBank
from anyprobe.splice.regions.holdings import Holdings
from anyprobe.splice.regions.stores import Store, map_stores
from anyprobe.splice.userspace.fault_catching import FaultCatching
from anyprobe.splice.userspace.signal_view import SignalView
from anyprobe.splice.userspace.traps import Traps
from anyprobe.target.base import ProcessQuiescence, ProcessTarget, SystemCalls
from anyprobe.target.system import procfs
from anyprobe.target.system.procfs import Mapping as MemoryMapping

if TYPE_CHECKING:
    from anyprobe.splice.apply.live.changes import LiveArming, Proof
    from anyprobe.splice.plan.planner import Planner

_MOST_TOLD = 20


class Engine:
    """Places and removes splices in one target."""

    def __init__(
        self,
        process: ProcessTarget,
        clobbers: ClobberSource,
        *,
        allowed: frozenset[Strategy] = AUTO,
        slots: bool,
        maxactive: int = MAXACTIVE,
        proof: "Proof | None" = None,
    ) -> None:
        """Serve a process.

        Args:
            process: The target.
            clobbers: Tells what is dead at an instruction.
            allowed: The strategies that may be used.
            slots: Whether the target's runtime has thread slots for anyprobe.
            maxactive: Instances of calls that a thread can have at once.
            proof: Given where changes are to be made without a stop if that can be: why they cannot.

        """
        self.process = process
        owner = Owner(os.urandom(16), os.getpid(), procfs.read_stat(os.getpid()).start_time)
        self._holdings = Holdings(owner)
        self._access = Access(process, self._holdings)
        self._planning, self._counting = Planning(process, allowed=allowed, slots=slots), Counting(maxactive)
        self._modules: list[Module] = []
        self.seconds: dict[str, float] = {"resolve": 0.0, "plan": 0.0, "prepare": 0.0, "arm": 0.0}
        """What took how long; ``resolve`` is the caller's."""
        self._traps = Traps(self._access)
        self._faults = FaultCatching(self._access, live=proof is not None)
        self.view = SignalView(
            process, self._holdings, self._modules, self._planning.springboards, self._traps, self._faults,
            hides_faults=self._planning.hides_faults, calls=self._borrowed,
        )  # fmt: skip
        """What signal handlers are shown."""
        self._planning.regard(self.view)
        self.semaphores = Semaphores(self._access)
        """What the program asks whether somebody listens."""
        self._lingering = Lingering()
        self._losses = Losses()
        self._text = TextWatch()
        self._clobbers = SiteClobbers(lambda: self.view.faults, clobbers)
        self.roster = Roster(self._access, lambda: self._losses.evicted)
        """What is registered, in the journals."""
        self.stubs = StubDirectory(lambda size: self.map_stores([size])[0])
        """Where stubs are, for handlers."""
        self._live = None if proof is None else self._live_arming(proof)
        self._checkpoint: Callable[[], None] = lambda: None

    def _live_arming(self, proof: "Proof") -> "LiveArming":
        from anyprobe.splice.apply.live.changes import LiveArming

        return LiveArming(self._access, self._planning, self._traps, proof, conclude=self._conclude)

    # -- what may be read

    @property
    def owner(self) -> Owner:
        """Whose the session is, as its journals say."""
        return self._holdings.owner

    @property
    def allowed(self) -> frozenset[Strategy]:
        """The strategies that may be used."""
        return self._planning.allowed

    @property
    def live(self) -> "LiveArming | None":
        """What makes changes without a stop, where that is wanted."""
        return self._live

    @property
    def modules(self) -> Sequence[Module]:
        """What is spliced, or may be."""
        return self._modules

    def patches(self) -> list[EmittedPatch]:
        """Return the patches that threads may be asleep in."""
        splices = [splice for module in self._modules for splice in module.splices()]
        left = [] if self._live is None else self._live.left
        return [*(splice.patch for splice in splices if splice.patch is not None), *left]

    def inodes(self) -> frozenset[int]:
        """Return the inodes of what is mapped, by which other processes are known that have it, too."""
        return self._holdings.inodes()

    def journals(self) -> list[int]:
        """Return the addresses of the journals."""
        return [arena.journal.address for arena in self._holdings.arenas]

    @property
    def arenas(self) -> Sequence[Arena]:
        """What is mapped in the target."""
        return self._holdings.arenas

    @property
    def banks(self) -> Sequence[SlotBank]:
        """Where threads count, each bank after those made before it."""
        return self._holdings.banks

    @property
    def neighbourhoods(self) -> Sequence[Neighbourhood]:
        """Where patches are."""
        return self._holdings.neighbourhoods

    @property
    def pause_us(self) -> dict[str, int]:
        """How long the target stood still, by what for."""
        return self._access.pause_us

    @property
    def clock(self) -> int:
        """Address of the vdso's ``clock_gettime``, if times are not taken from the TSC."""
        return self._counting.clock

    @property
    def touched(self) -> bool:
        """Whether something may have been installed, by whatever failed attempt."""
        return self._access.touched

    @property
    def slots(self) -> bool:
        """Whether the target's runtime has thread slots for anyprobe."""
        return self._planning.slots

    @property
    def evicted(self) -> bool:
        """Whether another anyprobe has removed the session."""
        return self._losses.evicted

    @property
    def is_installed(self) -> bool:
        """Whether anything of the session is in the target."""
        return bool(self._holdings.arenas) and not self._losses.evicted

    @property
    def saved_copies(self) -> Sequence[Saved]:
        """Where the program may have saved a splice's bytes as its own, to be written back at some time."""
        return list(self._text.saved.values())

    # -- what may be set

    def add_module(self, module: Module) -> None:
        """Take note of a module in which something may be spliced."""
        if module not in self._modules:
            self._modules.append(module)

    def allow(self, strategies: frozenset[Strategy]) -> None:
        """Use these strategies from now on."""
        self._planning.allowed = strategies

    def use_slots(self, *, on: bool) -> None:
        """Use thread slots, or none, from now on."""
        self._planning.slots = on

    def use_clock(self, address: int) -> None:
        """Have banks made from now on that take times from the vdso's ``clock_gettime``; 0: from the TSC."""
        self._counting = replace(self._counting, clock=address)

    def leave_out(self, threads: int) -> None:
        """Keep so many blocks of each bank for threads that are not to be counted."""
        self._counting = replace(self._counting, left_out=threads)

    # -- the change

    @contextmanager
    def interruptible(self, checkpoint: Callable[[], None]) -> Iterator[None]:
        """Have ``checkpoint`` called now and then while changes are prepared; what it raises ends them, and nothing of
        them is made.
        """  # noqa: D205 - one sentence
        before, self._checkpoint = self._checkpoint, checkpoint
        try:
            yield
        finally:
            self._checkpoint = before

    def checkpoint(self) -> None:
        """Give whoever has called ``interruptible`` the chance to end what is being prepared."""
        self._checkpoint()

    def change(self, edits: Sequence[Edit]) -> None:
        """Apply edits. Each added hook then has a splice or a refusal; functions fail one by one, never half.

        When it raises (the target is gone, would not stop), everything is as before.
        """
        if self._live is not None and any(edit.added for edit in edits):
            self._change_all(self.view.unspliced())
        self._change_all(edits)

    def _change_all(self, edits: Sequence[Edit]) -> None:
        if not edits:
            return
        try:
            self._change(edits)
        except BaseException:
            for edit in edits:
                if edit.outcome is None:
                    abandon(edit)
            raise

    def _change(self, edits: Sequence[Edit]) -> None:
        mappings = self.process.mappings()
        self.note_losses(mappings)
        self._losses.check_session(self.process.pid)
        for module in modules_of(edits):
            module.note_writable(mappings)
        with self._timed("plan"):
            self._planning.see_space(mappings)
            self.view.look()
            self._faults.look(edits)
            edits = without_gone(self.view.with_handlers(edits), mappings)
            self._planning.plan_all(edits, self._live, self._checkpoint)
        with self.process.exclusive():
            self._carry_out([edit for edit in edits if not edit.idle])

    def _carry_out(self, edits: Sequence[Edit]) -> None:
        with self._timed("prepare"):
            self._access.check_sessions(self.process.mappings())
            self._losses.clear_records(self._holdings.records)
            self.semaphores.clear_records()
            self._prepare(edits)
            emission = Emission(
                self._holdings.neighbourhoods, self._planning.springboards, self._clobbers, lambda: self.view.root,
                moves=worth_moving(edits) and not self.view.faults,
            )  # fmt: skip
            for edit in edits:
                if edit.added:
                    self._checkpoint()
                if edit.given_up:
                    continue
                found = emission.emit(edit)
                if isinstance(found, Refusal):
                    give_up(edit, found)
                else:
                    edit.emitted(found)
            for edit in self.view.describe(edits):
                detail = "the program handles faults, and there is no room to say what its handlers are to be shown"
                give_up(edit, Refusal(Reason.MAY_FAULT, edit.state.code.start, detail))
            self._open_gates()
            for edit, why in self._faults.install(edits, self.view):
                give_up(edit, why)
            self._prepare_traps(edits)
        with self._timed("arm"):
            try:
                self.semaphores.raise_for(edits)
                self._arm(edits)
            finally:
                self.view.settle(edits)
                self.semaphores.settle()
        self.view.note_refusals()
        for module in modules_of(edits):
            if module.plans is not None:
                module.plans.save()

    def _prepare(self, edits: Sequence[Edit]) -> None:
        """Map what the change needs and is not there yet: code, counters, journal, springboard pages."""
        try:
            self._preparation(edits).run()
        except ThreadSlotUnusable:
            self._planning.plan_without_slots(edits)
            self._preparation(edits).run()

    def _preparation(self, edits: Sequence[Edit]) -> Preparation:
        live = self._live if self.process.held is None else None
        return Preparation(
            self._access, self._planning.springboards, edits, self._counting,
            has_slots=self._planning.has_slots, view_used=self.view.is_used,
            listing=self.roster.backlog(), mapper=None if live is None else live.deputies,
            note_stop=(lambda _: None) if live is None else live.note,
        )  # fmt: skip

    def _borrowed(self) -> "AbstractContextManager[SystemCalls]":
        """Give a thread to make calls in, while no change is under way."""
        return self.process.borrow() if self._live is None else self._live.deputies.calls("arm")

    def see_space(self, mappings: Sequence[MemoryMapping]) -> None:
        """Have springboards placed in the address space as the memory map has it now."""
        self._planning.see_space(mappings)

    def planner(self, module: Module, claims: Claims) -> "Planner":
        """Return a planner for a module that respects some claims."""
        return self._planning.planner(module, claims)

    def has_slots(self, module: Module) -> bool:
        """Return whether the threads that run a module have slots."""
        return self._planning.has_slots(module)

    def stop(self, what: str) -> AbstractContextManager[ProcessQuiescence]:
        """Stop everything and check that the target is what it was; the pause counts under ``what``."""
        return self._access.stop(what)

    def map_stores(self, sizes: Sequence[int]) -> list[Store]:
        """Map regions of memory of some sizes, in one stop."""
        return map_stores(self._access, sizes)

    def note_losses(self, mappings: Sequence[MemoryMapping]) -> None:
        """Take note of what is installed no more, by the memory map."""
        memfds = [arena.inode for arena in self._holdings.arenas]
        if not self._losses.evicted and self._losses.misses(memfds, mappings):
            self.process.verify()  # after an exec nothing is where it was, and nobody else's doing
        self.semaphores.note_losses(mappings)
        if self._losses.note(self._modules, memfds, mappings, self.process.mem):
            self.roster.note_all()

    def forget_lost(self, mappings: Sequence[MemoryMapping]) -> None:
        """Have the journals list no more what is lost."""
        self.note_losses(mappings)
        if not self._losses.evicted:
            self._losses.clear_records(self._holdings.records)
            self.semaphores.clear_records()

    def look_for_returned(self) -> None:
        """See which overwritten splices are there again: they can be taken out like any other."""
        self._text.look_for_returned(self.process.mem)

    def look_at_text(self, mappings: Sequence[MemoryMapping]) -> tuple[list[str], list[EmittedSplice]]:
        """See which splices were overwritten since the last look; return what is to be said, and what has to go."""
        found = self._text.look(self._modules, self.process.mem)
        found += self._text.in_writable(self._modules, mappings)
        leaving = self._text.leaving(self._modules)
        told = [f"at {splice.address:#x}: {why}" for splice, why in found if why is not TRAPPED]
        trapped = [splice for splice, why in found if why is TRAPPED]
        told += [f"at {at.address:#x}: {TRAPPED}; {see_to(self.process, self._modules, at)}" for at in trapped]
        return told[:_MOST_TOLD] + self._losses.tell_replaced(), leaving

    def _open_gates(self) -> None:
        """Let what was emitted work, once the journal says how to undo it."""
        for home in self._holdings.neighbourhoods:
            for made in home.unlisted:
                journal = next(journal for journal in self._holdings.journals() if journal.room())
                journal.add([Record(RecordKind.RETURNS, made.stubs, made.count, made.table)])
                self.stubs.note(made)
            home.unlisted.clear()
            for bank in self._holdings.banks:
                if home.needs_gate(bank):
                    self.process.mem.write(home.gate.address + 8 * bank.index, bank.mask.to_bytes(8, "little"))
                    home.gate_opened(bank)

    def _prepare_traps(self, edits: Sequence[Edit]) -> None:
        """Install what traps need; where that cannot be, nothing that traps is armed."""
        if Strategy.TRAP not in self._planning.allowed:
            return
        general = self._traps.prepare([edit.change for edit in edits if edit.change is not None])
        for edit in edits:
            if edit.change is not None and edit.change.traps:
                why = general or self._traps.objection(edit.change)
                if why is not None:
                    give_up(edit, why)

    # -- arming

    def _arm(self, edits: Sequence[Edit]) -> None:
        arming = dict.fromkeys(edits, "") if self._live is None else self._live.make(edits)
        edits, changes = list(arming), [edit.change for edit in arming if edit.change is not None]
        if not changes:
            return
        need = sum(len(change.added) for change in changes)
        journal = self._holdings.journal(need)
        trapping = [change for change in changes if change.traps] if Strategy.TRAP in self._planning.allowed else []
        traps = self._traps if trapping else None
        lingering = self._lingering if self.view.is_used else None
        transaction = Transaction(
            self.process, changes, journal, self._holdings.records, FramesOnStacks(self.process), traps, lingering
        )
        what = "arm" if any(change.added for change in changes) else "disarm"
        transaction.rehearse()
        try:
            with self._traps.calm_stop(what, trapping, transaction.struck) as stop:
                for edit in additions(edits, self._access.mappings):
                    if edit.change is not None:
                        transaction.refuse(edit.change, gone(edit))
                transaction.run(stop)
        except BaseException:
            if transaction.done:  # the release failed, or Ctrl-C came with it
                self._conclude(transaction, arming)
            else:
                transaction.forget()
            raise
        self._conclude(transaction, arming)

    def _conclude(self, transaction: Transaction[ProcessQuiescence], arming: Mapping[Edit, str]) -> None:
        """Take note of what has changed, then clear the journal, which may fail."""
        made = transaction.remaining
        if self.view.is_used:
            self._lingering.note(made, transaction.left_ways)
        for edit, how in arming.items():
            if edit.change is not None:
                settle(edit, edit.change, transaction.refusal_of(edit.change), how)
        transaction.finish()
        with suppress(TargetError):  # whoever has ended changes nothing any more
            self._text.begin([each for change in made for each in (*change.added, *change.removed)], self.process.mem)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] += time.perf_counter() - begin

    def end_live(self) -> None:
        """End the session without a stop, as far as that is wanted and can be; what is left is for ``recovery``."""
        if self._live is not None:
            from anyprobe.splice.apply.live.removal import end_live

            end_live(self._access, self._modules, self._live, self.change)

    def close(self) -> None:
        """Drop the controller's side of all memory."""
        self._holdings.close()
