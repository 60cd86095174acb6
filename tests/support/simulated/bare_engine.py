"""The engine on a target that is no process: plain memory for code and counters, and nothing in the surroundings."""

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from anyprobe.core.address import PAGE
from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Refusal
from anyprobe.data.layouts.layout import BankLayout
from anyprobe.journal.records import Journal, MappingUse, Owner
from anyprobe.probes.providers.function.clobbering import clobbers
from anyprobe.splice.apply.site_clobbers import SiteClobbers
from anyprobe.splice.apply.transaction import SavedPcs, Transaction
from anyprobe.splice.apply.upkeep import MadeChanges, Upkeep
from anyprobe.splice.edits import Edit, Module, hook_of
from anyprobe.splice.emitted import EmittedSplice, FunctionChange
from anyprobe.splice.engine import Engine
from anyprobe.splice.memory.arena import Arena, Piece
from anyprobe.splice.plan.splices import Strategy
from anyprobe.splice.planning import Planning
from anyprobe.splice.regions.banks import settle_near
from anyprobe.splice.regions.code_region import CodeRegion, NearBank, code_region_pieces
from anyprobe.splice.regions.holdings import Holdings
from anyprobe.target.base import Target
from anyprobe.target.system.procfs import Mapping
from support.simulated.areas import Area, SimulatedMemory
from support.simulated.bare import BareStop, BareTarget, as_target

_CODE_BYTES = 1 << 18
_ALLOWED = frozenset({Strategy.RETARGET, Strategy.JUMP})


class PlainMemory:
    """Memory that is at once the target's and the controller's: no file, no descriptor."""

    inode, descriptor = 0, -1

    def __init__(self, area: Area) -> None:
        """Share an area."""
        m = area.mapping
        self._bytes = memoryview((ctypes.c_char * (m.end - m.start)).from_address(area.pointer)).cast("B")
        self._area = area

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes of it."""
        return self._bytes[offset : offset + size]

    def store(self, offset: int, content: bytes) -> None:
        """Write bytes of it."""
        self._bytes[offset : offset + len(content)] = content

    def extents(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield all of it."""
        yield 0, size

    def give_back(self, offset: int, size: int) -> bool:
        """Write zeros."""
        self.view(offset, size)[:] = bytes(size)
        return True

    def allocate(self, offset: int, size: int) -> None:
        """Do nothing: it is there."""

    def close(self) -> None:
        """Drop it."""
        self._bytes.release()


class PlainCodeMemory:
    """Code memory near a module, mapped with the first change, with counters in reach of it."""

    def __init__(self, memory: SimulatedMemory, holdings: Holdings, planning: Planning) -> None:
        """Map nothing yet."""
        self._memory, self._holdings, self._planning = memory, holdings, planning
        self._areas: dict[int, Area] = {}
        memory.watch(self)

    def added(self, area: Area) -> None:
        """Take note of an area."""
        self._areas[area.mapping.start] = area

    def removed(self, area: Area) -> None:
        """Forget an area."""
        del self._areas[area.mapping.start]

    def prepare(self, edits: Sequence[Edit]) -> None:
        """Map the memory if it is not there, and give each hook a counter."""
        if not self._holdings.code_regions:
            self._map(edits[0].module)
        near = self._holdings.code_regions[0].near
        assert near is not None
        for edit in edits:
            settle_near(filter(None, map(hook_of, edit.wants)), near)

    def _map(self, module: Module) -> None:
        layout = BankLayout(1024)
        sizes = PAGE, code_region_pieces(0, _CODE_BYTES, layout, 0)[-1].end
        place = self._planning.springboards.space.gap_near(module.low, module.high, sum(sizes))
        assert place is not None
        self._memory.add(place, sum(sizes), "rwxp", "generated code")
        journal = Journal(self._memory, place, PAGE)
        journal.begin(self._holdings.owner)
        gate, counters, code = pieces = code_region_pieces(place + PAGE, _CODE_BYTES, layout, PAGE)
        whole = Piece(MappingUse.JOURNAL, place, PAGE), *pieces
        arena = Arena(PlainMemory(self._areas[place]), whole, journal)
        self._holdings.add(arena)
        self._holdings.code_regions.append(CodeRegion(arena, gate, code, NearBank(arena, counters, layout)))


class EmptySurroundings:
    """No signal handlers, no traps, no other sessions."""

    view_root = 0

    def __init__(self, target: BareTarget, holdings: Holdings) -> None:
        """Stop the target with nothing else to be seen to."""
        self._bare, self._holdings = target, holdings
        self._target: Target
        self._saved_pcs: SavedPcs[BareStop]
        self._target, self._saved_pcs = as_target(target)

    def evicted(self) -> TargetError:
        """Return what never is raised."""
        return TargetError("evicted")

    def check_sessions(self, mappings: Sequence[Mapping]) -> None:
        """Do nothing."""

    def first(self) -> Sequence[Edit]:
        """Return none."""
        return ()

    def look(self, edits: Sequence[Edit], *, urgent: bool) -> Sequence[Edit]:
        """Return the edits themselves."""
        return edits

    def describe(self, edits: Sequence[Edit]) -> Iterable[tuple[Edit, Refusal]]:
        """Return none."""
        return ()

    def install(self, edits: Sequence[Edit]) -> Iterable[tuple[Edit, Refusal]]:
        """Return none."""
        return ()

    def begin(self, edits: Sequence[Edit]) -> None:
        """Do nothing."""

    def transaction(self, changes: Sequence[FunctionChange], journal: Journal | None) -> Transaction[BareStop]:
        """Return a transaction on the target."""
        return Transaction(self._target, changes, journal, self._holdings.records, self._saved_pcs)

    def stop(
        self, changes: Sequence[FunctionChange], struck: Callable[[BareStop], Refusal | None]
    ) -> AbstractContextManager[BareStop]:
        """Stop the target."""
        return self._bare.stop()

    def settle(self, edits: Sequence[Edit]) -> None:
        """Do nothing."""

    def note_refusals(self) -> None:
        """Do nothing."""

    def note_made(self, made: MadeChanges) -> None:
        """Do nothing."""

    def note_losses(self, mappings: Sequence[Mapping]) -> None:
        """Do nothing."""

    def note_lost(self) -> None:
        """Do nothing."""

    def clear_records(self) -> None:
        """Do nothing."""

    def yield_to_breakpoint(self, splice: EmittedSplice, modules: Sequence[Module]) -> str:
        """Return what never is said."""
        return "a breakpoint"


def bare_engine(target: BareTarget) -> tuple[Engine[BareStop], Holdings]:
    """Return an engine for a target of which nothing is known but memory and tasks, and what it maps there."""
    holdings = Holdings(Owner(os.urandom(16), os.getpid(), 1))
    planning = Planning(target, allowed=_ALLOWED, slots=False)
    surroundings = EmptySurroundings(target, holdings)
    upkeep = Upkeep(target, holdings, [], surroundings)
    memory = PlainCodeMemory(target.mem, holdings, planning)
    dead = SiteClobbers(lambda: False, clobbers)
    return Engine(target, holdings, planning, memory, surroundings, upkeep, dead), holdings
