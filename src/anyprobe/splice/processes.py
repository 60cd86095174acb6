"""The engine for processes: its parts, each made with what it needs, and what user space has to do with changes."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.layouts.layout import CALLERS, MAXACTIVE, NODES, BankLayout
from anyprobe.data.snapshots.costs import NO_COSTS
from anyprobe.journal.installed import removed
from anyprobe.journal.records import Journal, Owner
from anyprobe.journal.registrations import Registrations
from anyprobe.splice.apply.preparation import Preparation, ThreadSlotUnusable
from anyprobe.splice.apply.saved_pcs import FramesOnStacks
from anyprobe.splice.apply.semaphores import Semaphores
from anyprobe.splice.apply.sigreturn_targets import Lingering
from anyprobe.splice.apply.site_clobbers import ClobberSource, SiteClobbers
from anyprobe.splice.apply.transaction import Transaction
from anyprobe.splice.apply.upkeep import MadeChanges, Upkeep
from anyprobe.splice.edits import Edit, Module
from anyprobe.splice.emitted import EmittedSplice, FunctionChange
from anyprobe.splice.engine import Engine, Whole
from anyprobe.splice.plan.splices import AUTO, Strategy
from anyprobe.splice.planning import Planning
from anyprobe.splice.regions.access import Access
from anyprobe.splice.regions.banks import Counting
from anyprobe.splice.regions.holdings import Holdings
from anyprobe.splice.userspace.fault_catching import FaultCatching
from anyprobe.splice.userspace.signal_view import SignalView
from anyprobe.splice.userspace.traps import Traps
from anyprobe.target.base import ProcessQuiescence, ProcessTarget, SystemCalls
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.splice.apply.live.changes import LiveArming, Proof
    from anyprobe.splice.codegen.stub_directory import StubDirectory
    from anyprobe.splice.codegen.timing.trampoline import Trampolines
    from anyprobe.splice.regions.stores import Store
    from anyprobe.target.system.procfs import Mapping


class ProcessMemory:
    """Maps what changes need in a process, and knows how its threads count."""

    def __init__(
        self, access: Access, planning: Planning, view: SignalView, registrations: Registrations, counting: Counting,
        live: "LiveArming | None",
    ) -> None:  # fmt: skip
        """Begin with nothing; ``registrations`` may wait for journal room, ``live`` maps while the program runs."""
        self._access, self._planning, self._view, self._registrations = access, planning, view, registrations
        self._counting, self._live = counting, live

    @property
    def clock(self) -> int:
        """Address of the vdso's ``clock_gettime``, if times are not taken from the TSC."""
        return self._counting.clock

    @property
    def follows_jumps(self) -> bool:
        """Whether calls that leave their function by a jump are followed to where their caller goes on."""
        return self._counting.callers > 0

    def use_clock(self, address: int, rate: int) -> None:
        """Have banks made from now on that take times from the vdso's ``clock_gettime``; 0: from the TSC.

        What probes cost by that clock is not known. ``rate``: the TSC's ticks of a nanosecond, times two to the 32, if
        times are those on processors, else 0.
        """
        form, costs = self._counting, NO_COSTS
        if not address and not form.raw:
            like = BankLayout(
                1, callers=form.callers, nested=form.nested, nodes=form.nodes, by_thread=form.by_thread,
                on_processors=rate > 0,
            )  # fmt: skip
            from anyprobe.splice.codegen.timing.kept_costs import costs_of  # plain counts need none

            costs = costs_of(like)
        self._counting = replace(form, clock=address, costs=costs, rate=rate)

    def leave_out(self, threads: int) -> None:
        """Keep so many blocks of each bank for threads that are not to be counted."""
        self._counting = replace(self._counting, left_out=threads)

    def adopt_children(self) -> None:
        """Give fork children blocks of their own in banks made from now on that time calls."""
        self._counting = replace(self._counting, children=True)

    def prepare(self, edits: Sequence[Edit]) -> None:
        """Map what the change needs and is not there yet: code, counters, journal, springboard pages."""
        try:
            self._preparation(edits).run()
        except ThreadSlotUnusable:
            self._planning.plan_without_slots(edits)
            self._preparation(edits).run()

    def _preparation(self, edits: Sequence[Edit]) -> Preparation:
        live = self._live if self._access.process.held is None else None
        return Preparation(
            self._access, self._planning.springboards, edits, self._counting,
            has_slots=self._planning.has_slots, view_used=self._view.is_used,
            listing=self._registrations.backlog(), mapper=None if live is None else live.helper_threads,
            note_stop=(lambda _: None) if live is None else live.note,
        )  # fmt: skip


