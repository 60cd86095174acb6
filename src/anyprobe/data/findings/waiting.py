"""What a program waits for, as values: its locks, with who waited and who held them, and where its threads slept."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from anyprobe.data.aggregates.results import AggregationResult, Key, by_name
from anyprobe.data.findings.offcpu import KERNEL, asleep_in, kernel_numbers, tells_causes
from anyprobe.data.findings.wakers import tells_wakers, wakers_in
from anyprobe.data.layouts.cells import CellValue
from anyprobe.data.layouts.keys import Place

Json = dict[str, Any]
ACQUIRED, WAITED, HELD, HOLDERS, WAITERS, BLOCKERS = (
    "lock acquisitions", "lock waits_ns", "lock holds_ns", "lock holders_ns", "lock waiters_ns", "lock blockers_ns"
)  # fmt: skip
"""The names of the aggregations that hold what is known of locks."""
OF_LOCKS = frozenset({ACQUIRED, WAITED, HELD, HOLDERS, WAITERS, BLOCKERS})
_JOINED = " < "
"""Between the frames of a stack."""
_NUMBER_SHIFT = 8
"""Where the number of a description begins in a key's kind."""


class LockKind(IntEnum):
    """Kinds of locks; the first two, spin locks and described ones are held by a thread."""

    MUTEX = 1
    RWLOCK = 2
    SEMAPHORE = 3
    CONDITION = 4
    BARRIER = 5
    FUTEX = 6
    SPINLOCK = 7
    DESCRIBED = 8
    """One of the program's own, of a kind that a file describes."""
    RWSEM = 9
    PERCPU_RWSEM = 10
    RTMUTEX = 11
    """These three are the kernel's."""

    @property
    def is_held(self) -> bool:
        """Whether threads hold such a lock, so that others wait because of them."""
        return self not in {LockKind.SEMAPHORE, LockKind.CONDITION, LockKind.BARRIER, LockKind.FUTEX}


@dataclass(frozen=True, slots=True)
class Waits:
    """How long threads waited in one place, or because of one."""

    stack: tuple[str, ...]
    """The place and its callers, innermost first."""
    count: int
    waited_ns: int

    def as_json(self) -> Json:
        """Return the JSON object."""
        from anyprobe.data.findings.documents import WAIT

        return WAIT.of(self)


@dataclass(frozen=True, slots=True)
class Lock:
    """What is known of one lock."""

    address: int
    symbol: str
    """Empty where no symbol is at its address: it is on the heap, or on a stack."""
    kind: LockKind
    acquisitions: int | None
    """None where only waits are seen: of the kernel's."""
    wait: CellValue = field(default_factory=CellValue)
    """How long threads waited for it, one value for each wait."""
    hold: CellValue = field(default_factory=CellValue)
    """How long threads held it."""
    holders: tuple[Waits, ...] = ()
    """Where it was taken by the thread that held it when others began to wait, those that cost most first."""
    waiters: tuple[Waits, ...] = ()
    blockers: tuple[Waits, ...] = ()
    """Where mutexes were given back by threads that had held them while others waited, and for how long these had."""

    @property
    def contended(self) -> int:
        """How often a thread had to wait."""
        return self.wait.count

    @property
    def wait_ns(self) -> int:
        """How long threads have waited altogether."""
        return self.wait.sum or 0

    @property
    def name(self) -> str:
        """The symbol, or the address."""
        return self.symbol or f"{self.address:#x}"

    def as_json(self) -> Json:
        """Return the JSON object; ``acquisitions`` is null where only waits are seen."""
        from anyprobe.data.findings.documents import LOCK

        return LOCK.of(self)


def described_kind(number: int) -> int:
    """Return what keys have as the kind of a lock that is described, by the number of its description."""
    return LockKind.DESCRIBED | number << _NUMBER_SHIFT


