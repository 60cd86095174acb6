"""What a change needs in the target before it can be armed, mapped in one stop: code, counters, journal."""

import errno
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from anyprobe.core.address import PAGE, page_ceil
from anyprobe.core.errors import PermissionDenied, RemoteCallFailed, StopTimeout, TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.layouts.layout import CLOSED, NEXT_BLOCK, NO_LOCK, NOWHERE, UNWATCHED, BankLayout
from anyprobe.journal.records import MappingUse, Record, RecordKind, journal_size
from anyprobe.journal.registrations import records_for
from anyprobe.splice.apply.outcomes import give_up
from anyprobe.splice.codegen.emit import estimate
from anyprobe.splice.codegen.patch import COUNTS_NOTHING, REPLACING, ActionKind
from anyprobe.splice.codegen.routines import ADOPTED, ADOPTING
from anyprobe.splice.codegen.timing.trampoline import AT_RETURN_BYTES, TRAMPOLINE_BYTES
from anyprobe.splice.memory.arena import Arena, Piece
from anyprobe.splice.memory.memfd import has_room, map_arena
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.plan.springboards import Springboards
from anyprobe.splice.regions.access import Access
from anyprobe.splice.regions.banks import (
    LEAST_COUNTERS,
    ONE_COUNTER,
    TIMING,
    Counting,
    Hook,
    Threads,
    bank_layout,
    banks_of,
    copies_wanted,
    demand,
    follows_calls,
    has_room_for,
    home_of_handlers,
    settle_in_slot_bank,
    settle_near,
    with_fewer_threads,
    with_records_ahead,
)
from anyprobe.splice.regions.code_region import (
    BANK_ROUTINE_BYTES,
    ROUTINE_BYTES,
    VIEW_BYTES,
    Cluster,
    CodeRegion,
    NearBank,
    SlotBank,
    code_region_pieces,
    view_room,
)
from anyprobe.splice.userspace.thread_slot import choose_slot, region_place
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.splice.apply.goroutine_memory import GoroutineMemory
    from anyprobe.splice.edits import Edit, Module
    from anyprobe.target.base import SystemCalls, Target
    from anyprobe.target.system.procfs import Mapping

_LEAST_JOURNAL = 256
_SPARE_RECORDS = 4
"""For banks and the like."""
_CLUSTER = 1 << 30
"""Modules that lie within this distance share a code region."""
_PATIENCE = 1.0
_LEAST_TRIES = 3
"""How often memory is mapped where the program has just mapped some itself, at least."""
_PAUSE, _LONGEST_PAUSE = 0.002, 0.1
"""Where a thread that has begun is waited for, each pause is twice as long as the last: all may be stopped to look."""
_MUCH, _MOST, _MOST_OF_COUNTER = 200_000, 640, 224
"""So many bytes of code are worth keeping room for, so many for each new want, and for one that only counts."""
_PARTS = (1, 2, 4)
"""What part of that, where there is no room for all: most patches are smaller."""
_DIVISIONS = (1, 2, 4, 8, 16, 32)
"""Into how many places code may be divided: springboards all over the place leave gaps of some megabytes."""


class ThreadSlotUnusable(Exception):  # noqa: N818 - a verdict on the target's threads
    """The target's threads are not all glibc's: no thread slots."""


class _ThreadStarting(Exception):  # noqa: N818 - what to wait for
    """The program runs, and its loader has not made the thread's control block yet."""


@dataclass(eq=False)
class _Need:
    """What the changed functions of one module need: bytes of code, the largest one's, near counters, view bytes."""

    module: "Module"
    code: int = 0
    largest: int = 0
    near: int = 0
    view: int = 0


def _join(clusters: list[Cluster], module: "Module") -> Cluster:
    """Return the cluster that a module belongs to, which is the last one or a new one; no later one lies lower."""
    if not clusters or module.high - clusters[-1].low > _CLUSTER:
        clusters.append(Cluster(module.low, module.high))
    clusters[-1].high = max(clusters[-1].high, module.high)
    return clusters[-1]


def look_at_space(springboards: Springboards, target: "Target", mappings: "Sequence[Mapping]") -> None:
    """Have springboards placed in the address space as the memory map has it now."""
    space = AddressSpace(mappings, target.heap_start, heap_room=springboards.heap_room)
    springboards.look(space, len(mappings), procfs.most_mappings())


