"""The signal view: where the program handles signals, its handlers see its own pcs, also of threads in patches.

No tracer is attached when a signal comes, so what is needed lies in the target: a splice at the entry of each installed
handler, whose code puts the interrupted registers right (``viewroutine``), and tables of what to do (``viewtable``).
Which handlers there are is asked in one borrowed thread before a change is planned, and only where some signal is
handled at all. Where a handler cannot be spliced it sees the true pcs.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from signal import SIGTRAP
from typing import TYPE_CHECKING

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import PAGE
from anyprobe.core.checkpoints import checkpoint
from anyprobe.core.errors import TargetError, TargetExited
from anyprobe.core.memory import MemoryFault
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.splice.codegen.patch import BLIND, ActionKind
from anyprobe.splice.edits import Edit, FunctionState, Module, hook_of
from anyprobe.splice.emitted import EmittedSplice, landings_of
from anyprobe.splice.plan.splices import Strategy, Want, WantKind
from anyprobe.splice.plan.springboards import Springboards
from anyprobe.splice.regions.banks import Hook
from anyprobe.splice.regions.holdings import Holdings
from anyprobe.splice.userspace.signal_actions import FAULT_SIGNALS, query_actions
from anyprobe.splice.userspace.trap_handler import SA_ONSTACK, SA_RESETHAND, SA_SIGINFO

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from anyprobe.binary.flow.cfg import CodeMap
    from anyprobe.splice.codegen.fronts import Front
    from anyprobe.splice.plan.splices import Clobbers
    from anyprobe.splice.regions.code_region import CodeRegion
    from anyprobe.splice.translate.patches import Bearings
    from anyprobe.splice.translate.steps import EffectKind, Positions
    from anyprobe.splice.translate.table import Rows
    from anyprobe.splice.userspace.alternate_stacks import AlternateStacks
    from anyprobe.splice.userspace.fault_catching import FaultCatching
    from anyprobe.splice.userspace.traps import Traps
    from anyprobe.target.base import ProcessTarget, SystemCalls

Place = tuple[Module, FunctionCode]
_TRAP_BIT = 1 << SIGTRAP - 1
FAULT_BITS = sum(1 << signal - 1 for signal in FAULT_SIGNALS)


class SignalView:
    """Keeps the handlers of one target spliced and the tables complete."""

    def __init__(
        self,
        process: "ProcessTarget",
        holdings: Holdings,
        modules: Sequence[Module],
        springboards: Springboards,
        traps: "Traps",
        faults: "FaultCatching",
        *,
        clobbers: "Callable[[CodeMap, FunctionCode, Want], Clobbers]",
        hides_faults: Callable[[Module, FunctionState], bool],
        calls: "Callable[[], AbstractContextManager[SystemCalls]]",
    ) -> None:
        """Know of no handler yet.

        Args:
            process: The target.
            holdings: What the session has mapped there.
            modules: What is spliced, now and later.
            springboards: Where threads may be on their way to patches.
            traps: The session's SIGTRAP handler, which is not to be shown anything.
            faults: Whether a probe waits for faults.
            clobbers: Tells what is dead at an instruction.
            hides_faults: Says whether a function's splices could not be planned so for a program that handles faults.
            calls: Gives a thread to make system calls in.

        """
        self._process, self._holdings, self._modules, self._springboards = process, holdings, modules, springboards
        self._traps, self._faults, self._hides, self._calls = traps, faults, hides_faults, calls
        self._clobbers = clobbers
        self._alternate: AlternateStacks | None = None
        """What is known of handlers that run on alternate stacks, if there are any."""
        self.locate: Callable[[int], Place | Refusal] | None = None
        """Finds the function at a run-time address; without it, handlers see the true pcs."""
        self.setter: Callable[[], Place | None] | None = None
        """Finds the function by which the program sets actions."""
        self.settings: Hook | None = None
        """Counts the calls of that function, once some signal is handled."""
        self.refused: dict[int, Refusal] = {}
        """Why handlers see the true pcs, by their addresses."""
        self._complained: set[int] = set()
        self._handled = 0
        self._untold = 0
        """Signals whose handlers are not told where the program is: without ``SA_SIGINFO``."""
        self._expected = 0
        """Signals for which a handler has been about to be set that is told."""
        self.is_for_once = False
        """Whether some handler of faults is there for the first one alone: that has to be the program's."""
        self._asked = False
        """Whether the handlers of these signals are known; others in their stead are noticed by ``settings``."""
        self._on_alternate: set[int] = set()
        """Handlers that run on alternate stacks."""
        self.hooks: dict[int, Hook] = {}
        """By the addresses of handlers."""
        self._homes: dict[int, _Described] = {}
        self._index: tuple[tuple[int, int], ...] = ()
        self._boards: set[int] = set()
        """Where springboards stand in displaced bytes, or will in a moment."""
        self._changing: AbstractSet[int] = frozenset()
        """Where they may go, or sites may come, in a change that is under way."""
        self._no_room = False

    def find_by(self, locate: Callable[[int], Place | Refusal], setter: Callable[[], Place | None]) -> None:
        """Have handlers found, and the function by which the program sets them."""
        self.locate, self.setter = locate, setter

    @property
    def faults(self) -> bool:
        """Whether the program handles faults of its own and is told where, or a probe does."""
        traps = self._traps
        trap = _TRAP_BIT if traps.code and not traps.serves_program else 0
        told = self._expected | self._handled & ~self._untold & ~trap
        return bool(told & FAULT_BITS) or self._faults.wanted

    @property
    def is_used(self) -> bool:
        """Whether some signal is handled, by the program or a probe."""
        return bool(self._handled or self._faults.wanted)

    @property
    def is_complete(self) -> bool:
        """Whether all handlers see the program's own pcs, as far as that is known."""
        return not self.refused

    @property
    def could_ask(self) -> bool:
        """Whether it could be asked which handlers there are, when that was last wanted."""
        return 0 not in self.refused

    # -- handlers

    def look(self) -> int:
        """See which signals are handled; return them as a mask."""
        before, self._handled = self._handled, self._process.handled_signals()
        self._asked &= self._handled == before
        return self._handled

    def unspliced(self) -> Sequence[Edit]:
        """Return the edits that handlers without a splice need, where a change is not made all at once."""
        self.look()
        return [] if self._asked else self._with_handlers([])

    def with_handlers(self, edits: Sequence[Edit]) -> Sequence[Edit]:
        """Return the edits with those that handlers without a splice need."""
        return edits if self._asked or not any(edit.added for edit in edits) else self._with_handlers(edits)

    def since_set(self) -> Sequence[Edit]:
        """Return the edits that handlers need which may have been set, or replaced, since the last look."""
        return self._with_handlers([])

    def coming(self, signal: int, handler: int, flags: int) -> Sequence[Edit]:
        """Return the edits that a handler needs which is about to be set."""
        self._expected |= bool(flags & SA_SIGINFO) << signal - 1
        self.is_for_once |= bool(signal in FAULT_SIGNALS and flags & SA_RESETHAND)
        hook = self.hooks.get(handler)
        if hook is None and signal not in FAULT_SIGNALS:  # what it is to be shown is placed at the next look
            self._note_alternate(handler, on_alternate=bool(flags & SA_ONSTACK))
            return ()
        others = hook.offset & ~(1 << signal) if hook is not None else 0
        return self._edit_for(handler, others | _untold(signal, flags), {}, on_alternate=bool(flags & SA_ONSTACK))

    def expects(self, signal: int, handler: int, flags: int) -> bool:
        """Return whether nothing is left to be done for such a handler."""
        if flags & SA_ONSTACK and handler not in self._on_alternate:
            from anyprobe.splice.userspace.alternate_stacks import may_spare_stack

            if may_spare_stack(list(self._modules), handler):
                return False
        if signal not in FAULT_SIGNALS:
            return True
        hook, told = self.hooks.get(handler), bool(flags & SA_SIGINFO)
        spliced = hook is not None and hook.armed and hook.offset & 1 << signal == _untold(signal, flags)
        return (spliced or handler in self.refused) and (not told or bool(self._expected >> signal - 1 & 1))

    def planned_amiss(self) -> Sequence[Edit]:
        """Return the edits of functions that were planned for a program without such handlers as it has now.

        Those that would hide faults from handlers, and those that write to alternate stacks that handlers do not.
        """
        states = [(module, state) for module in self._modules for state in module.functions.values()]
        return [Edit(*each, anew=True, yields=True) for each in states if self._is_amiss(*each)]

    def _is_amiss(self, module: Module, state: FunctionState) -> bool:
        hides = self.faults and self._hides(module, state)
        hides |= self.is_for_once and any(not each.again for one in state.splices for each in landings_of(one))
        return hides or (self._alternate is not None and self._alternate.is_written_to(module, state))

    def refusal(self, module: Module, want: Want) -> Refusal | None:
        """Return why an action cannot be where a handler comes on an alternate stack that it does not write to."""
        return None if self._alternate is None else self._alternate.refusal(module, want)

    def _with_handlers(self, edits: Sequence[Edit]) -> Sequence[Edit]:
        if self.locate is None or not self.is_used:
            return edits
        self._untold = 0
        try:
            with self._calls() as remote:
                self._process.verify()  # after an exec, what a call borrows is somewhere else
                actions = query_actions(self._process, remote, self._handled)
        except TargetExited:
            return edits
        except (TargetError, MemoryFault) as error:
            self.refused[0] = Refusal(Reason.NO_STACK, 0, f"which handlers there are could not be asked: {error}")
            return edits
        self.refused.pop(0, None)
        told = {signal for signal, action in actions.items() if action.is_handler and action.flags & SA_SIGINFO}
        self._untold = sum(1 << signal - 1 for signal in actions if signal not in told)
        self._asked = True
        self.is_for_once |= any(actions[each].flags & SA_RESETHAND for each in actions.keys() & FAULT_SIGNALS)
        masks: dict[int, int] = {}
        alternate = {action.handler for action in actions.values() if action.is_handler and action.flags & SA_ONSTACK}
        for signal, action in actions.items():
            if action.is_handler:
                masks[action.handler] = masks.get(action.handler, 0) | _untold(signal, action.flags)
        by_state = {edit.state: edit for edit in edits}
        made = [
            edit
            for handler, mask in masks.items()
            for edit in self._edit_for(handler, mask, by_state, on_alternate=handler in alternate)
        ]
        return [*made, *self._edit_for_setter(by_state), *edits]

    def _edit_for_setter(self, edits: dict[FunctionState, Edit]) -> list[Edit]:
        """Want a counter where actions are set, so that later ones are noticed."""
        place = None if self.setter is None or self.settings is not None else self.setter()
        if place is None:
            return []
        module, code = place
        self.settings = Hook(ActionKind.COUNT)
        state = module.state_of(code)
        made = [] if state in edits else [Edit(module, state)]
        edit = edits.setdefault(state, edits.get(state) or made[0])
        edit.added.append(Want(code.entry, WantKind.ENTRY, tag=self.settings, internal=True))
        return made

    def _edit_for(self, handler: int, mask: int, edits: dict[FunctionState, Edit], *, on_alternate: bool) -> list[Edit]:
        """Want a splice at a handler; return the edit if it is a new one."""
        mask |= self._note_alternate(handler, on_alternate=on_alternate)
        known = self.hooks.get(handler)
        settled = known is not None and known.offset == mask and (known.armed or known.refusal is not None)
        if self.locate is None or settled or self._is_ours(handler):
            return []
        if isinstance(place := self.locate(handler), Refusal):
            self.refused[handler] = place
            return []
        module, code = place
        if module.code.text.is_go:
            return []  # Go does not preempt at pcs that it does not know: there the true pc always stays
        state = module.state_of(code)
        edit = edits.get(state)
        if edit is not None and known is not None and any(hook_of(want) is known for want in edit.added):
            known.offset |= mask  # it is about to be spliced, for a signal whose action is yet to be set
            return []
        hook = self.hooks[handler] = Hook(ActionKind.VIEW, offset=mask)
        made = [] if edit is not None else [Edit(module, state)]
        edit = edits.setdefault(state, edit or made[0])
        edit.removed += [want for want in state.wants if hook_of(want) is known and known is not None]
        edit.added.insert(0, Want(code.entry, WantKind.ENTRY, tag=hook, first=True, internal=True))
        return made

    def _note_alternate(self, handler: int, *, on_alternate: bool) -> int:
        """Take note of a handler that runs on an alternate stack; return ``BLIND`` if it need not be shown anything."""
        if self.locate is None or self._is_ours(handler) or not (on_alternate or handler in self._on_alternate):
            return 0
        self._on_alternate.add(handler)
        if isinstance(place := self.locate(handler), Refusal):
            return 0
        module, start = place[0], handler - place[0].bias
        if self._alternate is None:
            from anyprobe.splice.userspace.alternate_stacks import AlternateStacks

            self._alternate = AlternateStacks(self._clobbers)
        self._alternate.note(module, start)
        return BLIND if self._alternate.is_blind(module, start) else 0

    def _is_ours(self, address: int) -> bool:
        return self._holdings.covers(address)

    def note_refusals(self) -> None:
        """After a change: take note of handlers that could not be spliced."""
        for handler, hook in self.hooks.items():
            if hook.refusal is not None:
                self.refused[handler] = hook.refusal
            elif hook.armed:
                self.refused.pop(handler, None)

    def complaints(self, *, of_asking: bool = True) -> list[str]:
        """Return what is to be said of handlers that see the true pcs, once for each.

        ``of_asking``: also that it could not be asked which there are; where that is tried again, it may be soon.
        """
        fresh = [handler for handler in self.refused if handler not in self._complained and (handler or of_asking)]
        self._complained.update(fresh)
        found = [
            f"a signal handler sees pcs of probes as they are: {self.refused[each] if each else self.refused[0].detail}"
            for each in fresh
        ]
        if self._no_room:
            found.append("signal handlers see some pcs of probes as they are: there is no room to describe them")
            self._no_room = False
        return found

    # -- tables

    @property
    def root(self) -> int:
        """Where the index's address is kept."""
        return self._described(self._holdings.code_regions[0]).table.root

    def describe(self, edits: Sequence[Edit]) -> Sequence[Edit]:
        """Say in the tables what is to be done in the patches that the edits bring; they are not in use yet.

        Return the edits that must not be made: the program handles faults, and there is no room to say what it sees.
        """
        used = any(hook.armed or hook.refusal is None for hook in self.hooks.values())
        if not used and not self._faults.wanted:
            return ()
        changes = [edit.change for edit in edits if edit.change is not None]
        splices = [splice for change in changes for splice in change.added]
        leaving = {splice for change in changes for splice in change.removed}
        if not self._homes or not self._index:
            states = [state for module in self._modules for state in module.functions.values()]
            splices += [splice for state in states for splice in state.splices]
            for module in self._modules:
                module.left.clear()  # which the tables do not have
        looped, left_out = _looped(splices), set[EmittedSplice]()
        for home in self._holdings.code_regions:
            described = self._described(home)
            here = [s for s in splices if s.patch is not None and s.patch.address in described.table.code]
            left_out |= described.add(here, looped)
        self._changing = {splice.address for splice in (*splices, *leaving)}
        # where a site is, no springboard is left: who is brought back to the site would be led from it again, for ever
        sites = {splice.address for splice in (*splices, *leaving) if not splice.is_springboard}
        boards = {splice.address for splice in splices if splice.is_springboard}
        self._publish((self._boards | boards) - sites)
        self._no_room |= bool(left_out)
        if not left_out or not self.faults:
            return ()
        return [edit for edit in edits if edit.change is not None and not left_out.isdisjoint(edit.change.added)]

    def _described(self, home: "CodeRegion") -> "_Described":
        known = self._homes.get(home.code.address)
        if known is None:
            known = self._homes[home.code.address] = _Described(home)
        return known

    def settle(self, edits: Sequence[Edit]) -> None:
        """After a change, whatever came of it: take note of where springboards are now."""
        if self._changing:
            there = {splice.address for edit in edits for splice in edit.state.splices if splice.is_springboard}
            self._publish(self._boards - self._changing | there)
            self._changing = frozenset()

    def _publish(self, boards: set[int]) -> None:
        from anyprobe.splice.translate.routine import HANDLER

        self._boards = boards
        jumps = {(board, JUMP_BYTES) for board in boards}
        jumps |= {(page, PAGE) for page in self._springboards.pages()}
        jumps |= {entry for entry in self._index if entry[1] == HANDLER}
        for handler in self.hooks:
            place = self.locate(handler) if self.locate is not None else None
            if isinstance(place, tuple):
                jumps |= {(handler, HANDLER), (place[1].entry + place[0].bias, HANDLER)}
        tables = {(d.table.code.start, d.table.address) for d in self._homes.values()}
        index = tuple(sorted(tables | jumps))
        if index == self._index:
            return
        homes = self._holdings.code_regions
        written = next((at for home in reversed(homes) if (at := self._described(home).table.index(index))), 0)
        if written:
            self._described(homes[0]).table.point_to(written)
            self._index = index
        self._no_room |= not written


