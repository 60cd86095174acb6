"""Changes made while the program runs: no thread stands still but one, for the length of a system call or two.

What is written where, and in which order, is ``livewrites``' affair. Here it is decided which changes may be made so;
the others are left for a stop, each with the reason. A change that fails in the middle is undone in a stop; a dead
controller's is undone from the journal, which lists each ``int3`` before it is written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import page_floor
from anyprobe.core.errors import PermissionDenied, RemoteCallFailed, StopTimeout, TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.journal.records import Journal, Record, RecordKind
from anyprobe.splice.apply.live.children import complete_in_children, ticks_now
from anyprobe.splice.apply.live.helper_threads import HelperThreads
from anyprobe.splice.apply.live.traps import disturbed, wrong_action
from anyprobe.splice.apply.live.writes import SEVERAL, Rewrite, Site, sites_of, steps
from anyprobe.splice.apply.outcomes import give_up
from anyprobe.splice.apply.saved_pcs import FramesOnStacks
from anyprobe.splice.apply.staleness import additions, gone
from anyprobe.splice.apply.text import put_back, write_running
from anyprobe.splice.apply.transaction import Transaction
from anyprobe.splice.edits import NO_PLAN, Edit, Module, Planned, planned_of
from anyprobe.splice.emitted import EmittedPatch, EmittedSplice, FunctionChange
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.planner import plan_live
from anyprobe.splice.plan.splices import HEADS, FunctionPlan, Strategy, Want, WantKind
from anyprobe.splice.plan.together import all_of
from anyprobe.splice.regions.access import Access
from anyprobe.splice.userspace.trap_handler import AMBIGUOUS
from anyprobe.target.base import ProcessQuiescence
from anyprobe.target.system import membarrier

if TYPE_CHECKING:
    from anyprobe.splice.plan.context import PlanContext
    from anyprobe.splice.plan.springboards import Springboards
    from anyprobe.splice.userspace.traps import Traps

_PORTION = 256
"""How many sites at most have an ``int3`` at a time, so that none has it for long."""


class NotNowError(TargetError):
    """What an ``int3`` needs does not hold at this moment."""

    def __init__(self, why: Refusal) -> None:
        """Keep the reason."""
        self.why = why
        super().__init__(str(why))


class Proof(Protocol):
    """What is known of the program by its files: why threads must stand still for a change."""

    def refresh(self) -> None:
        """Look at what the program has loaded by now."""
        ...

    def may_vanish(self, module: Module) -> Refusal | None:
        """Return why the module's text may go while it is written to."""
        ...

    def blocks_traps(self, address: int) -> Refusal | None:
        """Return why some thread, of any caller, may come to ``address`` with SIGTRAP blocked."""
        ...

    def is_called_blocked(self, module: Module, code: FunctionCode) -> Refusal | None:
        """Return why a function in particular may run with SIGTRAP blocked."""
        ...


class FunctionPlanning(Protocol):
    """How functions are planned, with or without a stop."""

    allowed: frozenset[Strategy]
    """The strategies that may be used."""
    springboards: "Springboards"

    def permitted(self, edit: Edit, wants: Sequence[Want]) -> Sequence[Want]:
        """Refuse timing where there is no per-thread memory for it; return the other wants."""
        ...

    def context(self, module: Module, claims: Claims) -> "PlanContext":
        """Return what plans of a module respect."""
        ...


