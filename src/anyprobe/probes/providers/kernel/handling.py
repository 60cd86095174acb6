"""The part of a session on the kernel that has to do with handlers, and what they collect and emit."""

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.errors import UsageError
from anyprobe.probes.api import Emitted
from anyprobe.probes.providers.kernel.places.sites import KernelNames, KernelSite
from anyprobe.probes.providers.kernel.places.specs import KernelSpec, parsed
from anyprobe.probes.scripts.hooks import Scripted

if TYPE_CHECKING:
    from anyprobe.data.aggregates.records import Records
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.handlers.types.annotations import AnyType
    from anyprobe.probes.providers.kernel.calls import KernelCall, Timing
    from anyprobe.probes.providers.kernel.collection import Collection
    from anyprobe.probes.providers.kernel.handlers import KernelHandler
    from anyprobe.probes.providers.kernel.probe import KernelProbe

Handler = Callable[..., Any]


class Handled(Emitted, Scripted):
    """A session whose probes may have handlers."""

    exited = False
    """Whether what is probed is gone, as processes may be."""
    probes: "list[KernelProbe]"
    _names: KernelNames
    _last: "Snapshot | None"

    def __init__(self) -> None:
        """Begin without handlers."""
        self._kept: list[tuple[str, str, Records]] = []
        """What was emitted and not asked for before the end."""
        self._over = threading.Event()
        self._waiting: KernelCall | None = None
        self._timings: list[Timing] = []

    # -- what the session does

    @abstractmethod
    def arm(
        self,
        specs: Sequence[KernelSpec],
        mechanism: str | None,
        handler: "KernelHandler | None" = None,
        *,
        follow: bool = False,
    ) -> "list[KernelProbe]":
        """Attach to what some specs mean."""

    @abstractmethod
    def arm_sites(
        self, spec: KernelSpec, sites: Sequence[KernelSite], mechanism: str | None, handler: "KernelHandler | None"
    ) -> "KernelProbe":
        """Attach a handler to some sites."""

    @abstractmethod
    def demanded(self, mechanism: str | None) -> str | None:
        """Return the only mechanism to use, where one is demanded for some specs or for all."""

    @abstractmethod
    def arm_ends(
        self, spec: KernelSpec, entering: "KernelHandler", leaving: "KernelHandler"
    ) -> "tuple[KernelProbe, KernelProbe]":
        """Splice both ends of the calls of functions at once."""

    @abstractmethod
    def resolve(self, spec: KernelSpec) -> list[KernelSite]:
        """Return the sites that a spec means."""

    @abstractmethod
    def check_handler(self, spec: KernelSpec, handler: "KernelHandler") -> None:
        """Raise ``HandlerError`` if a handler cannot be compiled for a spec."""

    # -- handlers

    def entry(
        self,
        *specs: str | KernelSpec,
        when: Handler | None = None,
        handler: Handler | None = None,
        mechanism: str | None = None,
        follow: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Place a handler at the entries of functions, or at tracepoints; ``when`` is a condition for it to run.

        Its parameters are the function's by name, of the types that the kernel tells, or by position if all have
        annotations.

        Args:
            specs: of functions, system calls and tracepoints.
            when: a condition, of parameters that the handler has, too.
            handler: the handler, where this is called instead of used as a decorator.
            mechanism: the only one to use, see ``count``.
            follow: whether it also runs in modules that are loaded later, see ``count``; where it cannot be compiled
                for what is there, that is in ``refused``.

        Returns:
            A decorator that gives the function back.
        """
        return self._decorator(parsed(specs), when, None, mechanism, handler, follow=follow)

    def ret(
        self,
        *specs: str | KernelSpec,
        when: Handler | None = None,
        retval: "AnyType | None" = None,
        handler: Handler | None = None,
        mechanism: str | None = None,
        follow: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Place a handler where functions return; ``retval`` is the result's type if it is not the kernel's.

        Args:
            specs: of functions and system calls.
            when: a condition.
            retval: the result's type.
            handler: the handler, where this is called instead of used as a decorator.
            mechanism: the only one to use, see ``count``.
            follow: whether it also runs in modules that are loaded later, see ``entry``.

        Returns:
            A decorator that gives the function back.
        """
        returns = [spec.at("return") for spec in parsed(specs)]
        return self._decorator(returns, when, retval, mechanism, handler, follow=follow)

    def at(
        self, *specs: str | KernelSpec, when: Handler | None = None, handler: Handler | None = None
    ) -> Callable[[Handler], Handler]:
        """Place a handler before instructions, as ``kernel::vfs_read+0x1c``; it has ``ctx`` alone.

        Args:
            specs: of single instructions.
            when: a condition.
            handler: the handler, where this is called instead of used as a decorator.

        Returns:
            A decorator that gives the function back.
        """
        return self._decorator(parsed(specs), when, None, None, handler)

    def call(
        self,
        *specs: str | KernelSpec,
        when: Handler | None = None,
        retval: "AnyType | None" = None,
        mechanism: str | None = None,
    ) -> "Callable[[Handler], KernelCall]":
        """Place a handler at the entries of functions, and by ``.ret`` of the result another at their returns.

        Both have ``ctx.data``, the call's own. Both are placed by ``.ret``; without it, the one at the entries is
        placed when the session is used next.

        Args:
            specs: of functions.
            when: a condition for the handler at the entries.
            retval: the result's type if it is not the kernel's.
            mechanism: the only one to use, see ``count``.

        Returns:
            A decorator of the handler at the entries.
        """
        wanted = parsed(specs)

        def place(function: Handler) -> "KernelCall":
            from anyprobe.probes.providers.kernel.calls import KernelCall

            self.place_waiting()
            self._waiting = KernelCall(self, wanted, function, when, retval, mechanism)
            return self._waiting

        return place

    def time(self, *specs: str | KernelSpec, mechanism: str | None = None) -> "list[KernelProbe]":
        """Take the durations of the calls of functions; ``snapshot().functions`` has them.

        Args:
            specs: of functions.
            mechanism: the only one to use, see ``count``.

        Returns:
            The probes at both ends.
        """
        from anyprobe.probes.providers.kernel.calls import Timing

        made = [Timing(self, spec, mechanism) for spec in parsed(specs)]
        self._timings += made
        return [probe for each in made for probe in each.probes]

    def type(self, name: str, module: str = "vmlinux") -> "AnyType":
        """Return a type of the kernel or a module by its name: ``ptr[session.type("struct sock")]``.

        Args:
            name: with or without ``struct``.
            module: whose types are looked at before the kernel's own.

        Returns:
            A type for annotations.
        """
        from anyprobe.handlers.types.btf_types import types_of

        types = self._names.types.module(module)
        if types is None:
            raise UsageError(f"the module {module} tells no types")
        return types_of(types).named(name)

    def _decorator(
        self,
        specs: Sequence[KernelSpec],
        when: Handler | None,
        retval: "AnyType | None",
        mechanism: str | None,
        handler: Handler | None,
        *,
        follow: bool = False,
    ) -> Callable[[Handler], Handler]:
        def place(function: Handler) -> Handler:
            from anyprobe.probes.providers.kernel.handlers import KernelHandler

            made = KernelHandler(self.collection, function, when, retval)
            self.arm(specs, mechanism, made, follow=follow)
            return function

        if handler is not None:
            place(handler)
        return place

    def probes_of(self, *handlers: Handler) -> "list[KernelProbe]":
        """Return the probes that run some handlers: what ``remove`` and ``enable`` take.

        Args:
            handlers: functions that were given to ``entry``, ``ret``, ``at`` or ``call``.
        """
        self.place_waiting()
        return [
            probe
            for function in handlers
            for probe in self.probes
            if probe.handler is not None and probe.handler.function is function
        ]

    def settle(self, call: "KernelCall") -> None:
        """Wait for no return's handler of a call any more."""
        if self._waiting is call:
            self._waiting = None

    def place_waiting(self) -> None:
        """Place the handler of a call that has not been given one for the return."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.place_alone()

    # -- what they collect

    @Lazy
    def collection(self) -> "Collection":
        """What handlers collect."""
        from anyprobe.probes.providers.kernel import mechanisms
        from anyprobe.probes.providers.kernel.collection import Collection

        return Collection(self._names, spliced=self.demanded(None) == mechanisms.SPLICE.name)

    @property
    def _has_handlers(self) -> bool:
        return Handled.collection.made(self) is not None

    @property
    def timed(self) -> "frozenset[KernelProbe]":
        """The probes that take durations."""
        return frozenset(probe for each in self._timings for probe in each.probes)

    def collected(self) -> dict[str, Any]:
        """Return the parts of a snapshot that are what handlers have collected."""
        if not self._has_handlers:
            return {}
        own: frozenset[object] = frozenset().union(*(each.aggregations for each in self._timings))
        return {
            "functions": tuple(found for each in self._timings for found in each.results()),
            "aggregations": self.collection.aggregations(own),
            "dropped": self.collection.dropped(),
            "maps": self.collection.held(),
        }

    def misses(self) -> dict[str, int]:
        """Return what handlers could not do, by kind.

        Returns:
            Counts by ``fault``, ``division`` and ``abandoned``, those that are not 0.
        """
        if self._last is not None:
            return dict(self._last.missing)
        return self.collection.misses() if self._has_handlers else {}

    def records(self, *, final: bool = False, until: int | None = None) -> "dict[str, Records]":
        """Return what was emitted since the last time, by name, as NumPy arrays by time (``ts``, in nanoseconds).

        Args:
            final: is for sessions on processes: here what was emitted before is always complete.
            until: what was emitted later is kept for the next time.

        Returns:
            Arrays by the names of the records; after the end, what was not taken before.
        """
        del final
        return {name: found for name, _, found in self.emitted(until=until)}

    def emitted(self, *, until: int | None = None) -> "list[tuple[str, str, Records]]":
        """Return what was emitted since the last time, by record: its name, how a row is shown, and the rows."""
        if self._last is not None:
            kept, self._kept = self._kept, []
            return kept
        return list(self.collection.records(until)) if self._has_handlers else []

    def emission_time(self) -> int:
        """Return this moment as ``ctx.now`` has it."""
        return time.monotonic_ns()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for some seconds, or until the session is over.

        Args:
            timeout: seconds; without end if it is not given.
        """
        self._over.wait(timeout)

    def end_records(self) -> None:
        """Hand out what has been emitted, and keep what is not taken."""
        if (listeners := Handled.listeners.made(self)) is not None:
            listeners.end()
        if self._has_handlers:
            self._kept = self.emitted()

    def close_collection(self) -> None:
        """Give the kernel's maps back."""
        self._over.set()
        if self._has_handlers:
            self.collection.close()