class _Described:
    """What is said of one code region's code."""

    def __init__(self, home: "CodeRegion") -> None:
        from anyprobe.splice.codegen.fronts import Fronts
        from anyprobe.splice.translate.table import ViewTable

        self._home = home
        self.table = ViewTable(home.arena, home.code, home.limit)
        self._blobs = 0
        self._banks: dict[int, int] = {}
        self._routines: dict[int, tuple[EffectKind | None, int]] = {}
        self._fronts = Fronts()
        self._front_rows: dict[Front, Rows | None] = {}
        self._known: dict[Hashable, int] = {}
        """Where the positions are of patches that differ in nothing but what they count and where they lie."""

    def add(self, splices: Sequence[EmittedSplice], looped: frozenset[int]) -> set[EmittedSplice]:
        """Describe patches, and routines that were emitted since; return those for which there is no room."""
        from anyprobe.splice.codegen.moved.fragments import is_described
        from anyprobe.splice.translate.patches import Bearings

        self.table.expect(len(splices) + len(self._home.blobs) - self._blobs)
        entries = list(self._routine_entries())
        bearings = Bearings(self._routines, self._banks, self.table.code)
        left_out = set[EmittedSplice]()
        for splice in splices:
            assert splice.patch is not None
            checkpoint()
            if not is_described(splice.patch):
                continue
            positions = self._positions_of(splice, bearings, looped)
            if not positions:
                left_out.add(splice)
            entries.append((splice.patch.address, positions, splice.planned.insns[0].address + splice.bias))
        unlisted = self.table.add(sorted(entries))
        self._blobs = len(self._home.blobs)  # not before: where this was ended, the next change describes them
        self._home.described(self.table.size - self.table.free, self.table.free)
        left_out |= {splice for splice in splices if splice.patch is not None and splice.patch.address in unlisted}
        return left_out

    def _routine_entries(self) -> Iterable[tuple[int, int, int]]:
        from anyprobe.splice.translate.routines import routine_positions
        from anyprobe.splice.translate.steps import EffectKind

        home = self._home
        if home.view:
            self._routines[home.view] = self._routines[home.view_check] = (None, 0)
        for blob in home.blobs[self._blobs :]:
            bank = 0
            if blob.facts is not None and blob.routines is not None:
                facts, routines = blob.facts, blob.routines
                bank = self.table.bank(facts.slot, facts.gate, facts.shared)
                if not bank:  # no room is left: what it counts cannot be taken back
                    continue
                self._banks[facts.slot] = bank
                self._routines[routines.count] = (EffectKind.COUNTED, bank)
                if routines.enter:
                    self._routines[routines.enter] = (EffectKind.ENTERED, bank)
                    self._routines[routines.leave] = self._routines[routines.leave_tail] = (EffectKind.LEFT, bank)
                    self._routines[routines.leave_caller] = (None, 0)  # run again it finds what it has ended no more
                    self._routines[routines.unwind] = self._routines[routines.leave_switch] = (None, 0)
            found = routine_positions(blob.code, blob.address, blob.stretches, bank, blob.finish)
            yield blob.address, self.table.positions(found), blob.address

    def _positions_of(self, splice: EmittedSplice, bearings: "Bearings", looped: frozenset[int]) -> int:
        from anyprobe.splice.codegen.fault_exit import with_landings
        from anyprobe.splice.codegen.fronts import form_of

        patch = splice.patch
        assert patch is not None
        loops = splice.bias + splice.planned.insns[0].address in looped
        planned = splice.planned
        key = form_of(planned, patch, bearings.code, looped=loops)
        known = self._known.get(key) if key is not None else None
        if known is None:
            front, own = self._fronts.positions(planned, splice.bias, patch, bearings, looped=loops)
            known = self._write(front, with_landings(own, patch))
            if key is not None:
                self._known[key] = known
        return known

    def _write(self, front: "Front | None", own: "Positions") -> int:
        """Write the positions of a patch into the table and return where."""
        shared: Rows | None = ()
        if front is not None:
            if front not in self._front_rows:
                self._front_rows[front] = self.table.rows(front.positions)
            shared = self._front_rows[front]
        return 0 if shared is None else self.table.positions(own, shared)


def _untold(signal: int, flags: int) -> int:
    """Return the bit of a signal of a fault whose handler is not told what happened."""
    return 1 << signal if signal in FAULT_SIGNALS and not flags & SA_SIGINFO else 0


def _looped(splices: Iterable[EmittedSplice]) -> frozenset[int]:
    """Return the sites of entries that branches in the function go after."""
    targets: set[int] = set()
    for splice in splices:
        if splice.is_springboard or splice.planned.strategy is Strategy.TRAP:
            continue
        for want in splice.planned.wants:
            if want.kind is not WantKind.LOOP:
                continue
            insn = next((insn for insn in splice.planned.insns if insn.address == want.address), None)
            if insn is not None and insn.target is not None:
                targets.update((insn.target + splice.bias, insn.target + splice.bias + 4))
    return frozenset(targets)