def keep_room(space: AddressSpace, edits: Sequence["Edit"]) -> None:
    """Keep springboards, which may stand nearly anywhere, out of the way of the code of many patches."""
    wanted: Counter[Module] = Counter()
    for edit in edits:
        for want in edit.added:
            wanted[edit.module] += _MOST if getattr(want.tag, "handler", None) is not None else _MOST_OF_COUNTER
    clusters: list[Cluster] = []
    for module in sorted(wanted, key=lambda module: module.low):
        _join(clusters, module).code_bytes += wanted[module]
    free = space.copy()
    for cluster in clusters:
        size = cluster.code_bytes + 4 * ROUTINE_BYTES
        for part in _PARTS if cluster.code_bytes >= _MUCH else ():
            place = free.gap_near(cluster.low, cluster.high, size // part)
            if place is not None:
                end = place + page_ceil(size // part)
                space.keep(place, end)
                free.reserve(place, end)
                break


class Mapper(Protocol):
    """What maps memory while the program runs."""

    def prepare_stack(self, what: str) -> None:
        """See that there is a stack for a thread that makes calls."""
        ...

    def mapping(self, *, pointers: bool) -> "AbstractContextManager[tuple[SystemCalls, list[int]]]":
        """Give a thread to map memory in, and all thread ``pointers``; ``StopTimeout`` where that needs a stop."""
        ...


class Preparation:
    """Finds out what is missing and maps it."""

    def __init__(
        self,
        access: Access,
        springboards: Springboards,
        edits: Sequence["Edit"],
        counting: Counting,
        *,
        has_slots: "Callable[[Module], bool]",
        view_used: bool = False,
        listing: int = 0,
        mapper: Mapper | None = None,
        note_stop: Callable[[TargetError], None] = lambda _: None,
    ) -> None:
        """Look at the plans; nothing is done yet.

        Args:
            access: The target, and what is mapped there.
            springboards: Where the plans want springboards.
            edits: The plans.
            counting: How banks are made.
            has_slots: Says whether the threads that run a module have thread slots.
            view_used: Whether signal handlers are shown the program's own pcs: that takes room.
            listing: How many words of registered probes wait for room in a journal.
            mapper: What maps memory while the program runs, where that is wanted.
            note_stop: Called with the reason why memory is mapped in a stop all the same.

        """
        self._access, self._process, self._holdings = access, access.process, access.holdings
        self._springboards, self._edits, self._counting = springboards, edits, counting
        self._view_used, self._words = view_used, listing
        self._has_slots = {module: has_slots(module) for module in {edit.module for edit in edits}}
        self._mapper, self._note_stop = mapper, note_stop
        planned = [(edit, edit.planned.wants) for edit in edits if edit.planned.plan.splices]
        self._hooks = {edit: [want.tag for want in wants if isinstance(want.tag, Hook)] for edit, wants in planned}
        """The hooks of each edit that makes splices, which are to have places."""
        self._clusters: list[Cluster] = []
        self._layout: BankLayout | None = None
        self._home: SlotBank | None = None
        """The bank by which handlers are called, if there is one with room."""
        self._region: tuple[int, int] | None = None
        self._goroutines: GoroutineMemory | None = None
        """For timed calls of Go functions, where there are any."""

    def run(self) -> None:
        """Map what is missing, and give every hook a place to count."""
        self._springboards.reserve_fresh()
        splices = [splice for edit in self._hooks for splice in edit.planned.plan.splices]
        splices += [splice for splice in splices if splice.dead_springboard]  # these take two journal records
        if splices:
            self._want_code()
            self._want_bank()
            self._want_goroutines()
            if (
                self._clusters
                or self._layout
                or (self._goroutines and self._goroutines.layout)
                or self._springboards.has_fresh()
                or not self._has_journal(len(splices) + self._listing() + _SPARE_RECORDS)
            ):
                self._map(len(splices))
            self._settle_hooks()

    # -- needs

    def _want_code(self) -> None:
        """Find modules whose code region lacks room or near counters, and cluster them."""
        holdings = self._holdings
        needs: dict[int, _Need] = {}
        replacing: set[int] = set()
        stubs = TRAMPOLINE_BYTES * (1 + sum(bank.layout.returns > 0 for bank in holdings.banks))
        need: _Need | None = None
        for edit, hooks in self._hooks.items():
            planned, module, splices = edit.planned, edit.module, edit.planned.plan.splices
            size = estimate(splices[0]) if len(splices) == 1 else sum([estimate(splice) for splice in splices])
            special = [hook for hook in hooks if hook.handler is not None or hook.kind not in ONE_COUNTER]
            if special and any(hook.handler is not None for hook in special):
                from anyprobe.splice.codegen.fault_exit import LANDING_ESTIMATE
                from anyprobe.splice.codegen.handlers.chain import chains_bytes
                from anyprobe.splice.codegen.handlers.facts import handler_bytes

                size += chains_bytes(planned.wants)
                size += handler_bytes(hooks) + LANDING_ESTIMATE * sum(hook.kind is ActionKind.FAULT for hook in hooks)
            if need is None or need.module is not module:
                need = needs.setdefault(id(module), _Need(module))
            need.largest = max(need.largest, size)
            need.near += demand(self._divided(edit)[0]).counters
            need.view += VIEW_BYTES * len(planned.wants) if self._view_used else 0
            need.view += sum(hook.body.described_bytes for hook in special if hook.body is not None)
            if special:
                if any(hook.kind in REPLACING for hook in special) and id(module) not in replacing:
                    replacing.add(id(module))
                    size += stubs  # a function's old hooks are in earlier banks
                size += AT_RETURN_BYTES * sum(hook.kind is ActionKind.HANDLE_RETURN for hook in special)
            need.code += size
        earlier = banks_of(hook for hooks in self._hooks.values() if holdings.banks for hook in hooks)
        used_code = used_near = used_view = 0
        for need in sorted(needs.values(), key=lambda need: need.module.low):
            if need.code == 0:
                continue
            module, near = need.module, need.near
            homes = [h for h in holdings.code_regions if h.reaches(module.low, module.high)]
            code, shown = used_code + need.code + ROUTINE_BYTES, used_view + view_room(need.view)
            roomy = any(home.room(earlier) >= code and home.view_room >= shown for home in homes)
            enough = near == 0 or any(h.near and h.near.layout.counters_left() - used_near >= near for h in homes)
            if roomy and enough:
                used_code, used_near, used_view = used_code + need.code, used_near + near, shown
                continue
            cluster = _join(self._clusters, module)
            cluster.code_bytes += need.code
            cluster.view_bytes += need.view
            cluster.routine_bytes = BANK_ROUTINE_BYTES * len(earlier)
            cluster.largest = max(cluster.largest, need.largest)
            cluster.modules.append(module.name)
            if near:
                counters = near + (cluster.near.counters if cluster.near else LEAST_COUNTERS)
                cluster.near = BankLayout(counters)

    def _divided(self, edit: "Edit") -> tuple[list[Hook], list[Hook]]:
        """Return what an edit counts near the code (flags; all, without thread slots), and what in threads' blocks."""
        hooks, slots = [hook for hook in self._hooks[edit] if hook.kind not in COUNTS_NOTHING], self._has_slots
        near = [hook for hook in hooks if hook.kind is ActionKind.FLAG] if slots[edit.module] else hooks
        return near, [hook for hook in hooks if hook.kind is not ActionKind.FLAG] if slots[edit.module] else []

    def _want_bank(self) -> None:
        hooks = [hook for edit in self._hooks for hook in self._divided(edit)[1]]
        self._home = home_of_handlers(self._holdings.banks, hooks)
        need = demand(hook for hook in hooks if self._home is None or hook.handler is None)
        bank = self._holdings.banks[-1] if self._holdings.banks else None
        follows = self._home is None and follows_calls(hooks)
        if need.counters == need.records == 0 or (bank is not None and has_room_for(bank, need, follows=follows)):
            return
        handled = self._home is None and any(hook.handler is not None for hook in hooks)
        tells = need.records > 0 or any(hook.handler is not None for hook in hooks)
        adopting = self._counting.children and tells and len(self._holdings.banks) < ADOPTING and has_room()
        apart = self._counting.by_thread and need.records > 0
        threads = Threads.of(self._process.pid, apart=apart, may_lock=self._counting.may_lock())
        found = bank_layout(need, self._counting, threads, handled=handled, adopting=adopting, apart=apart)
        self._layout = with_records_ahead(found, self._holdings.banks)

    def _want_goroutines(self) -> None:
        """See what timed calls of Go functions need: nothing else is timed where threads have no slots."""
        slotless = [edit for edit in self._hooks if not self._has_slots[edit.module]]
        if any(hook.kind in TIMING for edit in slotless for hook in self._hooks[edit]):
            from anyprobe.splice.apply.goroutine_memory import GoroutineMemory

            self._goroutines = GoroutineMemory(self._holdings, nested=self._counting.nested, nodes=self._counting.nodes)
            self._goroutines.want((edit.module, self._hooks[edit]) for edit in slotless)

    def _has_journal(self, records: int) -> bool:
        return any(arena.journal.room() >= records for arena in self._holdings.arenas[-1:])

    def _listing(self) -> int:
        """Return how many records of the journal will say what is registered, and what semaphores are up."""
        hooks = [want.tag for edit in self._edits for want in edit.added]
        semaphores = {hook.semaphore for hook in hooks if isinstance(hook, Hook) and hook.semaphore}
        return records_for(len(hooks) + self._words) + len(semaphores) + copies_wanted(hooks)

    # -- mapping

    def _map(self, splices: int) -> None:
        """Map everything that is missing; where the moment was not the right one, try another.

        At one moment no thread may be where it can make calls, or the program has just begun; meanwhile it may have
        mapped what was free: while all functions of a large program are planned, for one. Then it is tried again
        however long the first time has taken.
        """
        deadline, collisions, waited = time.monotonic() + _PATIENCE, 0, _PAUSE / 2
        try:
            while True:
                pause = _PAUSE
                try:
                    if self._mapper is not None:
                        self._mapper.prepare_stack("arm")  # before places are chosen: it needs one, too
                    return self._map_now(splices)
                except _ThreadStarting:
                    taken = False
                    pause = waited = min(2 * waited, _LONGEST_PAUSE)
                    if time.monotonic() > deadline:
                        raise ThreadSlotUnusable from None
                except (StopTimeout, RemoteCallFailed, PermissionDenied) as error:
                    taken = isinstance(error, RemoteCallFailed) and error.errno == errno.EEXIST
                    if self._mapper is not None and not taken:
                        self._note_stop(error)
                        self._mapper = None
                        continue
                    collisions += taken
                    tried = time.monotonic() > deadline and not (taken and collisions < _LEAST_TRIES)
                    if not (taken or isinstance(error, StopTimeout)) or tried:
                        raise
                time.sleep(pause)
                look_at_space(self._springboards, self._process, self._process.mappings())
                if taken and (time.monotonic() > deadline - _PATIENCE / 2 or collisions > 1):
                    self._give_up_taken()
                self._springboards.reserve_fresh()
        except BaseException:
            self._springboards.forget_fresh()
            raise

    def _give_up_taken(self) -> None:
        """Refuse functions with springboards to be mapped where the program has mapped something since."""
        springboards = self._springboards
        for edit in self._hooks:
            for splice in edit.planned.plan.splices:
                page = splice.springboard & -PAGE
                if springboards.is_fresh(page) and not springboards.space.is_free(page, page + PAGE):
                    detail = "the program has just mapped memory where the jump leads; try again"
                    give_up(edit, Refusal(Reason.PUN_OUT_OF_REACH, splice.head, detail))
                    break

    def _map_now(self, splices: int) -> None:
        """Map everything that is missing, in one stop."""
        process, holdings = self._process, self._holdings
        pieces, offset = self._place_clusters()
        if self._layout is not None:
            pieces.append(self._place_region(offset))
            offset += self._layout.file_bytes
        if self._goroutines is not None and self._goroutines.layout is not None:
            pieces += self._goroutines.place(self._springboards.space, offset)
            offset = pieces[-1].offset + pieces[-1].size
        boards = self._springboards.fresh_pieces(offset)
        pieces += boards
        records = max(_LEAST_JOURNAL, 2 * splices) + self._listing()
        size = journal_size(records + len(pieces) + 8)
        anchor = min(edit.module.low for edit in self._edits)
        space = self._springboards.space
        journal_at = space.gap_near(anchor, anchor + PAGE, size) or space.quiet_gap(size)
        if journal_at is None:
            raise TargetError("no room for the journal in the target's address space")
        with self._borrowed() as (remote, pointers):
            slot = self._choose_slot(pointers)
            arena = map_arena(process, remote, holdings.owner, pieces, journal_at=journal_at, records=records)
            holdings.add(arena)  # whatever fails from here on: it is there
        self._springboards.mapped(arena)
        self._adopt(arena, slot)

    @contextmanager
    def _borrowed(self) -> "Iterator[tuple[SystemCalls, list[int]]]":
        """Give a thread to make calls in and all thread pointers, everything being stopped if it has to be."""
        if self._mapper is not None:
            with self._mapper.mapping(pointers=self._layout is not None) as given:
                yield given
        else:
            with self._access.stop("prepare") as stop, stop.remote() as remote:
                yield remote, [thread.registers.fs_base for thread in stop.threads]

    def _choose_slot(self, pointers: Sequence[int]) -> int:
        if self._layout is None:
            return 0
        if 0 in pointers and self._process.held is None:  # what counts would read a control block at address 0
            raise _ThreadStarting
        taken = self._holdings.slots_beside.union(bank.slot for bank in self._holdings.banks)
        slot = choose_slot(self._process.mem, pointers, taken)
        if slot is None:
            raise ThreadSlotUnusable
        return slot

    def _place_clusters(self) -> tuple[list[Piece], int]:
        pieces: list[Piece] = []
        offset = 0
        for cluster in self._clusters:
            cluster.homes = []
            sizes, places = self._places_of(cluster)
            for number, (size, place) in enumerate(zip(sizes, places, strict=True)):
                near = cluster.near if number == 0 else None
                code = size - PAGE - (near.stride if near else 0)
                home = code_region_pieces(place, code, near, offset)
                cluster.homes.append(home)
                pieces += home
                offset += size
        return pieces, offset

    def _places_of(self, cluster: Cluster) -> tuple[list[int], list[int]]:
        """Return sizes and addresses for a cluster's code: one place, or several that reach one another."""
        springboards = self._springboards
        for count in _DIVISIONS:
            sizes, places = cluster.sizes(count), []
            space = springboards.space.copy()
            low, high = cluster.low, cluster.high
            for size in sizes:
                place = space.gap_near(low, high, size)
                if place is None:
                    break
                space.reserve(place, place + size)
                low, high = min(low, place), max(high, place + size)
                places.append(place)
            if len(places) == count:
                springboards.space = space
                return sizes, places
        names = ", ".join(cluster.modules)
        raise TargetError(f"no free address space within reach of {names}")

    def _place_region(self, offset: int) -> Piece:
        """Place the bank that is missing, with blocks for fewer threads where there is no room for all."""
        layout, self._region = self._layout, None
        while layout is not None and self._region is None:
            self._layout = layout
            self._region = region_place(self._springboards.space, layout.size)
            layout = with_fewer_threads(layout)
        if self._region is None or self._layout is None:
            raise TargetError("no free address space for the counters")
        made = self._layout
        return Piece(MappingUse.DATA, self._region[0], made.size, offset, made.file_bytes - made.size)

    def _adopt(self, arena: Arena, slot: int) -> None:
        """Turn mapped pieces into code regions and banks."""
        holdings = self._holdings
        mapped = {piece.address: piece for piece in arena.pieces}
        for cluster in self._clusters:
            view_bytes = cluster.view_in_each(len(cluster.homes))
            for home in cluster.homes:
                pieces = {piece.use: mapped[piece.address] for piece in home}
                counters = pieces.get(MappingUse.COUNTERS)
                near = NearBank(arena, counters, cluster.near) if counters is not None and cluster.near else None
                gate, code = pieces[MappingUse.GATE], pieces[MappingUse.CODE]
                holdings.code_regions.append(CodeRegion(arena, gate, code, near, view_bytes))
        if self._goroutines is not None:
            self._goroutines.adopt(arena, mapped)
        if self._layout is not None and self._region is not None:
            piece, mask, number = mapped[self._region[0]], self._region[1], holdings.bank_number()
            numbered = holdings.first_number + sum(bank.layout.blocks for bank in holdings.banks)
            bank = SlotBank(arena, piece, self._layout, slot, mask, number, self._counting.clock, numbered)
            bank.of_session((holdings.banks[0] if holdings.banks else bank).piece.address)
            bank.costs, bank.rate = self._counting.costs, self._counting.rate
            arena.view(piece.offset + NOWHERE + 8, 4)[:] = NO_LOCK.to_bytes(4, "little")
            if self._layout.children:
                bank.adopted = holdings.code_regions[0].gate.address + ADOPTED + 8 * number
                bank.change = arena.journal.change_at
            if not holdings.banks:
                arena.view(piece.offset + CLOSED, 8)[:] = UNWATCHED.to_bytes(8, "little")
            extra = slot | self._layout.blocks << 32
            arena.journal.add([Record(RecordKind.BANK, piece.address, self._layout.stride, extra)])
            if self._layout.left_out:
                arena.view(piece.offset + NEXT_BLOCK, 8)[:] = self._layout.left_out.to_bytes(8, "little")
            holdings.banks.append(bank)
        holdings.note_clock_word()

    def _settle_hooks(self) -> None:
        holdings = self._holdings
        homeless: list[Hook] = []
        for edit in self._hooks:
            hooks, in_blocks = ([hook for hook in each if hook.bank is None] for each in self._divided(edit))
            homeless += in_blocks
            hooks = hooks if self._goroutines is None else self._goroutines.settle(hooks)
            near = [h.near for h in holdings.code_regions if h.near and h.reaches(edit.module.low, edit.module.high)]
            if hooks:
                settle_near(hooks, max(near, key=lambda bank: bank.layout.counters_left()))
        if homeless:
            settle_in_slot_bank(homeless, holdings.banks[-1], self._home)
