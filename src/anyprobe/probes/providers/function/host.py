"""What the parts of a session have in common: one process with probes, its code, its engine, and the parts."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from anyprobe.binary.images.modules import LoadedObject
from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.errors import UsageError
from anyprobe.core.refusal import Refusal
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.probes.options import SessionOptions
from anyprobe.probes.providers.function.clobbering import clobbers
from anyprobe.probes.providers.function.copies import Copies
from anyprobe.probes.providers.function.forks.children import Children
from anyprobe.probes.providers.function.handlers.handler_watch import HandlerWatch
from anyprobe.probes.providers.function.objects import ObjectTable
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.probes.providers.function.provider import FunctionProvider
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.probes.specs.parts import Spec
from anyprobe.splice.edits import Module
from anyprobe.splice.plan.splices import AUTO, Strategy
from anyprobe.splice.processes import ProcessSplicing
from anyprobe.target.base import RunningProcess

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import ObjectFiles
    from anyprobe.probes.providers.function.forks.adopting import Adopting
    from anyprobe.probes.providers.function.handlers.trampolining import Trampolines
    from anyprobe.probes.providers.function.threads.thread_ids import ThreadIds
    from anyprobe.probes.providers.function.timing.thread_names import ThreadNames
    from anyprobe.probes.providers.function.wanted.entering import Entrances
    from anyprobe.probes.providers.function.wanted.live_proof import LiveProof
    from anyprobe.probes.providers.function.wanted.slices import Slices
    from anyprobe.probes.stacks.symbols import Symbols
    from anyprobe.splice.engine import Engine
    from anyprobe.target.base import ProcessQuiescence
    from anyprobe.target.system.procfs import Mapping


class ProbeHost(ABC):
    """One process with probes: what is the same for all parts of a session, which they are given."""

    def __init__(
        self,
        process: RunningProcess,
        options: SessionOptions,
        *,
        held: bool,
        files: "ObjectFiles | None",
        session: object = None,
    ) -> None:
        """Compose the parts; nothing is done to the process.

        ``held``: it was started and has not been let go yet. ``files`` opens what is mapped, where that is not by the
        process's own root.
        """
        self.process, self.options, self.held = process, options, held
        self.session = session
        """The session as its user has it, which is the current one while functions of scripts run."""
        self.unsafe: bool = options.unsafe
        """Whether handlers may change what the program computes."""
        self.lock: AbstractContextManager[object] = threading.RLock()
        """Held by each thread that changes or reads the session."""
        self.probes: list[Probe] = []
        """What has been asked for, in this order."""
        self.facades: dict[str, Any] = {}
        """What gives the session another interface, and lives and dies with it: by name."""
        self.endings: list[Callable[[], None]] = []
        """Called when the session is over, and what was counted is still there."""
        self.warnings: Sequence[str] = ()
        """What the user should know."""
        if options.strategy == Strategy.TRAP:
            from anyprobe.probes.providers.function.wanted import trapping

            self.warnings = [trapping.WARNING]
        self.has_gates = True
        """Whether threads are to wait where they load, execute and fork; those of a fork child wait at its parent's."""
        self.began: float | None = None
        self.ended: float | None = None
        """Since when it has probes, and until when."""
        self.detached = self.closed = False
        self.other_program: str | None = None
        """What the process has executed instead of the program with the probes."""
        self.objects = ObjectTable(process, files)
        """What is loaded in the target."""
        self.awaits_libraries = held and any(self.objects.is_loader(each) for each in self.objects.objects)
        """Whether the target is a dynamic program that has not mapped its libraries yet."""
        self.once_mapped: list[Callable[[], None]] = []
        """What ``when_mapped`` has been given."""
        self.copies = Copies(self.objects)
        self.splicing: ProcessSplicing = ProcessSplicing(
            process,
            clobbers,
            allowed=AUTO if options.strategy == "auto" else frozenset([Strategy(options.strategy)]),
            slots=self.objects.has_thread_slots(),
            maxactive=options.maxactive, callers=options.returns != "exits",
            nested=options.nested, raw=options.raw, by_thread=options.by_thread, may_lock=self.objects.may_lock_memory,
            proof=self.proof if options.live else None,
        )  # fmt: skip
        """What splices the target, in its parts."""
        self.handler_watch = HandlerWatch(self.splicing, self.objects, self.module)
        self.functions = FunctionProvider(self)
        """What arms places in functions."""
        self.entry_gate: Entrances | None = None
        """Where threads wait that enter functions for the first time, if any do."""
        self.slices: Slices | None = None
        """What places probes piece by piece, where there is a time for it."""
        if options.max_setup is not None or options.at_once:
            from anyprobe.probes.providers.function.wanted import slices

            self.slices = slices.Slices(self, options.max_setup, at_once=options.at_once)

    def when_mapped(self, place: Callable[[], None]) -> None:
        """Call what places handlers by what libraries contain, once they are mapped and nothing in them has run."""
        if self.awaits_libraries:
            self.thread_ids.want()  # before the loader has given the first thread memory that has no id in it yet
            self.once_mapped.append(place)
        else:
            place()

    @property
    def stops_explained(self) -> Sequence[str]:
        """Why something was done in a stop, one sentence for each reason, where that was not wanted."""
        return () if self.splicing.live is None else self.splicing.live.notes()

    def refusal_of(self, site: ResolvedSite) -> Refusal | None:
        """Return why a site cannot be had, whatever its code is."""
        refusal = self.objects.refusal(site.object)
        if refusal is None and Strategy.TRAP in self.splicing.planning.allowed:
            from anyprobe.probes.providers.function.wanted import trapping

            return trapping.trap_refusal(self.objects, site)
        return refusal

    def mappings(self) -> "Sequence[Mapping]":
        """Return the target's memory map as it is now."""
        return self.process.mappings()

    def module(self, loaded: LoadedObject) -> Module:
        """Return the engine's module of an object."""
        module = self.objects.module(loaded)
        if self.splicing.live is not None:
            module.plans = None  # they are for changes in a stop
        self.engine.add_module(module)
        module.early = early = self.held and (self.objects.is_loader(loaded) or not self.awaits_libraries)
        module.slotless = early or loaded.image.moves_thread_pointer
        return module

    def module_at(self, address: int) -> Module | None:
        """Return the engine's module of the object that a run-time address lies in."""
        loaded = self.objects.at(address)
        return None if loaded is None else self.module(loaded)

    def warn(self, *texts: str) -> None:
        """Have the user told of something, by ``warnings``."""
        self.warnings = [*self.warnings, *texts]

    @Lazy
    def children(self) -> Children:
        """What the process and its fork children have counted."""
        return Children(self.pid, self.exe)

    @property
    def pid(self) -> int:
        """The target's process id."""
        return self.process.pid

    @property
    def exe(self) -> str:
        """The target's executable."""
        return self.process.exe

    @property
    def called(self) -> str:
        """The name by which the target was started."""
        return self.process.called

    def became(self) -> str | None:
        """Return the program that the target runs since an exec, which has no probes; None if there was none."""
        return None if self.held else self.process.became()

    def undisturbed(self) -> AbstractContextManager[None]:
        """Have no thread stop the target for this session within a ``with`` block."""
        return self.process.undisturbed()

    @property
    def exited(self) -> bool:
        """Whether the target is gone."""
        return self.process.exited()

    @property
    def exit_status(self) -> int | None:
        """The target's wait status, where we can know it."""
        return self.process.exit_status

    @property
    @abstractmethod
    def target_info(self) -> TargetInfo:
        """What is known of the target, and whether it has ended."""

    @property
    def engine(self) -> "Engine[ProcessQuiescence]":
        """What makes changes of the target's text."""
        return self.splicing.engine

    @Lazy
    def thread_ids(self) -> "ThreadIds":
        """Whether threads have their ids where generated code reads them."""
        from anyprobe.probes.providers.function.threads.thread_ids import ThreadIds

        return ThreadIds(self.splicing.access, self.process)

    def recheck_thread_ids(self, reads_word: Callable[[int], bool]) -> None:
        """See whether generated code finds threads' ids, once the program has its C library."""
        ids = ProbeHost.thread_ids.made(self)
        if ids is not None:
            ids.recheck(reads_word)

    @Lazy
    def thread_names(self) -> "ThreadNames":
        """What threads are called."""
        from anyprobe.probes.providers.function.timing.thread_names import ThreadNames

        return ThreadNames()

    @Lazy
    def symbols(self) -> "Symbols[ObjectTable]":
        """The names of addresses in the target."""
        from anyprobe.probes.stacks.symbols import Symbols

        return Symbols(self.objects)

    @Lazy
    def trampolines(self) -> "Trampolines":
        """What serves functions whose exits cannot be spliced."""
        from anyprobe.probes.providers.function.handlers.trampolining import Trampolines

        return Trampolines(self.objects, wanted=self.options.returns == "trampoline")

    @Lazy
    def proof(self) -> "LiveProof":
        """What the program's files say about changes without a stop."""
        from anyprobe.probes.providers.function.wanted.live_proof import LiveProof

        return LiveProof(self.objects)

    def refresh_objects(self) -> None:
        """See what the program has loaded by now, also for changes without a stop."""
        (self.objects if self.splicing.live is None else self.proof).refresh()

    @Lazy
    def adopting(self) -> "Adopting":
        """Whether fork children may come to blocks of their own."""
        from anyprobe.probes.providers.function.forks.adopting import Adopting

        return Adopting(self.splicing, self.objects)

    def check_attached(self) -> None:
        """Raise ``UsageError`` if the session is over."""
        if self.ended is not None:
            raise UsageError("this session has been detached")

    @property
    def is_over(self) -> bool:
        """Whether nothing is due any more: detached, ended, or another program."""
        return self.detached or self.exited or self.other_program is not None

    # -- what the session's parts do for code that knows none of them

    @abstractmethod
    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the target's end; return its wait status if it is a child of this process and has ended."""

    @abstractmethod
    def resolve(
        self, spec: Spec, within: "Collection[LoadedObject] | None" = None
    ) -> "tuple[Sequence[ResolvedSite], list[tuple[str, Refusal]]]":
        """Return the sites that a spec means in the process now, or in some of its objects, and what is refused."""

    @abstractmethod
    def wanted_once(self, spec: Spec) -> Probe:
        """Return the probe that a spec means in the objects of now, which ends with them."""

    @abstractmethod
    def place_made(
        self, specs: Sequence[Spec], configure: Callable[[Probe], None], sites: Sequence[ResolvedSite | None] = (), *,
        follow: bool | None = None,
    ) -> list[Probe]:  # fmt: skip
        """Arm probes; ``configure`` sets what each is for before it is armed; ``sites``: resolved already.

        ``follow``: also in what is loaded later; None: as the session's option ``pending`` says.
        """

    @abstractmethod
    def clock_refusal(self) -> "Refusal | None":
        """Return why nothing can be timed here, as far as that is known without a change."""
