# mypy: disable-error-code="valid-type, no-untyped-def"
# ruff: noqa: ANN001 - fields of a tracepoint have their types there; with annotations they are meant by position
"""Handlers in the kernel for its own locks: when a task begins to wait for one, and when it has it, or gives up."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anyprobe.data.aggregates.aggregations import Hist, Sum
from anyprobe.data.aggregates.results import AggregationResult, Key
from anyprobe.data.findings.waiting import WAITED, WAITERS, LockKind
from anyprobe.data.layouts.cells import CellValue
from anyprobe.data.layouts.keys import Place
from anyprobe.data.readers.maps import Map
from anyprobe.handlers.types.annotations import u64

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.target.kernel.symbols import Symbols

TASKS, LOCKS, PLACES = 16_384, 16_384, 16_384
"""Tasks that wait at a time, locks, and pairs of a lock and where it was waited for."""
FRAMES = 16
_SPIN, _READ_OR_WRITE, _RT, _PERCPU, _MUTEX = 1, 2 | 4, 8, 16, 32
"""Flags of waits, the same in all kernels that have them (since Linux 5.19)."""
_PROCESSOR = 1 << 32
"""What the number of a processor has more than that of a task."""
_MUTEXES, _RWLOCKS, _SEMAPHORES, _SPINLOCKS, _RWSEMS, _PERCPU_RWSEMS, _RTMUTEXES = (
    int(each)
    for each in (
        LockKind.MUTEX, LockKind.RWLOCK, LockKind.SEMAPHORE, LockKind.SPINLOCK, LockKind.RWSEM, LockKind.PERCPU_RWSEM,
        LockKind.RTMUTEX,
    )
)  # fmt: skip
_WAYS = (
    "__mutex_lock", "mutex_lock", "__ww_mutex_lock", "ww_mutex_lock", "rwsem_", "down_", "__down", "percpu_down_",
    "__percpu_down_", "percpu_rwsem_", "native_queued_spin_lock", "queued_", "__pv_queued_spin_lock", "pv_queued_",
    "_raw_spin_", "_raw_read_", "_raw_write_", "__raw_spin_", "rt_mutex_", "__rt_mutex_", "rt_spin_lock", "rt_read_",
    "rt_write_", "rtlock_", "do_raw_", "__lock_text_start",
)  # fmt: skip
"""How functions are called through which all waits for locks come."""
_JOINED = " < "
Hit = Any
"""What a handler is called with is typed by their compiler, and so is what they store."""
Stored = Any


def place_kernel_locks(session: "KernelSession") -> None:
    """Place them, for the tasks whose hits the session counts.

    A task that spins stays on its processor, on which an interrupt may spin for another lock meanwhile; one that sleeps
    may spin for the lock first, which is the same wait.
    """
    since: Stored = Map("lock wait since", by=("task", "lock"), capacity=TASKS, shown=False)
    kinds: Stored = Map("kind of lock", by=("task", "lock"), capacity=TASKS, shown=False)
    waited: Stored = Hist(WAITED, by=("lock", "kind"), capacity=LOCKS)
    waiters: Stored = Sum(WAITERS, by=("lock", "kind", "stack"), capacity=PLACES)

    # ends first: of a wait that begins before they are there, and whose end is missed, a next one would seem to go on
    @session.entry("tracepoint:lock:contention_end")
    def ends(ctx: Hit, lock_addr) -> None:
        lock, task = u64(lock_addr), u64(ctx.cpu) | _PROCESSOR
        began = since.get((task, lock), 0)
        if began == 0:
            task = u64(ctx.tid)
            began = since.get((task, lock), 0)
        if began != 0:
            took, kind = ctx.now - began, kinds.get((task, lock), 0)
            since.delete((task, lock))
            kinds.delete((task, lock))
            waited.add(took, key=(lock, kind))
            waiters.add(took, key=(lock, kind, ctx.kstack(FRAMES)))

    @session.entry("tracepoint:lock:contention_begin")
    def begins(ctx: Hit, lock_addr, flags) -> None:
        lock, task, kind = u64(lock_addr), u64(ctx.tid), _SEMAPHORES
        if flags & _MUTEX:
            kind = _MUTEXES
        elif flags & _SPIN:
            task = u64(ctx.cpu) | _PROCESSOR
            kind = _RWLOCKS if flags & _READ_OR_WRITE else _SPINLOCKS
        elif flags & _PERCPU:
            kind = _PERCPU_RWSEMS
        elif flags & _RT:
            kind = _RTMUTEXES
        elif flags & _READ_OR_WRITE:
            kind = _RWSEMS
        if kind != _MUTEXES or since.get((task, lock), 0) == 0:
            since[task, lock] = ctx.now
            kinds[task, lock] = u64(kind)


def told(result: AggregationResult, symbols: "Symbols") -> AggregationResult:
    """Return what the handlers have counted with the names of locks that are variables, and of waiters alone."""
    if result.name not in {WAITED, WAITERS}:
        return result
    names = symbols.variables_at({int(lock) for lock, *_ in result.entries})
    entries: dict[Key, CellValue] = {}
    for (lock, kind, *stacks), cell in result.entries.items():
        address = int(lock)
        place = Place(address, names[address]) if address in names else address
        key = (place, kind, *map(_callers, stacks))
        entries[key] = entries[key].merged(cell) if key in entries else cell
    return replace(result, entries=entries)


def _callers(stack: object) -> str:
    """Return a stack without the functions by which locks are waited for."""
    frames = str(stack).split(_JOINED)
    names = [each.rpartition(":")[2] for each in frames]
    first = next((at for at, each in enumerate(names) if not each.startswith(_WAYS)), 0)
    return _JOINED.join(frames[first:])
