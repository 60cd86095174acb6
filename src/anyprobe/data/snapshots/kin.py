"""What a session has counted together with what its fork children have counted in sessions of their own."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from typing import TypeVar

from anyprobe.data.findings.calltree import merged
from anyprobe.data.snapshots.processes import ProcessCounts, ProcessInfo, ThreadTimes
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot

T = TypeVar("T")
C = TypeVar("C", ProcessCounts, ThreadTimes)


def with_children(own: Snapshot, children: Sequence[Snapshot], found: AbstractSet[str]) -> Snapshot:
    """Return one snapshot of both: rows are the session's, and those of children where it has none.

    ``merge`` would take two functions of one name in one module for one; the session's own stay apart. ``found``: the
    specs that have meant something in a child, and so are pending no more.
    """
    theirs = reduce(Snapshot.merge, children)
    both = own.merge(theirs)
    pending = tuple(each for each in own.pending if each.spec not in found)
    waiting = {str(each) for each in (*own.pending, *theirs.pending)} - {str(each) for each in pending}
    return dataclasses.replace(
        both,
        sites=_joined(own.sites, theirs.sites, lambda site: site.key, SiteResult.merged),
        functions=_joined(own.functions, theirs.functions, _name, FunctionTiming.merged),
        pending=pending,
        warnings=tuple(each for each in both.warnings if each not in waiting),
        others=own.others,
        processes=_by_process((*own.processes, *theirs.processes)),
        threads=_by_thread((*own.threads, *theirs.threads)),
    )  # fmt: skip


def _joined(
    own: Sequence[T], theirs: Sequence[T], key: Callable[[T], Hashable], add: Callable[[T, T], T]
) -> tuple[T, ...]:
    """Return rows with those of children added, each to the first of its name."""
    rows, at = list(own), dict[Hashable, int]()
    for number, row in enumerate(rows):
        at.setdefault(key(row), number)
    for row in theirs:
        number = at.setdefault(key(row), len(rows))
        if number == len(rows):
            rows.append(row)
        else:
            rows[number] = add(rows[number], row)
    return tuple(rows)


def _by_process(counts: Iterable[ProcessCounts]) -> tuple[ProcessCounts, ...]:
    """Return the counts of each process once."""
    return _once(counts, lambda each: (each.process.pid, each.process.generation), _sum)


def _by_thread(threads: Iterable[ThreadTimes]) -> tuple[ThreadTimes, ...]:
    """Return the calls of each thread once."""
    return _once(threads, lambda each: (each.process.pid, each.process.generation, each.tid), _with_calls)


def _once(items: Iterable[C], key: Callable[[C], Hashable], add: Callable[[C, C], C]) -> tuple[C, ...]:
    """Return what each process or thread has counted once; ``key``: its number, which may have been another's before.

    When one began that had ended soon may be known to one alone.
    """
    found: list[C] = []
    numbered: dict[Hashable, list[int]] = {}
    for each in items:
        places = numbered.setdefault(key(each), [])
        place = next((at for at in places if _began_together(found[at].process, each.process)), None)
        if place is None:
            places.append(len(found))
            found.append(each)
        else:
            found[place] = add(found[place], each)
    return tuple(found)


def _began_together(one: ProcessInfo, other: ProcessInfo) -> bool:
    return one.started == other.started or None in {one.started, other.started}


def _sum(one: ProcessCounts, other: ProcessCounts) -> ProcessCounts:
    alive = one.process.alive or other.process.alive
    process = dataclasses.replace(one.process, started=one.process.started or other.process.started, alive=alive)
    timed = _joined(one.functions, other.functions, _name, FunctionTiming.merged)
    return ProcessCounts(process, Counter(one.hits) + Counter(other.hits), timed, merged(one.tree, other.tree))


def _with_calls(one: ThreadTimes, other: ThreadTimes) -> ThreadTimes:
    timed = _joined(one.functions, other.functions, _name, FunctionTiming.merged)
    return dataclasses.replace(one, name=one.name or other.name, functions=timed)


def _name(timing: FunctionTiming) -> Hashable:
    return timing.spec, timing.module, timing.function