class LiveArming:
    """Makes what can be made of an engine's changes while the program runs."""

    def __init__(
        self,
        access: Access,
        planning: FunctionPlanning,
        traps: "Traps",
        proof: Proof,
        *,
        conclude: Callable[[Transaction[ProcessQuiescence], Mapping[Edit, str]], None],
    ) -> None:
        """Nothing is done to the target yet.

        Args:
            access: The target, and what is mapped there.
            planning: How a function is planned.
            traps: The session's SIGTRAP handler.
            proof: What is known of the program by its files.
            conclude: Called with a transaction that is made, and its edits with how each is said to be armed.

        """
        self._access, self._process, self._planning = access, access.process, planning
        self._traps, self.proof, self._conclude = traps, proof, conclude
        self.helper_threads = HelperThreads(access, planning.springboards)
        self.left: list[EmittedPatch] = []
        """Patches that were taken out, in which threads may be asleep."""
        self.pages: set[int] = set()
        """Pages of text that were written to."""
        self.longest_visit_us = 0
        """How long a thread at most was looked at when the session ended."""
        self._registered = False
        self._begun: list[Rewrite] = []
        """What has been written in the present change, in part at least."""
        self._listed: tuple[Journal, list[int]] | tuple[()] = ()
        """The journal's records of an ``int3`` that may stand now."""
        self._retired: dict[int, int] = {}
        """Springboards of one-byte jumps that were taken out, and of which sites."""
        self.reasons: dict[str, int] = {}
        """Why functions were changed in a stop all the same, and how many."""

    def make(self, edits: Sequence[Edit]) -> dict[Edit, str]:
        """Make the changes of the edits that can be made now, and settle them; return the others, and how it is said
        of each that it is made in a stop.
        """  # noqa: D205 - one sentence
        edits = [edit for edit in edits if edit.change is not None]
        process = self._process
        if process.held is not None or not edits:  # a program that has not begun has no threads to disturb
            return dict.fromkeys(edits, "")
        self.proof.refresh()
        what = "arm" if any(edit.change.added for edit in edits if edit.change is not None) else "disarm"
        sites: dict[Edit, list[Site]] = {}
        left: dict[Edit, Refusal] = {}
        for edit in edits:
            found = self._sites(edit)
            if isinstance(found, Refusal):
                left[edit] = found
            else:
                sites[edit] = found
        for edit, why in self._without_windows(sites, what).items():
            left[edit] = why
            del sites[edit]
        if sites:
            try:
                self._change(sites, what)
            except NotNowError as refused:
                left.update(dict.fromkeys(sites, refused.why))
        stopping: dict[Edit, str] = {}
        for edit, why in left.items():
            if _serves_view(edit):
                give_up(edit, why)
                continue
            stopping[edit] = f"stop: {why.detail}"
            self.reasons[why.detail] = self.reasons.get(why.detail, 0) + 1
        return stopping

    def notes(self) -> Sequence[str]:
        """Return what to tell the user: which changes were made in a stop, and why."""
        return [
            f"{number} function{'s were' if number > 1 else ' was'} changed in a stop: {why}" if number else why
            for why, number in self.reasons.items()
        ]

    def plan(self, edit: Edit, wants: Sequence[Want], claims: Claims) -> FunctionPlan | Refusal | None:
        """Return a plan that can be carried out while the program runs, or why there is none; nothing if it is held."""
        if self._process.held is not None:
            return None
        return self.plan_for(edit.module, claims, edit.state.code, wants)

    def plan_beside(self, edit: Edit, claims: Claims) -> Planned | None:
        """Plan what an edit changes and let the function's other splices stay as they are, if that can be.

        Branches back to the entry go after the counter in the entry's patch: all these splices stay, or none.
        """
        state = edit.state
        staying = _staying(edit)
        if self._process.held is not None or not staying or edit.anew:
            return None
        leaving = [splice for splice in state.splices if splice not in staying]
        kept = [want for want in state.wants if want not in edit.removed]
        wants = self._planning.permitted(edit, kept + edit.added)
        served = {want for splice in staying for want in splice.planned.wants}
        rest = [want for want in wants if want not in served]
        found: FunctionPlan | Refusal = NO_PLAN
        if rest:
            with claims.trial(planned_of(leaving)) as without:
                found = self.plan_for(edit.module, without, state.code, rest)
        return None if isinstance(found, Refusal) else Planned(wants, found, staying)

    def plan_for(
        self, module: Module, claims: Claims, code: FunctionCode, wants: Sequence[Want]
    ) -> FunctionPlan | Refusal:
        """Return a plan that can be carried out while the program runs, or why there is none."""
        planning = self._planning
        why = self.proof.may_vanish(module)
        if why is not None:
            return why
        context = replace(
            planning.context(module, claims), allowed=planning.allowed - {Strategy.TRAP}, plain_jumps_only=True,
            retired=self._retired,
        )  # fmt: skip
        if len(all_of(module.code, code)) > 1:
            return Refusal(Reason.NEEDS_STOP, code.start, "it is planned together with the function after it")
        plan = plan_live(context, code, wants)
        if plan.refused:
            why = _unplaced(plan)
        elif (several := next((each for each in plan.splices if len(each.insns) > 1), None)) is not None:
            why = Refusal(Reason.NEEDS_STOP, several.head, SEVERAL)
        elif any(splice.written > 1 for splice in plan.splices):
            why = self.proof.blocks_traps(code.start) or self.proof.is_called_blocked(module, code)
        return plan if why is None else why

    def _sites(self, edit: Edit) -> list[Site] | Refusal:
        assert edit.change is not None
        return edit.planned.needs_stop or self.proof.may_vanish(edit.module) or sites_of(edit.change)

    # -- int3

    def _without_windows(self, sites: dict[Edit, list[Site]], what: str) -> dict[Edit, Refusal]:
        """See that an ``int3`` may stand for a moment where one is needed; return the edits where it may not, and why.

        What is needed for it is in place afterwards: the signal handler, its table, the registration.
        """
        windows = {edit: found for edit, each in sites.items() if (found := [s for s in each if not _is_single(s)])}
        refused = {edit: why for edit in windows if (why := self._unsafe(edit, windows[edit]))}
        allowed = {edit: found for edit, found in windows.items() if edit not in refused}
        if allowed:
            near = next(iter(allowed.values()))[0].address
            why = self._prepare(near, sum(map(len, allowed.values())), what)
            if why is not None:
                refused.update(dict.fromkeys(allowed, why))
            elif self._traps.serves_program:
                refused.update({edit: why for edit, found in allowed.items() if (why := _ambiguous(found))})
        return refused

    def _unsafe(self, edit: Edit, windows: Sequence[Site]) -> Refusal | None:
        why = self.proof.blocks_traps(windows[0].address)
        return why or self.proof.is_called_blocked(edit.module, edit.state.code)

    def _prepare(self, near: int, sites: int, what: str) -> Refusal | None:
        """See that there are handler, table and registration."""
        traps, process = self._traps, self._process
        if self._registered and traps.is_ready_for(sites):
            return None
        try:
            with self.helper_threads.helper_thread(what) as remote:
                why = traps.prepare_live(lambda _: nullcontext(remote), near, sites)
                if why is None and not self._registered:
                    membarrier.register(remote)
                    self._registered = True
        except TargetError as error:
            if process.ended():
                raise
            return Refusal(Reason.NEEDS_STOP, near, str(error))
        return why

    def forget_traps(self) -> None:
        """Take note that the trap handler is there no more."""
        self._traps.forget()

    def note(self, error: TargetError) -> None:
        """Take note of why memory is mapped in a stop."""
        self.reasons[f"memory was mapped in a stop: {error}"] = 0

    # -- writing

    def _change(self, sites: dict[Edit, list[Site]], what: str) -> None:
        process, holdings, edits = self._process, self._access.holdings, list(sites)
        changes = [edit.change for edit in edits if edit.change is not None]
        need = sum(len(change.added) for change in changes) + sum(map(len, sites.values()))
        journal = holdings.journal(need)
        if journal is None:  # in a stop no int3 has to be listed
            why = Refusal(Reason.NEEDS_STOP, edits[0].state.code.start, "the journal has no room for every int3")
            raise NotNowError(why)
        self._access.touch()
        transaction = Transaction(process, changes, journal, holdings.records, FramesOnStacks(process))
        self._begun = []
        began = ticks_now()
        try:
            self._check(transaction, edits)
            portions = list(self._portions(transaction, sites))
            # in one table: each table has all earlier entries again, and there is room for one with all of these
            windows = [each for portion in portions for each in portion if not each.is_single]
            self._traps.publish_entries({w.address: w.patch | (AMBIGUOUS if w.ambiguous else 0) for w in windows})
            for portion in portions:
                self._write(portion, journal, what)
        except BaseException as error:
            self._undo(what)
            transaction.forget()
            if isinstance(error, StopTimeout | RemoteCallFailed | PermissionDenied):  # a stop needs less of them
                raise NotNowError(Refusal(Reason.NEEDS_STOP, edits[0].state.code.start, str(error))) from error
            raise
        transaction.done = True
        complete_in_children(process.pid, holdings.inodes(), windows, began)
        self._conclude(transaction, dict.fromkeys(edits, "live"))
        for change in transaction.remaining:
            self._keep_springboards(change)

    def _keep_springboards(self, change: FunctionChange) -> None:
        """Take note of which springboards are in use no more, and which again."""
        self.left += [splice.patch for splice in change.removed if splice.patch is not None]
        one_byte = [splice for splice in change.removed if splice.springboard and len(splice.new) == 1]
        self._retired.update({splice.springboard: splice.address for splice in one_byte})
        for splice in change.added:
            self._retired.pop(splice.springboard, None)

    def _check(self, transaction: Transaction[ProcessQuiescence], edits: Sequence[Edit]) -> None:
        """See once more that the target is what it was."""
        self._process.verify()
        mappings = self._process.mappings()
        self._access.check_sessions(mappings)
        for edit in additions(edits, mappings):
            if edit.change is not None:
                transaction.refuse(edit.change, gone(edit))
        transaction.recheck()

    def _portions(
        self, transaction: Transaction[ProcessQuiescence], sites: dict[Edit, list[Site]]
    ) -> Iterator[list[Rewrite]]:
        """Yield what is to be written, all sites of a function together."""
        portion: list[Rewrite] = []
        for edit, found in sites.items():
            if edit.change is None or transaction.refusal_of(edit.change) is not None:
                continue
            for site in found:
                before, after = transaction.bytes_at(site.address, site.size)
                if before != after:
                    portion.append(site.rewrite(before, after))
            if len(portion) >= _PORTION:
                yield portion
                portion = []
        if portion:
            yield portion

    def _write(self, rewrites: Sequence[Rewrite], journal: Journal, what: str) -> None:
        windows = [each for each in rewrites if not each.is_single]
        if windows:
            self._write_windows(rewrites, windows, journal, what)
        else:
            self._store(rewrites, lambda: None)

    def _write_windows(
        self, rewrites: Sequence[Rewrite], windows: Sequence[Rewrite], journal: Journal, what: str
    ) -> None:
        """Write what needs an ``int3`` for a moment. Everything that a trap needs comes before it.

        Precondition: the sites are in the table.
        """
        process, site = self._process, windows[0].address
        records = journal.add([Record(RecordKind.WINDOW, w.address, len(w.old), 0, w.old, w.new) for w in windows])
        self._listed = journal, records
        why = disturbed(process, site)
        if why is None:
            with self.helper_threads.helper_thread(what) as remote:
                why = wrong_action(process, remote, self._traps, site)
                if why is None:
                    self._store(rewrites, partial(membarrier.serialise, remote))
        journal.clear(records)
        self._listed = ()
        if why is not None:
            raise NotNowError(why)

    def _store(self, rewrites: Sequence[Rewrite], serialise: Callable[[], None]) -> None:
        self._begun += rewrites
        self.pages.update(page_floor(each.address) for each in rewrites)
        write_running(self._process.mem, steps(rewrites), serialise)

    def _undo(self, what: str) -> None:
        """Put back in a stop what was written. If that fails too, the journal still lists it.

        What was to go and would overwrite several instructions is gone all the same: threads may be between them.
        """
        if self._begun:
            with self._access.stop(what):
                put_back(self._process.mem, [(each.address, each.if_undone) for each in self._begun])
        if self._listed:
            self._listed[0].clear(self._listed[1])
            self._listed = ()


