"""What the parts of a session may ask of it: the interface that keeps them from importing the whole of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.core.refusal import Refusal
    from anyprobe.data.pending import PendingSpec
    from anyprobe.data.processes import TargetInfo
    from anyprobe.probes.children import Children
    from anyprobe.probes.handlers.trampolining import Trampolines
    from anyprobe.probes.options import SessionOptions
    from anyprobe.probes.probe import Place, Probe
    from anyprobe.probes.providers.base import Provider
    from anyprobe.probes.providers.function.copies import Copies
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.probes.symbols import Symbols
    from anyprobe.probes.thread_ids import ThreadIds
    from anyprobe.probes.timing.thread_names import ThreadNames
    from anyprobe.splice.edits import Module
    from anyprobe.splice.engine import Engine
    from anyprobe.splice.processes import ProcessSplicing
    from anyprobe.target.base import ProcessQuiescence, RunningProcess
    from anyprobe.target.system.procfs import Mapping


class ProbeHost(ABC):
    """One process with probes: its code, its engine, and the places where probes are armed."""

    splicing: "ProcessSplicing"
    """What splices the target, in its parts."""
    options: "SessionOptions"
    """How it probes."""
    unsafe: bool
    """Whether handlers may change what the program computes."""
    probes: "list[Probe]"
    """What has been asked for, in this order."""
    warnings: Sequence[str]
    """What the user should know."""
    copies: "Copies"
    functions: "Provider[Place]"
    """What places in functions are armed by."""
    trampolines: "Trampolines"
    children: "Children"
    """What its processes have counted."""
    clock_step_ns: float
    """By how much the clock of times goes on at once, 0 where nothing is timed."""
    endings: "list[Callable[[], None]]"
    """Called when it is over, and what was counted is still there."""
    lock: AbstractContextManager[object]
    """Held by each thread that changes or reads the session."""
    _objects: "ObjectTable"

    @property
    @abstractmethod
    def process(self) -> "RunningProcess":
        """The target."""

    @property
    def engine(self) -> "Engine[ProcessQuiescence]":
        """What makes changes of the target's text."""
        return self.splicing.engine

    @cached_property
    def thread_ids(self) -> "ThreadIds":
        """Whether threads have their ids where generated code reads them."""
        from anyprobe.probes.thread_ids import ThreadIds

        return ThreadIds(self.splicing.access, self.process)

    @cached_property
    def thread_names(self) -> "ThreadNames":
        """What threads are called."""
        from anyprobe.probes.timing.thread_names import ThreadNames

        return ThreadNames()

    @property
    @abstractmethod
    def pid(self) -> int:
        """The target's process id."""

    @property
    @abstractmethod
    def exe(self) -> str:
        """The target's executable."""

    @property
    @abstractmethod
    def called(self) -> str:
        """The name by which the target was started."""

    @property
    @abstractmethod
    def exited(self) -> bool:
        """Whether the target is gone."""

    @property
    @abstractmethod
    def exit_status(self) -> int | None:
        """The target's wait status, where it can be known."""

    @property
    @abstractmethod
    def target_info(self) -> "TargetInfo":
        """What is known of the target, and whether it has ended."""

    @property
    @abstractmethod
    def detached(self) -> bool:
        """Whether this session is over."""

    @property
    @abstractmethod
    def pending(self) -> "Sequence[PendingSpec]":
        """The specs that follow what is loaded and have meant nothing yet."""

    @property
    @abstractmethod
    def noticed(self) -> Sequence[str]:
        """What is to be said of what has happened to the program."""
        ...

    @property
    @abstractmethod
    def stops_explained(self) -> Sequence[str]:
        """Why something was done in a stop, one sentence for each reason, where that was not wanted."""

    @abstractmethod
    def waited(self) -> tuple[float, float]:
        """Return what share of the time a thread has waited for a processor, and what a hypervisor has taken."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the target's end; return its wait status if it is a child of this process and has ended."""

    @abstractmethod
    def resolve(
        self, spec: str, within: "Collection[LoadedObject] | None" = None
    ) -> "tuple[Sequence[ResolvedSite], list[tuple[str, Refusal]]]":
        """Return the sites that a spec means in the process now, or in some of its objects, and what is refused."""

    @abstractmethod
    def refusal_of(self, site: "ResolvedSite") -> "Refusal | None":
        """Return why a site cannot be had, whatever its code is."""

    @abstractmethod
    def mappings(self) -> "Sequence[Mapping]":
        """Return the target's memory map as it is now."""

    @abstractmethod
    def module(self, loaded: "LoadedObject") -> "Module":
        """Return the engine's module of an object."""

    @abstractmethod
    def module_at(self, address: int) -> "Module | None":
        """Return the engine's module of the object that a run-time address lies in."""

    @abstractmethod
    def clock_refusal(self) -> "Refusal | None":
        """Return why nothing can be timed here, as far as that is known without a change."""

    @abstractmethod
    def lost(self) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        """Return what maps and records have lost, by name and cause, and what handlers could not do, by kind."""

    @property
    @abstractmethod
    def handlers_step_ns(self) -> float:
        """By how much the time that handlers see goes on at once, 0 where none uses it."""

    @abstractmethod
    def warn(self, *texts: str) -> None:
        """Tell the user something, by ``warnings``."""

    @abstractmethod
    def place_made(
        self, specs: Sequence[str], dress: "Callable[[Probe], None]", sites: "Sequence[ResolvedSite | None]" = (), *,
        follow: bool | None = None,
    ) -> "list[Probe]":  # fmt: skip
        """Arm probes; ``dress`` sets what each is for before it is armed; ``sites``: resolved already.

        ``follow``: also in what is loaded later; None: as the session's option ``pending`` says.
        """

    @property
    def objects(self) -> "ObjectTable":
        """What is loaded in the target."""
        return self._objects

    @cached_property
    def symbols(self) -> "Symbols[ObjectTable]":
        """The names of addresses in the target."""
        from anyprobe.probes.symbols import Symbols

        return Symbols(self._objects)
