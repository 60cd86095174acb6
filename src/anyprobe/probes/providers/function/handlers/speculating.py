"""Records of handlers in sessions that speculate: read by thread, and given out once it is known that they are kept."""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from anyprobe.data.aggregates.records import TIME, Records
from anyprobe.data.readers.speculations import Speculations
from anyprobe.handlers.frontend.collecting import MARKS

if TYPE_CHECKING:
    import numpy as np

    from anyprobe.data.readers.rings import RingReader
    from anyprobe.target.base import ProcessTarget
else:
    from anyprobe.core.later import np


class SpeculativeRecords:
    """The records of one process, as its speculations decide."""

    def __init__(self, process: "ProcessTarget") -> None:
        """Hold nothing yet."""
        self._pid = process.pid if process.inner_pid() == process.pid else 0  # threads have other ids there
        self.speculations = Speculations()
        self._later: dict[str, Records] = {}
        """What is kept, and was emitted after the moment that was asked for."""

    def drain(
        self, readers: "Mapping[str, RingReader]", *, final: bool, until: int | None
    ) -> Iterator[tuple[str, Records]]:
        """Yield what is to be kept of the records that were emitted, by name.

        Records come before marks: what marks a thread has made before a record are there by then.
        """
        gone = {tid for tid in self.speculations.threads() if self._pid and not self._is_there(tid)}
        records = {name: reader.drain_by_thread(final=final) for name, reader in readers.items() if name != MARKS}
        found = self.speculations.sift(records, readers[MARKS].drain_by_thread(final=final), gone=gone)
        if final:
            self.speculations.finish()
        for name, batches in found.items():
            whole = [each for each in (self._later.pop(name, None), *batches) if each is not None]
            kept = np.concatenate(whole) if whole else np.empty(0, readers[name].layout.record.dtype)
            kept = kept[np.argsort(kept[TIME], kind="stable")]
            place = len(kept) if until is None else int(np.searchsorted(kept[TIME], until))
            if place < len(kept):
                self._later[name] = kept[place:]
            yield name, kept[:place]

    def lost(self) -> dict[str, int]:
        """Return what was given up undecided, by what it is."""
        found = self.speculations
        causes = {
            "calls left undecided": found.left,
            "their records": found.lost,
            "ends without a begin": found.undecided,
        }
        return {cause: count for cause, count in causes.items() if count}

    def _is_there(self, tid: int) -> bool:
        return os.path.exists(f"/proc/{self._pid}/task/{tid}")