class Userspace:
    """What user space has to do with changes: signal handlers, traps, faults, semaphores."""

    def __init__(
        self,
        access: Access,
        planning: Planning,
        view: SignalView,
        traps: Traps,
        faults: FaultCatching,
        semaphores: Semaphores,
        registrations: Registrations,
    ) -> None:
        """Do nothing yet."""
        self._access, self._process, self._planning = access, access.process, planning
        self._view, self._traps, self._faults = view, traps, faults
        self._semaphores, self._registrations = semaphores, registrations
        self._lingering = Lingering()

    def evicted(self) -> TargetError:
        """Return the error for a session that another anyprobe has removed."""
        return removed(self._process.pid)

    def check_sessions(self, mappings: "Sequence[Mapping]") -> None:
        """Raise if the process is another session's, or this session's no more."""
        self._access.check_sessions(mappings)

    def first(self) -> Sequence[Edit]:
        """Return the edits that signal handlers without a splice need."""
        return self._view.unspliced()

    def look(self, edits: Sequence[Edit], *, urgent: bool) -> Sequence[Edit]:
        """See which signals are handled; return the edits with those that handlers without a splice need, if any."""
        self._view.look()
        self._faults.look(edits)
        return edits if urgent else self._view.with_handlers(edits)

    @property
    def view_root(self) -> int:
        """Where the address is kept of the tables that say what handlers are shown."""
        return self._view.root

    def describe(self, edits: Sequence[Edit]) -> Iterable[tuple[Edit, Refusal]]:
        """Say what signal handlers are to be shown in what was emitted; yield the edits for which there is no room."""
        for edit in self._view.describe(edits):
            detail = "the program handles faults, and there is no room to say what its handlers are to be shown"
            yield edit, Refusal(Reason.MAY_FAULT, edit.state.code.start, detail)

    def install(self, edits: Sequence[Edit]) -> Iterator[tuple[Edit, Refusal]]:
        """Set the handlers that faults and traps need; yield the edits for which that cannot be.

        Those that fail for faults are given up before traps are looked at.
        """
        yield from self._faults.install(edits, self._view)
        if Strategy.TRAP not in self._planning.allowed:
            return
        general = self._traps.prepare([edit.change for edit in edits if edit.change is not None])
        for edit in edits:
            if edit.change is not None and edit.change.traps:
                why = general or self._traps.objection(edit.change)
                if why is not None:
                    yield edit, why

    def begin(self, edits: Sequence[Edit]) -> None:
        """Count up the semaphores of what is about to be armed, and have calls end at its return points."""
        self._semaphores.raise_for(edits)
        if any(bank.layout.callers for bank in self._access.holdings.banks):
            from anyprobe.splice.apply.known_points import watch_return_points  # counts have none

            watch_return_points(edits)

    def transaction(self, changes: Sequence[FunctionChange], journal: Journal | None) -> Transaction[ProcessQuiescence]:
        """Return the transaction that makes some changes."""
        traps = self._traps if self._trapping(changes) else None
        lingering = self._lingering if self._view.is_used else None
        records, saved_pcs = self._access.holdings.records, FramesOnStacks(self._process)
        return Transaction(self._process, changes, journal, records, saved_pcs, traps, lingering)

    def stop(
        self, changes: Sequence[FunctionChange], struck: Callable[[ProcessQuiescence], Refusal | None]
    ) -> AbstractContextManager[ProcessQuiescence]:
        """Stop everything, at a moment when the changes' traps can be placed if such a moment comes soon."""
        what = "arm" if any(change.added for change in changes) else "disarm"
        return self._traps.calm_stop(what, self._trapping(changes), struck)

    def _trapping(self, changes: Sequence[FunctionChange]) -> list[FunctionChange]:
        return [change for change in changes if change.traps] if Strategy.TRAP in self._planning.allowed else []

    def settle(self, edits: Sequence[Edit]) -> None:
        """Take note of where springboards are, and count down the semaphores of what is not armed."""
        self._view.settle(edits)
        self._semaphores.settle()

    def note_refusals(self) -> None:
        """Take note of handlers that could not be spliced."""
        self._view.note_refusals()

    # -- what is installed

    def note_made(self, made: MadeChanges) -> None:
        """Take note of where threads may come back to from what was taken out."""
        if self._view.is_used:
            self._lingering.note(made.remaining, made.left_ways)

    def note_losses(self, mappings: "Sequence[Mapping]") -> None:
        """Take note of semaphores that are not mapped any more."""
        self._semaphores.note_losses(mappings)

    def note_lost(self) -> None:
        """Have all that is registered listed anew."""
        self._registrations.note_all()

    def clear_records(self) -> None:
        """Have the journals list lost semaphores no more."""
        self._semaphores.clear_records()

    def yield_to_breakpoint(self, splice: EmittedSplice, modules: Sequence[Module]) -> str:
        """Take a splice out on which a breakpoint was set; return what is to be said of it."""
        from anyprobe.splice.apply.uprobes import yield_to_breakpoint

        return yield_to_breakpoint(self._process, modules, splice)


