"""What a session has counted at its end, where what was armed until then is still to be seen as armed."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Protocol, TypeVar, runtime_checkable

from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot

T = TypeVar("T")


class Finishing(Protocol):
    """A session that can be ended."""

    def snapshot(self) -> Snapshot:
        """Return what has been counted so far."""
        ...

    def detach(self) -> None:
        """Remove everything."""
        ...


@runtime_checkable
class FinishingAtOnce(Finishing, Protocol):
    """A session that notes by itself what is armed until it ends, so that nothing is read twice."""

    def finish(self) -> Snapshot:
        """Remove everything, and return the results, in which what was armed until then is still armed."""
        ...


def results_at_end(session: Finishing) -> Snapshot:
    """Remove everything and return the results: the counts of the very end, and what was armed until then."""
    if isinstance(session, FinishingAtOnce):
        return session.finish()
    before = session.snapshot()
    session.detach()
    after = session.snapshot()
    sites = _by_key(before.sites, _site)
    functions = _by_key(before.functions, _function)
    return dataclasses.replace(
        after,
        sites=tuple(_as_it_was(last, sites[_site(last)]) for last in after.sites),
        functions=tuple(_places_as_they_were(last, functions[_function(last)]) for last in after.functions),
    )


def disarmed(results: Snapshot) -> Snapshot:
    """Return results of a session that is over, in which nothing is armed any more."""
    return dataclasses.replace(
        results,
        sites=tuple(map(_disarmed, results.sites)),
        functions=tuple(
            dataclasses.replace(each, places=tuple(map(_disarmed, each.places))) for each in results.functions
        ),
    )


def _disarmed(site: SiteResult) -> SiteResult:
    return dataclasses.replace(site, armed=False) if site.armed else site


def armed_as(before: Iterable[SiteResult], results: Snapshot) -> Snapshot:
    """Return results in which some sites are armed as they were ``before``."""
    known = _by_key(before, _site)
    sites = [_as_it_was(each, known[_site(each)]) if _site(each) in known else each for each in results.sites]
    return dataclasses.replace(results, sites=tuple(sites))


def with_end_of(target: TargetInfo, results: Snapshot) -> Snapshot:
    """Return results that know how a process has ended, where they are of one of its programs."""
    if results.target.pid != target.pid:
        return results
    now = dataclasses.replace(
        results.target, exited=target.exited, alive=target.alive,
        died_at=target.died_at, died_in=target.died_in, died_place=target.died_place,
    )  # fmt: skip
    processes = results.processes
    if processes and processes[0].process.pid == target.pid:
        process = dataclasses.replace(processes[0].process, exited=target.shell_status, alive=target.alive)
        processes = (dataclasses.replace(processes[0], process=process), *processes[1:])
    return dataclasses.replace(results, target=now, processes=processes)


def _site(site: SiteResult) -> Hashable:
    return site.spec, site.address, site.kind, site.exit_kind


def _function(timing: FunctionTiming) -> Hashable:
    return timing.spec, timing.address


def _by_key(results: Iterable[T], key: Callable[[T], Hashable]) -> dict[Hashable, Iterator[T]]:
    """Return results by what tells them from others; specs that overlap may have the same ones, in the same order."""
    found: dict[Hashable, list[T]] = {}
    for each in results:
        found.setdefault(key(each), []).append(each)
    return defaultdict(lambda: iter(()), {name: iter(own) for name, own in found.items()})


def _as_it_was(last: SiteResult, before: Iterator[SiteResult]) -> SiteResult:
    """Return a site with whether it was armed; what a library has brought since the look before was."""
    was = next(before, None)
    armed = was is None or was.armed
    return last if last.armed == armed else dataclasses.replace(last, armed=armed)


def _places_as_they_were(last: FunctionTiming, before: Iterator[FunctionTiming]) -> FunctionTiming:
    was = next(before, None)
    places = tuple(dataclasses.replace(each, armed=True) for each in last.places) if was is None else was.places
    return dataclasses.replace(last, places=places)
