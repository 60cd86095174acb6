"""Where hits are counted: hooks, and the banks that hold their counters and timing records, for how many threads."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from anyprobe.core.errors import UsageError
from anyprobe.core.refusal import Refusal
from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.layout import CALL_COUNTERS, CALLERS, BankLayout
from anyprobe.data.snapshots.costs import NO_COSTS, Costs
from anyprobe.splice.codegen.patch import COUNTS_NOTHING, REPLACING, ActionKind
from anyprobe.splice.codegen.timing.trampoline import RETURNS
from anyprobe.splice.memory.memfd import has_room
from anyprobe.splice.regions.code_region import NearBank, SlotBank
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.splice.codegen.handlers.facts import HandlerFacts
    from anyprobe.splice.codegen.moved.bodies import Body
    from anyprobe.splice.emitted import EmittedSplice

FOLLOWED = frozenset(
    {ActionKind.ENTER, ActionKind.LEAVE, ActionKind.LEAVE_TAIL, ActionKind.LEAVE_CALLER, ActionKind.ARRIVE}
)
"""What times calls and can be in Go functions, too: by goroutine, where there is no memory of a thread's own."""
TIMING = FOLLOWED | {ActionKind.ENTER_RETURN, ActionKind.LEAVE_SWITCH}
SLOT_ONLY = TIMING | REPLACING | {ActionKind.HANDLER, ActionKind.FAULT}
"""What needs per-thread memory."""
ONE_COUNTER = frozenset({ActionKind.COUNT, ActionKind.FLAG})
"""What has one counter and nothing else, if it does not follow calls."""
MISSING = REPLACING | {ActionKind.HANDLER, ActionKind.FAULT}
"""What has a second counter after its own, for hits that are missed."""


LEAST_COUNTERS, _LEAST_RECORDS = 1024, 16
_MOST_AHEAD = 256
"""Records that a bank has at most for functions to come: threads have words for a few banks of a session only."""
_HANDLERS_COUNTERS = 1 << 13
"""Room for handlers to come: they are all called by one bank, while that has any."""
_RECORDS_AT_ALL = (at.STRIDE_LIMIT - (16 << 20)) // (at.RECORD_BYTES + at.FAR_BYTES)
"""Timing records that a block has room for, whatever else is in it."""


@dataclass(eq=False, slots=True)
class TimingGroup:
    """One timed function: its hooks share a record."""

    bank: SlotBank | None = None
    offset: int = 0

    def is_at(self, other: "TimingGroup") -> bool:
        """Return whether the record is that of another group."""
        return self.bank is other.bank and self.offset == other.offset


MOST_PLACES = 8
"""Places of one group: the number of each is in the argument of its patch, in the bits that an offset leaves free."""


@dataclass(eq=False, slots=True)
class CallGroup:
    """The places at which one function is left by jumps: all calls that leave there are the same to their callers."""

    size: int
    """Number of places."""
    bank: SlotBank | None = None
    offset: int = 0
    """Where the counters of the first place are; the group is known by it where callers go on."""


@dataclass(eq=False, slots=True)
class Hook:
    """What a want is for: an action, where it counts, and what became of it.

    Hooks with the same ``group`` are armed together or not at all (the exits of a function).
    """

    kind: ActionKind
    group: object = None
    bank: SlotBank | NearBank | None = None
    offset: int = 0
    """Where its counter or record is in a block; of a return point that has no bank yet, what belongs to that besides.
    """
    ends: TimingGroup | None = None
    """The function whose calls end here, if this is a return point: it counts by that one's record."""
    refusal: Refusal | None = None
    splice: "EmittedSplice | None" = None
    strategy: str = ""
    """The strategy by which it was armed last."""
    arming: str = ""
    """How, where it was wanted that nothing is stopped: ``live``, or ``stop`` and why."""
    detached: bool = False
    handler: "HandlerFacts | None" = None
    """What is called at a hit, for hooks of that kind."""
    calls: CallGroup | None = None
    """The places at which calls of the same function leave it, where these are followed to their callers."""
    number: int = 0
    """Which of these it is, from 0."""
    ip: int = 0
    """Run-time address of the instruction, and of the function that it is asked of: what a handler may want to know."""
    function: int = 0
    jumps: int = 0
    """How many jumps are before a call's end in a Go function to which another one jumps; 1 at such a jump."""
    looks_for_room: bool = False
    """Whether the goroutine's stack may end right below, which the patch has to look at."""
    spares_stack: bool = False
    """Whether its counter must not write to the stack."""
    was_set: bool = False
    """Whether a flag was found set: it may have been cleared since, to see whether it is set again."""
    body: "Body | None" = None
    """The function that runs elsewhere, where it is about that."""
    semaphore: int = 0
    """Run-time address of the number that has to be counted up for the instruction to be reached; 0: there is none."""

    @property
    def armed(self) -> bool:
        """Whether the hook's code is in place."""
        return self.splice is not None