class ProcessSplicing:
    """The parts of one session's engine, for code that needs one of them."""

    def __init__(
        self,
        process: ProcessTarget,
        clobbers: ClobberSource,
        *,
        allowed: frozenset[Strategy] = AUTO,
        slots: bool,
        maxactive: int = MAXACTIVE,
        callers: bool = True,
        nested: str = "",
        raw: bool = False,
        by_thread: bool = False,
        proof: "Proof | None" = None,
        may_lock: "Callable[[], bool]" = lambda: False,
    ) -> None:
        """Serve a process.

        Args:
            process: The target.
            clobbers: Tells what is dead at an instruction.
            allowed: The strategies that may be used.
            slots: Whether the target's runtime has thread slots for anyprobe.
            maxactive: Instances of calls that a thread can have at once.
            callers: Whether calls that leave their function by a jump are followed to where their caller goes on.
            nested: What is known of which timed calls made which: ``times`` in them, a ``tree``, or nothing.
            raw: Whether times are left as they are measured, with what probes take of them.
            by_thread: Whether timed calls of threads are told apart.
            proof: Given where changes are to be made without a stop if that can be: why they cannot.
            may_lock: Says whether the program may lock all of its memory later.

        """
        counting = Counting(
            maxactive, callers=CALLERS if callers else 0, nested=bool(nested), nodes=NODES if nested == "tree" else 0,
            raw=raw, by_thread=by_thread, may_lock=may_lock,
        )  # fmt: skip
        modules = list[Module]()
        owner = Owner(os.urandom(16), os.getpid(), procfs.read_stat(os.getpid()).start_time)
        self.process, self.holdings = process, Holdings(owner)
        self.access = Access(process, self.holdings)
        self.planning = Planning(process, allowed=allowed, slots=slots, kept=lambda: process.gadgets().ranges)
        traps, faults = Traps(self.access), FaultCatching(self.access, live=proof is not None)
        self.view = SignalView(
            process, self.holdings, modules, self.planning.springboards, traps, faults,
            clobbers=clobbers, hides_faults=self.planning.hides_faults, calls=self._calls,
        )  # fmt: skip
        """What signal handlers are shown."""
        self.planning.regard(self.view)
        self.semaphores = Semaphores(self.access)
        """What the program asks whether a tool listens."""
        self.registrations = Registrations(self.access, lambda: self.upkeep.evicted)
        """What is registered, in the journals."""
        userspace = Userspace(
            self.access, self.planning, self.view, traps, faults, self.semaphores, self.registrations
        )  # fmt: skip
        self.upkeep = Upkeep(process, self.holdings, modules, userspace)
        self._whole: Whole[ProcessQuiescence] | None = None
        self.waits_for_removal: list[Callable[[], object]] = []
        """What lets threads go that wait until no probe is there any more."""
        self.live = None if proof is None else self._live_arming(traps, proof)
        """What makes changes without a stop, where that is wanted."""
        self.memory = ProcessMemory(self.access, self.planning, self.view, self.registrations, counting, self.live)
        dead = SiteClobbers(
            lambda: self.view.faults, clobbers, lambda: self.view.is_complete, lambda: self.view.is_for_once
        )
        self.engine = Engine(
            process, self.holdings, self.planning, self.memory, userspace, self.upkeep, dead,
            live=self.live, note_stubs=self._note_stubs, whole=lambda: self._whole,
        )  # fmt: skip

    @contextmanager
    def as_a_whole(self, whole: "Whole[ProcessQuiescence]") -> "Iterator[None]":
        """Have changes within a ``with`` block made when ``whole`` says so, and only if all it knows can be made.

        What it raises leaves everything as before.
        """
        self._whole = whole
        try:
            yield
        finally:
            self._whole = None

    def _live_arming(self, traps: Traps, proof: "Proof") -> "LiveArming":
        from anyprobe.splice.apply.live.changes import LiveArming

        return LiveArming(self.access, self.planning, traps, proof, conclude=self.upkeep.conclude)

    @contextmanager
    def _calls(self) -> "Iterator[SystemCalls]":
        """Give a thread to make calls in, while no change is under way; a pause where all have to be stopped."""
        if self.live is not None:
            with self.live.helper_threads.calls("arm") as remote:
                yield remote
            return
        try:
            with self.process.borrow() as remote:
                yield remote
        finally:
            self.access.pause_us["prepare"] += self.process.paused_us

    def map_stores(self, sizes: Sequence[int]) -> "list[Store]":
        """Map regions of memory of some sizes, in one stop."""
        from anyprobe.splice.regions.stores import map_stores

        return map_stores(self.access, sizes)

    def _note_stubs(self, made: "Trampolines") -> None:
        self.stubs.note(made)

    @cached_property
    def stubs(self) -> "StubDirectory":
        """Where stubs are, for handlers."""
        from anyprobe.splice.codegen.stub_directory import StubDirectory

        return StubDirectory(lambda size: self.map_stores([size])[0])

    def let_go(self) -> None:
        """Let threads go that wait until no probe is there any more."""
        for each in self.waits_for_removal:
            each()

    def end_live(self) -> None:
        """End the session without a stop, as far as that is wanted and can be; what is left is for ``recovery``."""
        if self.live is not None:
            from anyprobe.splice.apply.live.removal import end_live

            end_live(self.access, self.upkeep.modules, self.live, self.engine.change)

    def close(self) -> None:
        """Drop the controller's side of all memory."""
        self.holdings.close()
