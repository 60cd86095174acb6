# mypy: disable-error-code="valid-type"
"""Handlers for locks: how often each was taken, how long threads waited for it and held it, and who made them wait.

A mutex that is free is taken without a look at the clock but for its hold time. One that is not is waited for in a
function of its own, so that contention costs nothing where there is none. What else can be waited for is timed as a
whole, and counts as contended where the thread was put to sleep meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from anyprobe.core.errors import UnsupportedTarget, UsageError
from anyprobe.data.aggregates.aggregations import Count, Hist, Sum
from anyprobe.data.findings.waiting import ACQUIRED, BLOCKERS, HELD, HOLDERS, WAITED, WAITERS, LockKind, described_kind
from anyprobe.data.readers.maps import Map
from anyprobe.handlers.types.annotations import func, i32, i64, ptr, stack, u8, u16, u32, u64
from anyprobe.probes.waiting.libc_places import FUTEX, OPERATION, Library, lock_places

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.handlers.handling import Call
    from anyprobe.probes.session import Session
    from anyprobe.probes.waiting.described import DescribedLock, LockNumber

LOCKS, DISTRIBUTIONS, PLACES = 4096, 1024, 4096
"""Locks of which there are counts, those of which there are distributions, and pairs of a lock and a place."""
_INNER = 1 << 62
"""Added to the time since when a mutex is held where its owner has taken it again."""
_RECURSION, _OWNER_DIED = 1, 130
"""The word of glibc's mutex that counts how often its owner has taken it, and the result where an owner has died."""
_WAIT, _LOCK_PI, _WAIT_BITSET, _LOCK_PI2 = 0, 6, 9, 13
"""The operations on futexes that wait."""
MUTEX, RWLOCK, SEMAPHORE, CONDITION, BARRIER, FUTEX_WORD, SPINLOCK, DESCRIBED, *_ = map(int, LockKind)
Specs = tuple[str, ...]
Hit = Any
"""What a handler is called with is typed by their compiler, and so is what they store."""
Stored = Any


def place_locks(session: "Session", *, holds: bool = True, described: "Sequence[DescribedLock]" = ()) -> None:
    """Place the handlers in what C libraries have for locks; in a program that has only begun once they are mapped.

    Args:
        session: with ``returns="exits"``, since functions that end in others are known here and have handlers there.
        holds: whether hold times are measured, and who holds: two thirds of what an uncontended lock costs.
        described: kinds of locks of the program's own; ``with_names`` has their names in results.

    Raises:
        UnsupportedTarget: the program has no library whose mutexes are known, and none of the kinds.
    """
    if session.options.returns != "exits":
        raise UsageError('locks are measured in a session with returns="exits"')
    session.host.when_mapped(_Handlers(session, holds=holds, described=described).place)


class _HeldByThreads(NamedTuple):
    """What is kept of locks that several threads may hold at a time."""

    kind: int
    key_of: Any
    """The function of handlers that returns by what they are told apart."""
    since: Stored
    place_of: Stored


