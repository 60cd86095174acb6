"""How handlers are given to a session: the decorators ``entry``, ``ret`` and ``call``."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from anyprobe.core.cachedproperty import Lazy
from anyprobe.probes.api import Emitted
from anyprobe.probes.scripts.hooks import Scripted
from anyprobe.probes.specs.spec import Spec, parsed

if TYPE_CHECKING:
    from anyprobe.data.aggregates.records import Records
    from anyprobe.data.aggregates.results import AggregationResult
    from anyprobe.handlers.types.annotations import AnyType
    from anyprobe.probes.providers.function.handlers.callbacks import Callback, Callbacks
    from anyprobe.probes.providers.function.handlers.handling import Call, Handling
    from anyprobe.probes.providers.function.handlers.points import Handler
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.probes.scripts.events import SessionEvents


class Decorators(Emitted, Scripted):
    """The part of a session that has to do with handlers; see docs/handlers.md."""

    def __init__(self, host: "ProbeHost") -> None:
        """Have no handler yet."""
        self._host = host

    @property
    def _current(self) -> object:
        return self._host.session

    def _source(self) -> "SessionEvents":
        from anyprobe.probes.scripts.events import SessionEvents

        return SessionEvents(self, self.emission_time)

    @property
    def detached(self) -> bool:
        """Whether the session is over."""
        return self._host.detached

    @property
    def exited(self) -> bool:
        """Whether the target is gone."""
        return self._host.exited

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the target's end, as the session does."""
        return self._host.wait(timeout)

    @Lazy
    def handling(self) -> "Handling":
        """What the handlers of this session have in common."""
        from anyprobe.probes.providers.function.handlers.handling import Handling

        return Handling(self._host)

    @Lazy
    def callbacks(self) -> "Callbacks":
        """The Python functions that hits wait for."""
        from anyprobe.probes.providers.function.handlers.callbacks import Callbacks

        return Callbacks(self._host, lambda: self.handling)

    @property
    def used(self) -> "Handling | None":
        """What handlers have in common, None while there is no handler."""
        return Decorators.handling.made(self)

    @property
    def used_callbacks(self) -> "Callbacks | None":
        """The Python functions that hits wait for, None while there are none."""
        return Decorators.callbacks.made(self)

    def shown(self, kind: str, number: int) -> str:
        """Return how a number is shown that is a ``func`` or a ``stack`` in a handler."""
        return self.handling.shown(kind, number)

    def probes_of(self, *handlers: "Handler") -> "list[Probe]":
        """Return the probes that call some handlers: what ``remove`` and ``enable`` take.

        Args:
            handlers: functions that were given to ``entry``, ``ret``, ``at``, ``after`` or ``call``.
        """
        return [probe for handler in handlers for probe in self.handling.probes_of(handler)]

    def collected(self) -> "tuple[AggregationResult, ...]":
        """Return what the aggregations of handlers hold at this moment."""
        return () if self.used is None else self.used.aggregations()

    @property
    def step_ns(self) -> float:
        """By how much the time that handlers see goes on at once, 0 where none uses it."""
        return 0.0 if self.used is None else self.used.clock_step_ns

    def place_waiting(self) -> None:
        """Place handlers of calls that wait for one at the returns."""
        if self.used is not None and not self._host.exited:
            self.used.place_waiting()

    def look_at_memory(self) -> None:
        """See whether memory has come that handlers must not fault in."""
        if self.used is not None and not self._host.exited:
            self.used.look_at_memory()

    def type(self, name: str, module: str = "a.out") -> "AnyType":
        """Return a type of the program by its name, from debug information: ``ptr[session.type("client")]``.

        Args:
            name: as in C, such as ``struct request``.
            module: whose debug information it is looked for in.

        Raises:
            UsageError: there is no such type, or no debug information.
        """
        objects = [each for each in self._host.objects.objects if each.matches(module)]
        return self.handling.prototypes.named(name, objects)

    def recheck(self, reads_word: Callable[[int], bool]) -> None:
        """See to what handlers need and could not be seen in a program that had not yet begun."""
        self._host.recheck_thread_ids(reads_word)
        if self.used is not None:
            self.used.recheck()
        if (callbacks := self.used_callbacks) is not None:
            callbacks.recheck()

    def misses(self) -> dict[str, int]:
        """Return what handlers could not do: bad addresses, divisions by zero, and runs that ended early for that."""
        return self.handling.misses()

    def records(self, *, final: bool = False, until: int | None = None) -> "dict[str, Records]":
        """Return what was emitted since the last time, by name, as NumPy arrays by time (``ts``, in nanoseconds).

        ``final``: the program emits nothing any more, so what is not complete by now never will be. What was emitted
        after ``until`` is kept for the next time.

        Args:
            final: whether the program is over: what was not finished is given, too.
            until: a time stamp; later records are left for the next call.
        """
        if self.used is None:
            return {}
        return {name: found for name, _, found in self.used.records(final=final, until=until)}

    def emission_time(self) -> int:
        """Return this moment as ``ctx.now`` has it."""
        from anyprobe.probes.clock import own_time

        return own_time()[0]

    def end_listeners(self) -> None:
        """Call functions with what has come so far, and no more; then those of the end."""
        if (listeners := Decorators.listeners.made(self)) is not None:
            listeners.end()
        if (hooks := Decorators.hooks.made(self)) is not None:
            hooks.end()

    def entry(
        self,
        *specs: str | Spec,
        when: "Handler | None" = None,
        handler: "Handler | None" = None,
        follow: bool | None = None,
    ) -> "Callable[[Handler], Handler]":
        """Place a handler at the entries of functions; ``when`` is a condition for it to run.

        Args:
            specs: where: see *Specs* in the documentation, such as ``libc:malloc`` or ``a.out:parse*``.
            when: a condition over the handler's parameters; the handler runs where it holds.
            handler: the handler, where this is called instead of used as a decorator.
            follow: whether it is also placed in libraries that are loaded later; by default as the session's option
                ``pending`` says.

        Returns:
            A decorator that gives the function back; what is refused is in ``refused``.

        Raises:
            SpecError: a spec means nothing.
            HandlerError: the handler does not compile; nothing is changed.
        """
        return self._decorator(specs, when, handler, follow=follow)

    def ret(
        self,
        *specs: str | Spec,
        when: "Handler | None" = None,
        retval: "AnyType | None" = None,
        handler: "Handler | None" = None,
        follow: bool | None = None,
    ) -> "Callable[[Handler], Handler]":
        """Place a handler where functions return; ``retval`` is the result's type where debug information lacks it.

        Args:
            specs: the functions.
            when: a condition over the handler's parameters; the handler runs where it holds.
            retval: the type of ``ctx.retval``, where debug information lacks it.
            handler: the handler, where this is called instead of used as a decorator.
            follow: as for ``entry``.

        Returns:
            A decorator that gives the function back; what is refused is in ``refused``.

        Raises:
            SpecError: a spec means nothing.
            HandlerError: the handler does not compile; nothing is changed.
        """
        return self._decorator(specs, when, handler, "RETURN", retval=retval, follow=follow)

    def at(
        self,
        *specs: str | Spec,
        when: "Handler | None" = None,
        handler: "Handler | None" = None,
        follow: bool | None = None,
    ) -> "Callable[[Handler], Handler]":
        """Place a handler before instructions, as ``libc:malloc+0x1c``; it has ``ctx`` alone.

        Args:
            specs: instructions, as ``libc:malloc+0x1c`` or ``libc:malloc:0x1c``.
            when: a condition over the handler's parameters; the handler runs where it holds.
            handler: the handler, where this is called instead of used as a decorator.
            follow: as for ``entry``.

        Returns:
            A decorator that gives the function back; what is refused is in ``refused``.

        Raises:
            SpecError: a spec means nothing.
            HandlerError: the handler does not compile; nothing is changed.
        """
        return self._decorator(specs, when, handler, "BEFORE", follow=follow)

    def after(
        self,
        *specs: str | Spec,
        when: "Handler | None" = None,
        handler: "Handler | None" = None,
        follow: bool | None = None,
    ) -> "Callable[[Handler], Handler]":
        """Place a handler after instructions, on whatever way control leaves them; ``ctx.ip`` is where it goes.

        Args:
            specs: instructions.
            when: a condition over the handler's parameters; the handler runs where it holds.
            handler: the handler, where this is called instead of used as a decorator.
            follow: as for ``entry``.

        Returns:
            A decorator that gives the function back; what is refused is in ``refused``.

        Raises:
            SpecError: a spec means nothing.
            HandlerError: the handler does not compile; nothing is changed.
        """
        return self._decorator(specs, when, handler, "AFTER", follow=follow)

    def callback(
        self, *specs: str | Spec, timeout: float = 0.1, when: "Handler | None" = None
    ) -> "Callable[[Callback], Callback]":
        """Have threads wait at some sites while a Python function runs here; it gets the hit, with its registers.

        A thread waits ``timeout`` seconds at most, and no longer than this process lives; where ``when``, a condition
        as handlers have it, does not hold, it does not wait.
        """
        wanted = parsed(specs)

        def place(function: "Callback") -> "Callback":
            self.callbacks.place(wanted, function, timeout=timeout, when=when)
            return function

        return place

    def end_callbacks(self) -> None:
        """Let all threads go that wait for a callback; none waits from here on."""
        if (callbacks := self.used_callbacks) is not None:
            callbacks.end()

    def call(
        self,
        *specs: str | Spec,
        when: "Handler | None" = None,
        retval: "AnyType | None" = None,
        follow: bool | None = None,
    ) -> "Callable[[Handler], Call]":
        """Place a handler at the entries of functions, and by ``.ret`` of the result another at their returns.

        Both are placed by ``.ret``, in one change: no call is seen at one end alone. Without ``.ret``, the one at the
        entries is placed when the session is used next.

        Args:
            specs: the functions.
            when: a condition over the handler's parameters; the handler runs where it holds.
            retval: the type of ``ctx.retval``, where debug information lacks it.
            follow: as for ``entry``.

        Returns:
            A decorator that returns the call, of which ``.ret`` is the decorator for returns.

        Raises:
            SpecError: a spec means nothing.
            HandlerError: the handler does not compile; nothing is changed.
        """
        wanted = parsed(specs)

        def place(function: "Handler") -> "Call":
            return self.handling.begin_call(wanted, function, when=when, retval=retval, follow=follow)

        return place

    def _decorator(
        self,
        specs: tuple[str | Spec, ...],
        when: "Handler | None",
        handler: "Handler | None",
        point: "Literal['ENTRY', 'RETURN', 'BEFORE', 'AFTER']" = "ENTRY",
        *,
        retval: "AnyType | None" = None,
        follow: bool | None = None,
    ) -> "Callable[[Handler], Handler]":
        wanted = parsed(specs)

        def place(function: "Handler") -> "Handler":
            from anyprobe.probes.providers.function.handlers.points import Point

            self.handling.place(wanted, function, Point[point], when=when, retval=retval, follow=follow)
            return function

        if handler is not None:
            place(handler)
        return place
