"""What a session has counted at its end, where what was armed until then is still to be seen as armed."""

import dataclasses
from typing import Protocol

from anyprobe.data.snapshot import Snapshot


class Finishing(Protocol):
    """A session that can be ended."""

    def snapshot(self) -> Snapshot:
        """Return what has been counted so far."""
        ...

    def detach(self) -> None:
        """Remove everything."""
        ...


def results_at_end(session: Finishing) -> Snapshot:
    """Remove everything and return the results: the counts of the very end, and what was armed until then."""
    before = session.snapshot()
    session.detach()
    after = session.snapshot()
    sites = tuple(last.with_armed(was.armed) for last, was in zip(after.sites, before.sites, strict=True))
    timed = zip(after.functions, before.functions, strict=True)
    functions = tuple(dataclasses.replace(last, places=was.places) for last, was in timed)
    return dataclasses.replace(after, sites=sites, functions=functions)
