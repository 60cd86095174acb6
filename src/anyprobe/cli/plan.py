"""The plan of a measuring command: its command line, read, and what is measured by it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from anyprobe.cli import output
from anyprobe.cli.window import Window
from anyprobe.data.snapshot import Snapshot

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.cli.meanwhile import Meanwhile
    from anyprobe.cli.records import Records
    from anyprobe.cli.targets import AnySpec, Measured
    from anyprobe.data.runs import Run
    from anyprobe.probes.following.followed import Followed
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session


class Front(Protocol):
    """What shows results while they are measured, and leads the wait for the end: a screen, a server."""

    @property
    def owns_terminal(self) -> bool:
        """Whether nothing else may read from the terminal, or write to it."""
        ...

    def lead(self, meanwhile: "Meanwhile") -> None:
        """Do the duties again and again, until it is over."""
        ...

    def take(self, together: "Snapshot", last: "Snapshot | None") -> None:
        """Take note of the results so far, and of what was added since the last time."""
        ...

    def warn(self, message: str) -> None:
        """Tell the user something."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, apart from where: the command line of a measuring command, read."""

    specs: "tuple[AnySpec, ...]"
    arm: "Callable[[Measured, Sequence[AnySpec]], object]"
    render: "Callable[[Snapshot, Console, int], None]"
    seconds: float | None
    every: float | None
    format: str | None
    """The file format of the results; None: a table."""
    strategy: str
    maxactive: int | None
    output: str | None
    quiet: bool
    fold: bool
    exit_status: bool
    top: int
    mechanism: str | None = None
    include_self: bool = False
    at_end: str | None = None
    """Whether a started command is told to end, or left; None: told where the session ends by itself."""
    max_overhead: float | None = None
    clock: str | None = None
    returns: str | None = None
    self_time: bool = False
    """Whether timed functions have self times."""
    raw: bool = False
    """Whether times are shown as they were measured, with what probes take of them."""
    tree: bool = False
    """Whether results have the tree of timed calls."""
    live: bool = False
    pending: bool | None = None
    """Whether specs follow what is loaded later; None: those that name a module which is not loaded."""
    follow: bool | None = False
    """Whether programs that are executed are counted in, too; None: where a command is started."""
    children: str | None = None
    """What becomes of fork children: ``count``, the default, ``ignore`` or ``free``."""
    by: str | None = None
    """``pid``: documents have the hits of each process; ``tid``: those of each thread, where functions are timed."""
    unsafe: bool = False
    buckets: bool | None = None
    """Whether documents have the buckets of timed functions; None: those of ``--every`` have not."""
    nonzero: bool | None = None
    """Whether documents leave out what was not hit; None: those of ``--every`` do."""
    shown: list[Snapshot] = field(default_factory=list)
    """The results that were shown last."""
    said: set[str] = field(default_factory=set)
    """Warnings that the user has seen."""
    always: Mapping[str, object] = field(default_factory=dict)
    """What the JSON document has even where nothing could be placed."""
    records: "Records | None" = None
    """What shows the records that handlers emit, where there may be any."""
    seen: "Callable[[Snapshot], Snapshot] | None" = None
    """What makes results of what one process has counted, where that is not the same."""
    maps: bool = False
    """Whether to show what maps hold, too."""
    full_names: bool = True
    """Whether tables show long names of functions whole."""
    covers: bool = False
    """Whether results have the coverage."""
    run: "Run | None" = None
    """What else is known of results that are kept, or shown again."""
    spaced: bool = True
    """Whether an empty line is between results of intervals and those at the end."""
    lines: bool = False
    """Whether records are all that there is to show: then what is left to say goes to standard error."""

    front: "Front | None" = None
    """What shows results while they are measured, and leads the wait for the end; None: text on a stream."""

    def warn(self, *messages: str) -> None:
        """Tell the user what has not been told yet."""
        for message in messages:
            if not self.quiet and message not in self.said:
                (output.warn if self.front is None else self.front.warn)(message)
            self.said.add(message)


class Sessions(NamedTuple):
    """What is measured: programs, and the kernel."""

    opened: "Sequence[Session]"
    window: Window
    """The time of which results are."""
    kernel: "Sequence[KernelSession]" = ()
    endless: bool = False
    """Whether there is no process with which it ends."""
    tree: "Followed | None" = None
    """What follows the programs that these execute."""

    @property
    def processes(self) -> "Sequence[Session]":
        """The sessions on programs, on those that were executed too, which may have come just now."""
        return self.opened if self.tree is None else self.tree.sessions

    def results(self, of: "Callable[[Measured], Snapshot]") -> list[Snapshot]:
        """Return the results of all, those of programs that have ended too."""
        of = self.window.within(of)
        found = [of(each) for each in self.opened] if self.tree is None else self.tree.results(of)
        return [*found, *map(of, self.kernel)]

    @property
    def all(self) -> "list[Measured]":
        """Both, in the order of results."""
        return [*self.processes, *self.kernel]