class _Handlers:
    """The aggregations, and the handlers that fill them."""

    def __init__(self, session: "Session", *, holds: bool, described: "Sequence[DescribedLock]") -> None:
        self._session, self._holds, self._own = session, holds, described
        by = "lock", "kind"
        self.acquired: Stored = Count(ACQUIRED, by=by, capacity=LOCKS)
        self.waited: Stored = Hist(WAITED, by=by, capacity=DISTRIBUTIONS)
        self.held: Stored = Hist(HELD, by=by, capacity=DISTRIBUTIONS)
        self.holders: Stored = Sum(HOLDERS, by=(*by, "place"), capacity=PLACES)
        self.waiters: Stored = Sum(WAITERS, by=(*by, "stack"), capacity=PLACES)
        self.blockers: Stored = Sum(BLOCKERS, by=(*by, "stack"), capacity=PLACES)
        self.queue: Stored = Map("waiting", by=("lock",), capacity=LOCKS, value=i64, shown=False)
        self.blocked: Stored = Map("waited for since", by=("lock",), capacity=LOCKS, shown=False)
        self.since: Stored = Map("held since", by=("lock",), capacity=LOCKS, shown=False)
        self.since_by_thread: Stored = Map("held since, by thread", by=("lock", "tid"), capacity=LOCKS, shown=False)
        self.place_of: Stored = Map("taken at", by=("lock",), capacity=LOCKS, shown=False)
        self._rwlock = _HeldByThreads(RWLOCK, number_of(None), self.since_by_thread, self.place_of)
        # a described lock may begin with one of the C library's
        self.own_since: Stored = Map("described held since", by=("lock", "tid"), capacity=LOCKS, shown=False)
        self.own_place_of: Stored = Map("described taken at", by=("lock",), capacity=LOCKS, shown=False)
        self.slept: Stored = Map("slept", by=("tid",), capacity=LOCKS, shown=False)
        self.asks_for: Stored = Map("asks for", by=("tid",), capacity=LOCKS, shown=False)
        """The read-write lock that a thread asks for, and whether it sleeps for it by now."""

    def place(self) -> None:
        """Place them all, or say why there are none."""
        found = lock_places(self._session)
        own = [self._described(each, described_kind(number)) for number, each in enumerate(self._own)]
        if not found and not any(own):
            what = ", and it has none of the described locks" if self._own else ""
            raise UnsupportedTarget(
                f"no C library of process {self._session.pid} has mutexes that are known: its pthread_mutex_lock, if "
                f"there is one, does not wait as glibc's does{what}"
            )
        for places in found:
            ways = [
                (self._mutex_waits, places.mutex_wait),
                (self._sleeps, places.sleeps),
                (self._mutexes, places.mutex),
                (self._timed_mutexes, places.mutex_timed),
                (self._rwlocks, places.rwlock),
                (self._semaphores, places.semaphore),
                (self._conditions, places.condition),
                (self._barriers, places.barrier),
                (self._futexes, places.futex),
                (self._spinlocks, places.spin),
                *([(self._releases, places.mutex_release)] if self._holds else []),
                *([(self._rwlock_releases, places.rwlock_release)] if self._holds else []),
                (self._spin_releases, places.spin_release),
            ]
            for place, specs in ways:
                if specs:  # a static program has what it uses
                    place(specs)

    # what handlers use has to be in variables of the functions that make them

    def _recorded(self) -> Callable[..., None]:
        """Return the function of handlers that takes note of a wait."""
        waited, holders, waiters, holds = self.waited, self.holders, self.waiters, self._holds

        def recorded(lock: ptr, kind: i64, ns: u64, holder: u64, where: stack) -> None:
            waited[lock, kind].add(ns)
            waiters[lock, kind, where].add(ns)
            if holds and holder != 0:
                holders[lock, kind, func(holder)].add(ns)

        return recorded

    def _taken(self) -> Callable[..., None]:
        """Return the function of handlers that takes note of a mutex that was taken."""
        acquired, since, place_of, holds = self.acquired, self.since, self.place_of, self._holds

        def taken(lock: ptr, now: u64, caller: ptr) -> None:
            acquired[lock, MUTEX].add()
            if holds:
                before = since.get(lock, 0)
                if before != 0 and is_inner(lock):
                    since[lock] = before | _INNER
                else:
                    since[lock] = now
                    place_of[lock] = caller

        return taken

    def _released(self) -> Callable[..., None]:
        """Return the function of handlers that takes note of a mutex that is given back."""
        since, held = self.since, self.held

        def released(lock: ptr, now: u64) -> None:
            before = since.get(lock, 0)
            if before != 0 and not (before >= _INNER and is_inner(lock)):
                held[lock, MUTEX].add(now - (before & (_INNER - 1)))
                since[lock] = 0

        return released

    def _asked(self, specs: Specs, place_of: Stored, *, queues: bool = False) -> "Call":
        """Place what takes note of a lock that is asked for, since when, and who has it; return it, for its return."""
        asks_for = self.asks_for

        @self._session.call(*specs)
        def ask(ctx: Hit, lock: ptr) -> None:
            ctx.data.lock = lock
            ctx.data.holder = place_of.get(lock, 0)
            if queues:
                asks_for[ctx.tid] = lock
            ctx.data.began = ctx.now

        return ask

    def _mutex_waits(self, specs: Specs) -> None:
        recorded, queue, blocked, place_of = self._recorded(), self.queue, self.blocked, self.place_of
        holds = self._holds

        @self._session.call(*specs)
        def wait(ctx: Hit, lock: ptr) -> None:
            ctx.data.lock = lock
            ctx.data.holder = place_of.get(lock, 0)
            ctx.data.began = ctx.now
            if holds and queue.increase((lock,), i64(1)) == 1:
                blocked[lock] = ctx.data.began

        @wait.ret
        def waited(ctx: Hit) -> None:
            if ctx.data.began is not None:  # else it began before the handlers were there
                recorded(ctx.data.lock, MUTEX, ctx.now - ctx.data.began, ctx.data.holder, ctx.ustack(python=True))
                if holds:
                    queue.increase((ctx.data.lock,), i64(-1))

    def _mutexes(self, specs: Specs) -> None:
        taken = self._taken()

        @self._session.call(*specs)
        def take(ctx: Hit, lock: ptr) -> None:
            ctx.data.lock = lock

        @take.ret
        def took(ctx: Hit) -> None:
            if ctx.data.lock is not None and ctx.retval is not None and succeeded(ctx.retval):
                taken(ctx.data.lock, ctx.now, ctx.caller)

    def _timed_mutexes(self, specs: Specs) -> None:
        taken, recorded, slept = self._taken(), self._recorded(), self.slept

        @self._asked(specs, self.place_of).ret
        def took(ctx: Hit) -> None:
            now = ctx.now
            if ctx.data.began is None:  # before the handlers were there, as in all that follow
                return
            if slept.get(ctx.tid, 0) >= ctx.data.began:
                recorded(ctx.data.lock, MUTEX, now - ctx.data.began, ctx.data.holder, ctx.ustack(python=True))
            if ctx.retval is not None and succeeded(ctx.retval):
                taken(ctx.data.lock, now, ctx.caller)

    def _releases(self, specs: Specs) -> None:
        released, queue, blocked, since = self._released(), self.queue, self.blocked, self.since
        blockers = self.blockers

        @self._session.entry(*specs)
        def release(ctx: Hit, lock: ptr) -> None:
            now = ctx.now
            if queue.get(lock, 0) != 0:
                before = since.get(lock, 0)
                if not (before >= _INNER and is_inner(lock)):
                    began = max(blocked.get(lock, now), before & (_INNER - 1))
                    blockers[lock, MUTEX, ctx.ustack(python=True)].add(now - min(began, now))
                    blocked[lock] = now
            released(lock, now)

    def _sleeps(self, specs: Specs) -> None:
        slept, asks_for, queue, blocked, holds = self.slept, self.asks_for, self.queue, self.blocked, self._holds

        @self._session.at(*specs)
        def sleep(ctx: Hit) -> None:
            if ctx.regs.rax == FUTEX and waits(ctx.regs.rsi):
                now = ctx.now
                slept[ctx.tid] = now
                if holds:
                    lock = asks_for.get(ctx.tid, 0)
                    if lock != 0 and lock & 1 == 0:
                        asks_for[ctx.tid] = lock | 1
                        if queue.increase((lock,), i64(1)) == 1:
                            blocked[lock] = now

    def _rwlocks(self, specs: Specs) -> None:
        self._take_by_thread(specs, self._rwlock, passed=succeeded)

    def _rwlock_releases(self, specs: Specs) -> None:
        self._release_by_thread(specs, self._rwlock)

    def _described(self, lock: "DescribedLock", kind: int) -> bool:
        """Place what takes note of locks of the program's own; return whether the program has them."""
        loaded = lock.object_of(self._session)
        if loaded is None:
            self._session.host.warn(f"{lock.name}: nothing is loaded that is {lock.module}, so there are none of these")
            return False
        library = Library(self._session, loaded)
        take, tries, wait, release, sleep = (
            library.specs(library.starts(*names))
            for names in (lock.take, lock.tries, lock.wait, lock.release, lock.sleep)
        )
        if not take and not tries:
            self._session.host.warn(f"{lock.name}: {loaded.name} has none of the functions that take these locks")
            return False
        own = _HeldByThreads(kind, number_of(lock.number), self.own_since, self.own_place_of)
        self._take_by_thread(take, own, passed=is_true, always=True)
        self._take_by_thread(tries, own, passed=is_true)
        self._take_by_thread(wait, own, passed=is_true, takes=False)
        slept = self.slept
        if sleep:

            @self._session.entry(*sleep)
            def sleeps(ctx: Hit) -> None:
                slept[ctx.tid] = ctx.now

        if self._holds:
            self._release_by_thread(release, own)
        return True

    def _take_by_thread(
        self, specs: Specs, own: "_HeldByThreads", *, passed: Any,  # noqa: ANN401
        takes: bool = True, always: bool = False,
    ) -> None:  # fmt: skip
        """Place what takes note of functions that take locks which several threads may hold at a time.

        Args:
            specs: the functions.
            own: what is kept of these locks.
            passed: the function of handlers that says by a result whether one was taken.
            takes: whether they take it at all, or only wait.
            always: it is taken whatever they return.
        """
        if not specs:
            return
        acquired, recorded, slept, holds = self.acquired, self._recorded(), self.slept, self._holds
        kind, key_of, since, place_of = own
        asks_for, queue, queues = self.asks_for, self.queue, holds and kind == RWLOCK

        @self._asked(specs, place_of, queues=queues).ret
        def took(ctx: Hit) -> None:
            if ctx.data.began is None:
                return
            now = ctx.now
            lock = ctx.data.lock
            if queues:
                if u64(asks_for.get(ctx.tid, 0)) == u64(lock) | 1:
                    queue.increase((lock,), i64(-1))
                asks_for[ctx.tid] = 0
            if slept.get(ctx.tid, 0) >= ctx.data.began:
                recorded(key_of(lock), kind, now - ctx.data.began, ctx.data.holder, ctx.ustack(python=True))
            if takes and (always or (ctx.retval is not None and passed(i64(ctx.retval)))):
                acquired[key_of(lock), kind].add()
                if holds:
                    since[lock, ctx.tid] = now
                    place_of[lock] = ctx.caller

    def _release_by_thread(self, specs: Specs, own: "_HeldByThreads") -> None:
        """Place what takes note of how long each thread has held such a lock."""
        if not specs:
            return
        held, queue, blocked, blockers = self.held, self.queue, self.blocked, self.blockers
        kind, key_of, since, _ = own
        queues = kind == RWLOCK

        @self._session.entry(*specs)
        def release(ctx: Hit, lock: ptr) -> None:
            before = since.delete((lock, ctx.tid))
            if before is not None:
                now = ctx.now
                held[key_of(lock), kind].add(now - before)
                if queues and queue.get(lock, 0) != 0:
                    began = max(blocked.get(lock, now), before)
                    blockers[lock, kind, ctx.ustack(python=True)].add(now - min(began, now))

    def _spinlocks(self, specs: Specs) -> None:
        acquired, recorded, since, place_of = self.acquired, self._recorded(), self.since, self.place_of

        @self._session.call(*specs)
        def take(ctx: Hit, lock: ptr) -> None:
            ctx.data.lock = lock
            if since.get(lock, 0) != 0:  # to read the lock's own word takes longer than most such locks are held
                ctx.data.holder = place_of.get(lock, 0)
                ctx.data.began = ctx.now

        @take.ret
        def took(ctx: Hit) -> None:
            if ctx.data.lock is None:
                return
            lock = ctx.data.lock
            if ctx.retval is not None and i32(ctx.retval) == 0:
                if ctx.data.began is not None:
                    recorded(lock, SPINLOCK, ctx.now - ctx.data.began, ctx.data.holder, ctx.ustack(python=True))
                acquired[lock, SPINLOCK].add()
                since[lock] = ctx.now
                place_of[lock] = ctx.caller

    def _spin_releases(self, specs: Specs) -> None:
        since, held, holds = self.since, self.held, self._holds

        @self._session.entry(*specs)
        def release(ctx: Hit, lock: ptr) -> None:
            before = since.get(lock, 0)
            if before != 0:
                if holds:
                    held[lock, SPINLOCK].add(ctx.now - before)
                since[lock] = 0

    def _semaphores(self, specs: Specs) -> None:
        acquired, recorded, slept = self.acquired, self._recorded(), self.slept

        @self._session.call(*specs)
        def take(ctx: Hit, lock: ptr) -> None:
            ctx.data.lock = lock
            ctx.data.began = ctx.now

        @take.ret
        def took(ctx: Hit) -> None:
            if ctx.data.began is None:
                return
            if slept.get(ctx.tid, 0) >= ctx.data.began:
                recorded(ctx.data.lock, SEMAPHORE, ctx.now - ctx.data.began, 0, ctx.ustack(python=True))
            if ctx.retval is not None and i32(ctx.retval) == 0:
                acquired[ctx.data.lock, SEMAPHORE].add()

    def _conditions(self, specs: Specs) -> None:
        acquired, recorded, taken, released = self.acquired, self._recorded(), self._taken(), self._released()

        @self._session.call(*specs)
        def wait(ctx: Hit, condition: ptr, lock: ptr) -> None:
            ctx.data.condition = condition
            ctx.data.lock = lock
            ctx.data.began = ctx.now
            released(lock, ctx.now)

        @wait.ret
        def waited(ctx: Hit) -> None:
            if ctx.data.began is None:
                return
            acquired[ctx.data.condition, CONDITION].add()
            recorded(ctx.data.condition, CONDITION, ctx.now - ctx.data.began, 0, ctx.ustack(python=True))
            taken(ctx.data.lock, ctx.now, ctx.caller)

    def _barriers(self, specs: Specs) -> None:
        acquired, recorded = self.acquired, self._recorded()

        @self._session.call(*specs)
        def wait(ctx: Hit, barrier: ptr) -> None:
            ctx.data.lock = barrier
            ctx.data.began = ctx.now

        @wait.ret
        def waited(ctx: Hit) -> None:
            if ctx.data.began is None:
                return
            acquired[ctx.data.lock, BARRIER].add()
            recorded(ctx.data.lock, BARRIER, ctx.now - ctx.data.began, 0, ctx.ustack(python=True))

    def _futexes(self, specs: Specs) -> None:
        recorded = self._recorded()

        @self._session.call(*specs)
        def wait(ctx: Hit, number: u64, word: ptr, operation: u64) -> None:
            if number == FUTEX and waits(operation):
                ctx.data.lock = word
                ctx.data.began = ctx.now

        @wait.ret
        def waited(ctx: Hit) -> None:
            if ctx.data.began is not None:
                recorded(ctx.data.lock, FUTEX_WORD, ctx.now - ctx.data.began, 0, ctx.ustack(python=True))