def with_names(result: AggregationResult, named: Sequence[tuple[str, Mapping[int, str]]]) -> AggregationResult:
    """Return what handlers have counted by lock with the names of described ones.

    Args:
        result: of a session in which they were placed.
        named: the name of each kind that is described, and those of its numbers, if these tell its locks apart.
    """
    if result.name not in OF_LOCKS or not named:
        return result
    entries: dict[Key, CellValue] = {}
    for (lock, kind, *more), cell in result.entries.items():
        place: int | str = lock
        if (number := int(kind) >> _NUMBER_SHIFT) or int(kind) == LockKind.DESCRIBED:
            name, names = named[number]
            place = Place(int(lock), f"{name} {names.get(int(lock), int(lock)) if names else lock}")
        key = (place, int(kind) & (1 << _NUMBER_SHIFT) - 1, *more)
        entries[key] = entries[key].merged(cell) if key in entries else cell
    return replace(result, entries=entries)


def locks_of(aggregations: Iterable[AggregationResult]) -> tuple[Lock, ...]:
    """Return the locks that handlers have told of, those that were waited for longest first."""
    tables = {each.name: each.entries for each in aggregations}
    acquired, waited, held = (tables.get(name, {}) for name in (ACQUIRED, WAITED, HELD))
    holders, waiters, blockers = (_by_lock(tables.get(name, {})) for name in (HOLDERS, WAITERS, BLOCKERS))
    found = []
    for key in dict.fromkeys([*acquired, *waited, *held]):
        address, kind = key
        found.append(
            Lock(
                int(address),
                str(address) if isinstance(address, Place) and str(address) != f"{int(address):#x}" else "",
                LockKind(int(kind)),
                None if ACQUIRED not in tables else acquired[key].count if key in acquired else 0,
                waited.get(key, CellValue()),
                held.get(key, CellValue()),
                holders.get(key, ()),
                waiters.get(key, ()),
                blockers.get(key, ()),
            )
        )
    return tuple(sorted(found, key=lambda each: (-each.wait_ns, -(each.acquisitions or 0), each.address)))


def document_of(aggregations: Iterable[AggregationResult]) -> Json:
    """Return what aggregations hold as members of a document: of locks and of where threads slept as lists of these."""
    results = list(aggregations)
    asleep = [each for each in results if tells_causes(each)]
    wakers = [each for each in results if tells_wakers(each)]
    listed = [*asleep, *wakers]
    others = [each for each in results if each.name not in {*OF_LOCKS, KERNEL} and each not in listed]
    document: Json = {"aggregations": by_name(others)} if others else {}
    if asleep:
        document["stacks"] = [each.as_json() for each in asleep_in(asleep)]
    if kernel := kernel_numbers(results):
        document["kernel"] = kernel
    if wakers:
        from anyprobe.data.findings.documents import WOKEN

        document["wakers"] = list(map(WOKEN.of, wakers_in(wakers)))
    if any(each.name in OF_LOCKS for each in results):
        document["locks"] = [each.as_json() for each in locks_of(results)]
    return document


def _by_lock(entries: Mapping[Any, CellValue]) -> dict[tuple[Any, ...], tuple[Waits, ...]]:
    found: dict[tuple[Any, ...], list[Waits]] = {}
    for (*lock, place), cell in entries.items():
        found.setdefault(tuple(lock), []).append(Waits(frames_of(place), cell.count, cell.sum or 0))
    return {key: tuple(sorted(each, key=lambda one: -one.waited_ns)) for key, each in found.items()}


def frames_of(stack: object) -> tuple[str, ...]:
    """Return the frames of a stack as keys have it, innermost first."""
    return tuple(str(stack).split(_JOINED))


def outside(stack: Sequence[str], modules: Iterable[str]) -> str:
    """Return the innermost frame of a stack that is in none of some modules, else the innermost one."""
    within = tuple(f"{each}:" for each in modules)
    return next((each for each in stack if not each.startswith(within)), stack[0] if stack else "?")
