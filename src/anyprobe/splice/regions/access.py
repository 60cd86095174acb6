"""A session's way into its target: stops in which it is sure that the target is what it was."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.journal.installed import check_sessions
from anyprobe.journal.records import Journal
from anyprobe.splice.regions.holdings import Holdings

if TYPE_CHECKING:
    from anyprobe.target.base import ProcessQuiescence, ProcessTarget
    from anyprobe.target.system.procfs import Mapping


class Access:
    """Stops a target for one session and counts how long that takes."""

    def __init__(self, process: "ProcessTarget", holdings: Holdings) -> None:
        """Do nothing to the target yet."""
        self.process, self.holdings = process, holdings
        self.pause_us: dict[str, int] = {"prepare": 0, "arm": 0, "disarm": 0}
        """How long the target stood still, by what for."""
        self.touched = False
        """Whether something may have been installed, by whatever failed attempt."""
        self.mappings: Sequence[Mapping] = ()
        """The memory map in the present stop."""

    @contextmanager
    def stop(self, what: str) -> "Iterator[ProcessQuiescence]":
        """Stop everything and check that the target is what it was; the pause counts under ``what``."""
        self.touch()
        stop: ProcessQuiescence | None = None
        try:
            with self.process.stop() as stop:
                if not self.holdings.arenas:  # else our journals show it, which no other program has
                    stop.verify()
                self.mappings = stop.mappings
                try:
                    self.check_sessions(self.mappings)
                except TargetError:
                    stop.verify()
                    raise
                yield stop
        finally:
            if stop is not None:
                self.pause_us[what] += stop.pause_us

    def touch(self) -> None:
        """Take note that something is about to be installed, and find what calls in the target need."""
        self.touched = True
        self.process.gadgets()  # the search for them takes milliseconds the first time

    def journals(self) -> Iterator[Journal]:
        """Yield the session's journals, the one for splices first."""
        return self.holdings.journals()

    def check_sessions(self, mappings: "Sequence[Mapping]") -> None:
        """Raise if the target is another session's, or this one's no more."""
        check_sessions(self.process, mappings, self.holdings.owner, len(self.holdings.arenas), self.holdings.beside)