def _serves_view(edit: Edit) -> bool:
    """Return whether no user has asked for what an edit adds: nothing is stopped for that."""
    return bool(edit.added) and all(want.internal for want in (*edit.added, *edit.removed))


def _staying(edit: Edit) -> list[EmittedSplice]:
    """Return the splices of a function that an edit need not touch."""
    state = edit.state
    kept = {want for want in state.wants if want not in edit.removed}
    if not kept and not edit.added:
        return []  # not even what hosts a springboard and serves no want itself
    changing = {want.address for want in (*edit.added, *edit.removed)}
    staying = [
        splice
        for splice in state.splices
        if not splice.planned.leans_on  # a springboard stays and goes with the short jump that leads to it
        and all(want in kept or want.kind is WantKind.LOOP for want in splice.planned.wants)
        and not any(insn.address in changing for insn in splice.planned.insns)
    ]  # fmt: skip
    around_entry = [splice for splice in state.splices if _is_around_entry(splice)]
    if all(splice in staying for splice in around_entry) and not any(w.kind in HEADS for w in edit.added):
        return staying
    return [splice for splice in staying if splice not in around_entry]


def _is_around_entry(splice: EmittedSplice) -> bool:
    return any(want.kind in HEADS or want.kind is WantKind.LOOP for want in splice.planned.wants)


def explained(found: FunctionPlan | Refusal) -> str:
    """Return how a plan would be carried out, as a sentence."""
    if isinstance(found, Refusal):
        return f"live: needs a stop: {found.detail}"
    if all(splice.written == 1 for splice in found.splices):
        return "live: made by one store of one byte"
    return "live: an int3 stands at its head while the bytes after it are written"


def _ambiguous(windows: Sequence[Site]) -> Refusal | None:
    """Return a refusal if a SIGTRAP from elsewhere could be taken for an anyprobe trap, or the other way round."""
    for site in windows:
        if site.rewrite(*site.expected).ambiguous:
            detail = "the program uses SIGTRAP itself, and the byte after the int3 can be reached without it"
            return Refusal(Reason.TRAP_UNSAFE, site.address, detail)
    return None


def _unplaced(plan: FunctionPlan) -> Refusal:
    """Return why a plan with refusals is of no use here."""
    want, why = plan.refused[0]
    detail = f"no jump in place of one instruction: {why.detail}"
    return Refusal(Reason.NEEDS_STOP, want.address, detail)


def _is_single(site: Site) -> bool:
    before, after = site.expected
    return before[1:] == after[1:]