def number_of(number: "LockNumber | None") -> Any:  # noqa: ANN401
    """Return the function of handlers that returns by what a lock is told apart: its address, or a number in it."""
    if number is None:

        def itself(lock: ptr) -> ptr:
            return lock

        return itself
    kind = {1: u8, 2: u16, 4: u32}[number.bytes]
    index = number.offset // number.bytes

    def numbered(lock: ptr) -> ptr:
        found = ptr[kind](lock)[index]  # type: ignore[index]  # memory of the program
        return ptr(0) if found is None else ptr(found)

    return numbered


def is_true(result: i64) -> bool:
    """Return whether a function of C has returned true, in handlers: of a ``bool`` one byte is sure."""
    return result & 0xFF != 0


def succeeded(result: i64) -> bool:
    """Return whether a lock was taken, in handlers; the one whose owner has died is."""
    return i32(result) == 0 or i32(result) == _OWNER_DIED


def is_inner(lock: ptr) -> bool:
    """Return whether the owner of a mutex has taken it more than once, in handlers."""
    depth = ptr[u32](lock)[_RECURSION]  # type: ignore[index]  # memory of the program
    return depth is not None and depth > 1


def waits(operation: u64) -> bool:
    """Return whether an operation on a futex puts a thread to sleep, in handlers."""
    return operation & OPERATION in (_WAIT, _LOCK_PI, _WAIT_BITSET, _LOCK_PI2)