def banks_of(hooks: "Iterable[Hook | None]") -> set[SlotBank]:
    """Return the banks whose routines the patches of some hooks call."""
    return {hook.bank for hook in hooks if hook is not None and isinstance(hook.bank, SlotBank)}


def copies_wanted(hooks: Iterable[object]) -> int:
    """Return how many functions some hooks have run elsewhere."""
    return sum(isinstance(hook, Hook) and hook.kind is ActionKind.MOVE for hook in hooks)


def needs_slots(hook: Hook) -> bool:
    """Return whether a hook can only be where threads have slots."""
    return hook.kind in SLOT_ONLY and (hook.handler is None or hook.handler.needs_block)


@dataclass(frozen=True, slots=True)
class Demand:
    """How much a change needs of the banks."""

    counters: int
    records: int


def demand(hooks: Iterable[Hook]) -> Demand:
    """Count what hooks without a place need."""
    alone, homeless = 0, list[Hook]()
    for hook in hooks:
        if hook.bank is None and hook.kind not in COUNTS_NOTHING:
            if hook.kind in ONE_COUNTER and hook.calls is None:
                alone += 1
            else:
                homeless.append(hook)
    groups = {id(_measured(hook)) for hook in homeless if hook.kind in TIMING and not _has_record(hook)}
    own = [hook for hook in homeless if hook.kind not in TIMING and hook.calls is None]
    counters = alone + sum(map(_counters_of, own))
    calls = {id(hook.calls): hook.calls for hook in homeless if hook.calls is not None}
    counters += sum(CALL_COUNTERS * group.size for group in calls.values() if group.bank is None)
    return Demand(counters, len(groups))


def _has_record(hook: Hook) -> bool:
    """Return whether its function is measured already, or was before its file was unloaded."""
    group = _measured(hook)
    return isinstance(group, TimingGroup) and group.bank is not None


def _measured(hook: Hook) -> object:
    """Return what a timing hook shares a record with."""
    return hook.group if hook.ends is None else hook.ends


def follows_calls(hooks: Iterable[Hook]) -> bool:
    """Return whether calls are to be followed to their callers for handlers of these hooks."""
    return any(hook.calls is not None for hook in hooks)


def _counters_of(hook: Hook) -> int:
    """Return how many counters a hook has: its hits, what is missed, and what no stub could be had for."""
    if hook.calls is not None:
        return CALL_COUNTERS
    return 1 + (hook.kind in MISSING) + (hook.kind is ActionKind.HANDLE_RETURN)


@dataclass(frozen=True, slots=True)
class Counting:
    """How the banks of a session are made."""

    maxactive: int
    """Instances of calls that a thread can have at once."""
    left_out: int = 0
    """Blocks of each bank that are for threads left out."""
    clock: int = 0
    """Address of the vdso's ``clock_gettime``, if times are not taken from the TSC."""
    callers: int = CALLERS
    """Return points that threads can note; 0: calls end at exits only."""
    children: bool = False
    """Whether fork children have blocks of their own."""
    nested: bool = False
    """Whether it is known of timed calls which others they have made."""
    nodes: int = 0
    """Nodes of the call tree of timed calls; 0: there is none."""
    by_thread: bool = False
    """Whether timed calls of threads are told apart."""
    rate: int = 0
    """Ticks of a nanosecond, times two to the 32, if times are those on processors; 0: they are not."""
    raw: bool = False
    """Whether times are left as they are measured."""
    costs: Costs = NO_COSTS
    """What timing probes cost, which is left out of times."""
    may_lock: Callable[[], bool] = lambda: False
    """Says whether the program may lock all of its memory later (``mlockall``)."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads that blocks are for."""

    wanted: int
    """For so many there are blocks if these do not take too much address space,"""
    least: int = 0
    """and for so many even if they do."""

    @classmethod
    def of(cls, pid: int, *, apart: bool, may_lock: bool) -> "Threads":
        """Return what a process needs. ``apart``: threads are told apart; ``may_lock``: it may lock all of its memory.

        What is locked is in memory, whether it is used or not. And address space may be limited, there or here.
        """
        now, locked = procfs.count_threads(pid), procfs.locks_memory(pid)
        wanted = at.room_for(now, apart=apart, is_scarce=locked)
        is_tight = locked or may_lock or procfs.limits_address_space(pid) or not has_room()
        return cls(wanted, 0 if is_tight else min(max(2 * now, at.THREADS), at.MOST_THREADS))


