"""A change of splices in five steps: plan, prepare, emit, arm, settle. One engine per target address space."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.layout import MAXACTIVE
from anyprobe.splice.apply.preparation import Preparation, ThreadSlotUnusable, keep_room
from anyprobe.splice.apply.sigreturn_targets import Lingering
from anyprobe.splice.apply.staleness import Losses, additions, check_sessions, gone, lose, modules_of
from anyprobe.splice.apply.text_watch import TRAPPED, TextWatch
from anyprobe.splice.apply.transaction import Transaction
from anyprobe.splice.apply.uprobes import see_to
from anyprobe.splice.codegen.emission import Emission, worth_moving
from anyprobe.splice.codegen.stub_directory import StubDirectory
from anyprobe.splice.edits import Edit, Module, hook_of, planned_of
from anyprobe.splice.function_changes import FunctionChange, LiveSplice
from anyprobe.splice.journal.records import Owner, Record, RecordKind
from anyprobe.splice.journal.registrations import Roster
from anyprobe.splice.memory.arena import Arena
from anyprobe.splice.memory.banks import SLOT_ONLY, TIMING
from anyprobe.splice.memory.code_region import Neighbourhood, SlotBank
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.site_clobbers import ClobberSource, SiteClobbers, function_of
from anyprobe.splice.plan.splices import AUTO, FunctionPlan, Strategy, Want, WantKind
from anyprobe.splice.plan.strategies.springboard import PunPlaces, Springboards
from anyprobe.splice.translate.signal_view import SignalView
from anyprobe.splice.userspace.fault_catching import FaultCatching
from anyprobe.splice.userspace.traps import Traps
from anyprobe.target.process.exclusion import exclusive
from anyprobe.target.process.process import Process
from anyprobe.target.process.stopping import Stop
from anyprobe.target.system import procfs
from anyprobe.target.system.procfs import Mapping

if TYPE_CHECKING:
    from anyprobe.splice.apply.live.changes import LiveArming
    from anyprobe.splice.plan.planner import Planner

_MOST_TOLD = 20
_GADGET_BYTES = 9
"""The longest of the instructions that injected calls borrow."""


class Engine:
    """Places and removes splices in one target."""

    def __init__(
        self,
        process: Process,
        clobbers: ClobberSource,
        *,
        allowed: frozenset[Strategy] = AUTO,
        slots: bool,
        maxactive: int = MAXACTIVE,
    ) -> None:
        """Serve a process; ``slots`` says whether its runtime has thread slots for us."""
        self.process = process
        self.owner = Owner(os.urandom(16), os.getpid(), procfs.read_stat(os.getpid()).start_time)
        self.slots, self.maxactive = slots, maxactive
        self.clock = 0
        self.modules: list[Module] = []
        self.arenas: list[Arena] = []
        self.neighbourhoods: list[Neighbourhood] = []
        self.banks: list[SlotBank] = []
        self.left_out = 0
        """Blocks of each bank that are for threads left out."""
        self.pause_us: dict[str, int] = {"prepare": 0, "arm": 0, "disarm": 0}
        self.seconds: dict[str, float] = {"resolve": 0.0, "plan": 0.0, "prepare": 0.0, "arm": 0.0}
        self.allowed = allowed
        self.springboards = Springboards(AddressSpace([]))
        self.traps = Traps(self)
        self.faults = FaultCatching(self)
        self.view = SignalView(self)
        self._lingering = Lingering()
        self.losses = Losses()
        self.text = TextWatch()
        self.clobbers = SiteClobbers(self.view, clobbers)
        self.roster = Roster(self)
        self.stubs = StubDirectory()
        self.live: LiveArming | None = None
        """What makes changes without a stop, where that is wanted."""
        self.checkpoint: Callable[[], None] = lambda: None
        """Called now and then while a change is prepared."""
        self.touched = False
        """Whether something may have been installed, by whatever failed attempt."""
        self._mappings: Sequence[Mapping] = ()
        """The memory map in the present stop."""

    # -- the change

    @contextmanager
    def interruptible(self, checkpoint: Callable[[], None]) -> Iterator[None]:
        """Have ``checkpoint`` called now and then while changes are prepared; what it raises ends them, and nothing of
        them is made.
        """  # noqa: D205 - one sentence
        before, self.checkpoint = self.checkpoint, checkpoint
        try:
            yield
        finally:
            self.checkpoint = before

    def change(self, edits: Sequence[Edit]) -> None:
        """Apply edits. Each added hook then has a splice or a refusal; functions fail one by one, never half.

        When it raises (the target is gone, would not stop), everything is as before.
        """
        if self.live is not None and any(edit.added for edit in edits):
            self._change_all(self.view.unspliced())
        self._change_all(edits)

    def _change_all(self, edits: Sequence[Edit]) -> None:
        if not edits:
            return
        try:
            self._change(edits)
        except BaseException:
            for edit in edits:
                if not edit.settled:
                    self._abandon(edit)
            raise

    def _change(self, edits: Sequence[Edit]) -> None:
        mappings = self.process.mappings()
        self.note_losses(mappings)
        self.losses.check_session(self.process.pid)
        for module in modules_of(edits):
            module.note_writable(mappings)
        with self._timed("plan"):
            self.see_space(mappings)
            self.view.look()
            self.faults.look(edits)
            edits = self._without_gone(self.view.with_handlers(edits), mappings)
            self._keep_gadgets(edits)
            keep_room(self.springboards.space, edits)
            for edit in edits:
                if self.process.exited():
                    raise self.process.gone()
                if edit.added or edit.anew:
                    self.checkpoint()
                if edit.removed or not self._plan_from_memory(edit):
                    self._plan(edit)
        with exclusive(self.process):
            self._carry_out([edit for edit in edits if not edit.idle])

    def _carry_out(self, edits: Sequence[Edit]) -> None:
        with self._timed("prepare"):
            self.check_sessions(self.process.mappings())
            self.losses.clear_records()
            self._prepare(edits)
            emission = Emission(self, moves=worth_moving(edits) and not self.view.faults)
            for edit in edits:
                if edit.added:
                    self.checkpoint()
                refusal = emission.emit(edit)
                if refusal is not None:
                    self.give_up(edit, refusal)
            for edit in self.view.describe(edits):
                detail = "the program handles faults, and there is no room to say what its handlers are to be shown"
                self.give_up(edit, Refusal(Reason.MAY_FAULT, edit.state.code.start, detail))
            self._open_gates()
            self.faults.install(edits)
            self._prepare_traps(edits)
        with self._timed("arm"):
            try:
                self._arm(edits, [edit.change for edit in edits if edit.change is not None])
            finally:
                self.view.settle(edits)
        self.view.note_refusals()
        for module in modules_of(edits):
            if module.plans is not None:
                module.plans.save()

    def see_space(self, mappings: Sequence[Mapping]) -> None:
        """Have springboards placed in the address space as the memory map has it now."""
        space = AddressSpace(mappings, self.process.heap_start)
        self.springboards.look(space, len(mappings), procfs.most_mappings())

    def _keep_gadgets(self, edits: Sequence[Edit]) -> None:
        """See that no splice takes the instructions that our own calls in the target borrow."""
        found = self.process.gadgets()
        for module in modules_of(edits):
            for address in (found.syscall_ret, found.restorer, found.pop_rax):
                if module.low <= address < module.high:
                    start = address - module.bias
                    module.claims.borrowed.keep_range(start, start + _GADGET_BYTES)

    def _plan_from_memory(self, edit: Edit) -> bool:
        """Use the plan that an earlier session made, where the edit is a first, plain entry counter."""
        plans, want = edit.module.plans, edit.added[0] if len(edit.added) == 1 else None
        plain = want is not None and want.kind is WantKind.ENTRY and not edit.state.wants and not edit.removed
        if plans is None or want is None or not plain or self.allowed != AUTO or self.live is not None:
            return False
        hook = hook_of(want)
        if hook is None or hook.kind in TIMING or (hook.kind in SLOT_ONLY and not self.has_slots(edit.module)):
            return False
        splice = plans.find(function_of(edit, want).start, want)
        if splice is None or edit.module.claims.conflict(splice.write_at, splice.written, 0) is not None:
            return False
        if self.view.faults and self.planner(edit.module).fault_refusal(splice.insns, splice.write_at + splice.written):
            return False
        edit.plan, edit.wants = FunctionPlan([splice]), [want]
        edit.claim()
        return True

    def _plan(self, edit: Edit) -> None:
        """Plan the function anew with all its wants; additions that would cost an armed hook its place are refused."""
        state = edit.state
        if self.live is not None and self.live.plan_beside(edit):
            return
        removed = edit.removed
        kept = [] if removed == state.wants else [want for want in state.wants if want not in removed]
        if kept or edit.added:
            with edit.module.claims.trial(planned_of(state.splices)) as claims:
                self._plan_on(claims, edit, kept)
        if not edit.given_up:
            edit.claim()

    def _plan_on(self, claims: Claims, edit: Edit, kept: list[Want]) -> None:
        """Plan a function, without a want that is refused and its group, until none is."""
        state, planner = edit.state, self.planner(edit.module, claims)
        edit.wants = self.refuse_timing(edit, kept + edit.added)
        while True:
            live = None if self.live is None else self.live.plan(edit, claims)
            edit.plan = live or planner.plan(state.code, edit.wants, frozenset() if edit.yields else frozenset(kept))
            refused = self._spread(edit.plan.refused, edit.wants)
            if not refused:
                return
            lost = [] if edit.yields else [want for want in refused if want in kept]
            for want, why in refused.items():
                _refuse(want, why)
            edit.wants = [want for want in edit.wants if want not in refused]
            if lost:
                for want in lost:
                    if (hook := hook_of(want)) is not None:
                        hook.refusal = None
                edit.plan = FunctionPlan()
                detail = "would take the place of probes already armed"
                self.give_up(edit, Refusal(Reason.OVERLAP, state.code.start, detail))
                return

    def places_of(self, module: Module, claims: Claims) -> PunPlaces:
        """Return where the springboards of a module's punned jumps may stand; its claims and a trial take them."""
        places = claims.places = module.claims.places = PunPlaces(self.springboards, module.bias)
        return places

    def planner(self, module: Module, claims: Claims | None = None) -> "Planner":
        """Return a planner for a module, one that respects its claims or other ones."""
        from anyprobe.splice.plan.planner import Planner  # not needed where all plans are remembered ones

        claims = claims or module.claims
        places = self.places_of(module, claims)
        go = module.code.text.is_go
        return Planner(
            module.code,
            claims,
            places.reachable,
            self.allowed,
            plain_jumps_only=go,
            parking=module.code.text.parking,
            faults_handled=self.view.faults,
            pcs_shown=go or self.view.is_complete,
            faults_skipped=not go,
            writable=module.writable,
        )

    def has_slots(self, module: Module) -> bool:
        """Return whether the threads that run a module have slots."""
        return self.slots and not module.slotless and not module.code.text.is_go

    def refuse_timing(self, edit: Edit, wants: list[Want]) -> list[Want]:
        """Refuse timing where there is no per-thread memory for it."""
        if self.has_slots(edit.module):
            return wants
        timed = [want for want in wants if (hook := hook_of(want)) is not None and hook.kind in SLOT_ONLY]
        for want in timed:
            hook = hook_of(want)
            timing = hook is not None and hook.kind in TIMING
            if timing and edit.module.code.text.is_go:
                reason, detail = Reason.GO_TIMING, "goroutines move between stacks and threads; count instead"
            else:
                what = "timing needs" if timing else "handlers need"
                when = ", which is not there yet where a started program begins" if edit.module.early else ""
                reason, detail = Reason.NO_THREAD_SLOT, f"{what} glibc's thread control block{when}; count instead"
            _refuse(want, Refusal(reason, want.address, detail))
        return [want for want in wants if want not in timed]

    @staticmethod
    def _spread(refused: list[tuple[Want, Refusal]], wants: list[Want]) -> dict[Want, Refusal]:
        """Return the refused wants and those of the same groups."""
        found = dict(refused)
        groups = {}
        for want, why in refused:
            hook = hook_of(want)
            if hook is not None and hook.group is not None:
                groups[id(hook.group)] = why
        for want in wants if groups else ():
            hook = hook_of(want)
            if want not in found and hook is not None and id(hook.group) in groups:
                why = groups[id(hook.group)]
                detail = f"the exit or entry at {why.address:#x} is refused: {why.reason.value}: {why.detail}"
                found[want] = Refusal(Reason.EXIT_REFUSED, want.address, detail)
        return found

    def _prepare(self, edits: Sequence[Edit]) -> None:
        """Map what the change needs and is not there yet: code, counters, journal, springboard pages."""
        try:
            Preparation(self, edits).run()
        except ThreadSlotUnusable:
            self.slots = False
            for edit in edits:
                edit.wants = self.refuse_timing(edit, edit.wants)
                edit.give_back()
                with edit.module.claims.trial(planned_of(edit.leaving)) as claims:
                    edit.plan = self.planner(edit.module, claims).plan(edit.state.code, edit.wants)
                edit.claim()
            Preparation(self, edits).run()

    @contextmanager
    def stop(self, what: str) -> Iterator[Stop]:
        """Stop everything and check that the target is what it was; the pause counts under ``what``."""
        self.touched = True
        self.process.gadgets()  # the search for them takes milliseconds the first time
        with self.process.stop() as stop:
            if not self.arenas:  # else our journals show it, which no other program has
                stop.verify()
            self._mappings = stop.mappings
            try:
                self.check_sessions(self._mappings)
            except TargetError:
                stop.verify()
                raise
            yield stop
        self.pause_us[what] += stop.pause_us

    def check_sessions(self, mappings: Sequence[Mapping]) -> None:
        """Raise if the target is another session's, or ours no more."""
        check_sessions(self.process, mappings, self.owner, len(self.arenas))

    def note_losses(self, mappings: Sequence[Mapping]) -> None:
        """Take note of what is installed no more, by the memory map."""
        memfds = [arena.inode for arena in self.arenas]
        if not self.losses.evicted and self.losses.misses(memfds, mappings):
            self.process.verify()  # after an exec nothing is where it was, and nobody else's doing
        if self.losses.note(self.modules, memfds, mappings, self.process.mem):
            self.roster.note_all()

    def look_at_text(self, mappings: Sequence[Mapping]) -> tuple[list[str], list[LiveSplice]]:
        """See which splices were overwritten since the last look; return what is to be said, and what has to go."""
        found = self.text.look(self.modules, self.process.mem)
        found += self.text.in_writable(self.modules, mappings)
        leaving = self.text.leaving(self.modules)
        told = [f"at {splice.address:#x}: {why}" for splice, why in found if why is not TRAPPED]
        trapped = [splice for splice, why in found if why is TRAPPED]
        told += [f"at {at.address:#x}: {TRAPPED}; {see_to(self.process, self.modules, at)}" for at in trapped]
        return told[:_MOST_TOLD] + self.losses.tell_replaced(), leaving

    def _open_gates(self) -> None:
        """Let what was emitted work, once the journal says how to undo it."""
        for home in self.neighbourhoods:
            for made in home.unlisted:
                journal = next(arena.journal for arena in reversed(self.arenas) if arena.journal.room())
                journal.add([Record(RecordKind.RETURNS, made.stubs, made.count, made.table)])
                self.stubs.note(made)
            home.unlisted.clear()
            for bank in self.banks:
                if home.needs_gate(bank):
                    self.process.mem.write(home.gate.address + 8 * bank.index, bank.mask.to_bytes(8, "little"))
                    home.gate_opened(bank)

    def _prepare_traps(self, edits: Sequence[Edit]) -> None:
        """Install what traps need; where that cannot be, nothing that traps is armed."""
        if Strategy.TRAP not in self.allowed:
            return
        general = self.traps.prepare([edit.change for edit in edits if edit.change is not None])
        for edit in edits:
            if edit.change is not None and edit.change.traps:
                why = general or self.traps.objection(edit.change)
                if why is not None:
                    self.give_up(edit, why)

    # -- arming

    def _arm(self, edits: Sequence[Edit], changes: list[FunctionChange]) -> None:
        if self.live is not None:
            edits = self.live.make(edits)
            changes = [edit.change for edit in edits if edit.change is not None]
        if not changes:
            return
        need = sum(len(change.added) for change in changes)
        journal = next((a.journal for a in reversed(self.arenas) if a.journal.room() >= need), None)
        trapping = [change for change in changes if change.traps] if Strategy.TRAP in self.allowed else []
        traps = self.traps if trapping else None
        lingering = self._lingering if self.view.is_used else None
        transaction = Transaction(self.process, changes, journal, traps, lingering)
        what = "arm" if any(change.added for change in changes) else "disarm"
        transaction.rehearse()
        try:
            with self.traps.calm_stop(what, trapping, transaction.struck) as stop:
                for edit in additions(edits, self._mappings):
                    if edit.change is not None:
                        transaction.refuse(edit.change, gone(edit))
                transaction.run(stop)
        except BaseException:
            if transaction.done:  # the release failed, or Ctrl-C came with it
                self.conclude(transaction, edits)
            else:
                transaction.forget()
            raise
        self.conclude(transaction, edits)

    def conclude(self, transaction: Transaction, edits: Sequence[Edit]) -> None:
        """Take note of what has changed, then clear the journal, which may fail."""
        if self.view.is_used:
            self._lingering.note(
                [edit.change for edit in edits if edit.change is not None], transaction.ways_back.empty
            )
        for edit in edits:
            if edit.change is not None:
                self._settle(edit, edit.change)
        transaction.finish()
        with suppress(TargetError):  # whoever has ended changes nothing any more
            made = [edit.change for edit in edits if edit.change is not None and edit.change.refusal is None]
            self.text.begin([each for change in made for each in (*change.added, *change.removed)], self.process.mem)

    def _settle(self, edit: Edit, change: FunctionChange) -> None:
        """Take note of what became of a function."""
        if change.refusal is not None:
            self.give_up(edit, change.refusal)
            if change.gone:
                lose(edit.module, edit.state, change.refusal)
            return
        state = edit.state
        edit.settled = True
        for want in set(state.wants).difference(edit.wants) if edit.yields else edit.removed:
            if (hook := hook_of(want)) is not None:
                hook.splice = None
        edit.module.settle(state, edit.wants, [*edit.staying, *change.added])
        for splice in change.added:
            for want in () if splice.is_springboard else splice.planned.wants:
                if (hook := hook_of(want)) is not None:
                    hook.splice, hook.refusal, hook.strategy = splice, None, splice.planned.strategy.value
                    hook.arming = edit.arming

    def give_up(self, edit: Edit, why: Refusal) -> None:
        """Leave a function as it is: refuse what was to be added, claim the old splices' bytes again."""
        self._abandon(edit)
        edit.refusal = why
        for want in edit.added:
            _refuse(want, why)

    def _without_gone(self, edits: Sequence[Edit], mappings: Sequence[Mapping]) -> Sequence[Edit]:
        """Give up what would add to modules that are gone; return the others."""
        lost = additions(edits, mappings)
        for edit in lost:
            self.give_up(edit, gone(edit))
        return [edit for edit in edits if edit not in lost] if lost else edits

    @staticmethod
    def _abandon(edit: Edit) -> None:
        """Forget a function's plan; its bytes are claimed as before."""
        edit.give_back()
        edit.change = edit.before = None
        edit.plan, edit.staying = FunctionPlan(), []
        edit.wants = list(edit.state.wants)
        for want in edit.wants if edit.yields else ():  # what it was to lose stays after all
            if (hook := hook_of(want)) is not None:
                hook.refusal = None
        edit.given_up = edit.settled = True

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] += time.perf_counter() - begin

    def close(self) -> None:
        """Drop the controller's side of all memory."""
        for arena in self.arenas:
            arena.close()


def _refuse(want: Want, why: Refusal) -> None:
    hook = hook_of(want)
    if hook is not None and hook.refusal is None:
        hook.refusal = why
