"""What a session has counted at its end, where what was armed until then is still to be seen as armed."""

import dataclasses
from typing import Protocol, runtime_checkable

from anyprobe.data.snapshot import Snapshot


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
    sites = tuple(
        last if last.armed == was.armed else dataclasses.replace(last, armed=was.armed)
        for last, was in zip(after.sites, before.sites, strict=True)
    )
    timed = zip(after.functions, before.functions, strict=True)
    functions = tuple(dataclasses.replace(last, places=was.places) for last, was in timed)
    return dataclasses.replace(after, sites=sites, functions=functions)