def bank_layout(
    need: Demand, counting: Counting, threads: Threads, *, handled: bool, adopting: bool, apart: bool
) -> BankLayout:
    """Return the layout of a bank that has room for more than a change needs.

    Args:
        need: What the change needs.
        counting: How the session's banks are made.
        threads: For how many threads.
        handled: Whether handlers are called by it.
        adopting: Whether fork children have blocks of their own.
        apart: Whether threads are told apart.

    Raises:
        UsageError: It needs more than one bank can have.

    """
    if need.records > _RECORDS_AT_ALL:
        raise UsageError(f"{need.records:,} functions cannot be timed at once, {_RECORDS_AT_ALL:,} can: name fewer")
    nested = counting.nested and need.records > 0
    records = need.records * (1 + nested)  # one bank knows callers: functions that are added later have to be in it
    records = min(max(_LEAST_RECORDS, records), _RECORDS_AT_ALL) if need.records else 0
    counters = max(LEAST_COUNTERS, need.counters + need.counters // 4) + _HANDLERS_COUNTERS * handled
    # any bank may come to call handlers, and those at replaced return addresses must be called by the same one
    maxactive, callers = (counting.maxactive, counting.callers) if records or handled else (0, 0)
    found = BankLayout(
        counters, records, maxactive, RETURNS, callers, counting.left_out, adopting, nested,
        counting.nodes if nested else 0, threads.wanted, by_thread=apart, least=threads.least,
        on_processors=counting.rate > 0 and need.records > 0,
    )  # fmt: skip
    if found.stride >= at.STRIDE_LIMIT:
        raise UsageError(f"{need.counters:,} places and {maxactive:,} calls at once are more than there is room for")
    return found


def with_records_ahead(layout: BankLayout, earlier: Iterable[SlotBank]) -> BankLayout:
    """Return a layout with as many records as earlier banks have, which the session has used up; of some, at least.

    Where address space is scarce it stays as it is.
    """
    records = min(sum(bank.layout.records for bank in earlier), _MOST_AHEAD)
    is_enough = not layout.records or not layout.least or layout.records >= records
    return layout if is_enough else replace(layout, records=records)


def with_fewer_threads(layout: BankLayout) -> BankLayout | None:
    """Return a layout with half as many blocks, for an address space without room for more; ``None``: it has few."""
    if layout.blocks <= at.LEAST_THREADS:
        return None
    half = max(at.LEAST_THREADS, layout.blocks // 2)
    return replace(layout, threads=half, least=half)


def home_of_handlers(banks: Sequence[SlotBank], hooks: Iterable[Hook]) -> SlotBank | None:
    """Return the bank by which other handlers are called, if there is one with room for those of some hooks.

    A thread's number, its nesting guard and its calls' data are by bank, and belong to all handlers together.
    """
    own = [hook for hook in hooks if hook.handler is not None]
    need, follows = demand(own), follows_calls(own)
    return next((bank for bank in banks if bank.hosts_handlers and has_room_for(bank, need, follows=follows)), None)


def has_room_for(bank: SlotBank, need: Demand, *, follows: bool) -> bool:
    """Return whether a bank can have some more hooks; ``follows``: and calls be noted there for handlers."""
    layout = bank.layout
    enough = layout.counters_left() >= need.counters and layout.records_left() >= need.records
    return enough and (layout.notes_calls or not follows)


def settle_in_slot_bank(hooks: Iterable[Hook], newest: SlotBank, home: SlotBank | None = None) -> None:
    """Give each hook without a place one in a bank of per-thread blocks; ``home``: that of handlers, if another."""
    for hook in hooks:
        if hook.bank is not None or hook.kind in COUNTS_NOTHING:
            continue
        if hook.kind is ActionKind.COUNT and hook.handler is None and hook.calls is None:
            hook.bank, hook.offset = newest, newest.layout.new_counter()
            continue
        bank = newest if home is None or hook.handler is None else home
        bank.hosts_handlers |= hook.handler is not None
        if hook.kind in TIMING:
            group = _measured(hook)
            if not isinstance(group, TimingGroup):
                raise TypeError("a timing hook needs a timing group")
            if group.bank is None:
                group.bank, group.offset = bank, bank.layout.new_record()
            hook.bank, hook.offset = group.bank, group.offset | hook.offset
        elif hook.calls is not None:
            _settle_call(hook, hook.calls, bank)
        else:
            hook.bank, hook.offset = bank, bank.layout.new_counter()
            for _ in range(_counters_of(hook) - 1):
                bank.layout.new_counter()


def _settle_call(hook: Hook, group: CallGroup, bank: SlotBank) -> None:
    """Give a place of a group its counters; those of all its places lie side by side."""
    if group.bank is None:
        group.bank = bank
        group.offset, *_ = [bank.layout.new_counter() for _ in range(CALL_COUNTERS * group.size)]
    hook.bank, hook.offset = group.bank, group.offset + 8 * CALL_COUNTERS * hook.number


def settle_near(hooks: Iterable[Hook], bank: NearBank) -> None:
    """Give each counting hook without a place one among near counters."""
    for hook in hooks:
        if hook.bank is None and hook.kind not in COUNTS_NOTHING:
            hook.bank, hook.offset = bank, bank.layout.new_counter()
            for _ in range(_counters_of(hook) - 1):
                bank.layout.new_counter()
