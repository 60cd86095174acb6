"""Sessions: what a user holds while probing one process."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from anyprobe.core.printable import printable
from anyprobe.probes.composed import ComposedHost
from anyprobe.probes.options import DEFAULT, SessionOptions
from anyprobe.probes.parts.arming import Arming
from anyprobe.probes.parts.decorators import Decorators
from anyprobe.probes.parts.lifecycle import Lifecycle
from anyprobe.probes.parts.loop import DutyLoop
from anyprobe.probes.parts.modules import ModuleReconciler
from anyprobe.probes.parts.results import Results
from anyprobe.probes.scripts import entering
from anyprobe.target.base import RunningProcess

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import ObjectFiles
    from anyprobe.probes.api import SessionApi
    from anyprobe.probes.providers.function.probe import Probe


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def forwarded(
    part: Callable[[ComposedHost], S], method: Callable[Concatenate[S, P], R]
) -> "Callable[Concatenate[Session, P], R]":
    """Return a method that calls one of a part, with its signature and documentation."""
    name = cast("str", getattr(method, "__name__"))  # noqa: B009 - a Callable has no name for mypy

    @wraps(method)
    def forward(self: "Session", *args: P.args, **named: P.kwargs) -> R:
        return cast("R", getattr(part(self.host), name)(*args, **named))

    return cast("Callable[Concatenate[Session, P], R]", forward)  # else it has no first argument without a name


class Shown(property, Generic[R]):
    """A property of a session that the host, or one of its parts, has."""

    def __init__(self, get: Callable[[ComposedHost], R], doc: str) -> None:
        """Show what ``get`` returns; ``doc`` says what it is."""
        super().__init__(lambda session: get(session.host), doc=doc)

    @overload
    def __get__(self, session: None, owner: type, /) -> Self: ...

    @overload
    def __get__(self, session: "Session", owner: type | None = None, /) -> R: ...

    def __get__(self, session: "Session | None", owner: type | None = None, /) -> Self | R:
        """Return it as it is now."""
        return cast("Self | R", super().__get__(session, owner))


class Session:
    """Probes in one process. A context manager: leaving it removes everything.

    ``count`` and ``time`` arm probes; ``snapshot`` reads what they counted, also after the target's death. Each method
    is one of a part of the session, where it is documented; ``host`` has all of the parts.
    """

    __slots__ = ("__weakref__", "host")

    def __init__(
        self, process: RunningProcess, options: SessionOptions = DEFAULT, *, held: bool = False,
        files: "ObjectFiles | None" = None,
    ) -> None:  # fmt: skip
        """Use ``attach`` or ``run``; ``files`` opens what is mapped, where that is not by the process's own root."""
        self.host = ComposedHost(process, options, held=held, files=files, session=self)

    # -- the process

    pid = Shown(lambda host: host.pid, "The target's process id.")
    exe = Shown(lambda host: host.exe, "The target's executable.")
    called = Shown(lambda host: host.called, "The name by which the target was started.")
    process = Shown(lambda host: host.process, "The target.")
    exited = Shown(lambda host: host.exited, "Whether the target is gone.")
    exit_status = Shown(lambda host: host.exit_status, "The target's wait status, where it can be known.")
    target_info = Shown(lambda host: host.target_info, "What is known of the target, and whether it has ended.")
    objects = Shown(lambda host: host.objects, "What is loaded in the target.")
    symbols = Shown(lambda host: host.symbols, "The names of addresses in the target.")
    module = forwarded(lambda host: host, ComposedHost.module)
    mappings = forwarded(lambda host: host, ComposedHost.mappings)

    # -- probes

    options = Shown(lambda host: host.options, "How this session probes.")
    unsafe = Shown(lambda host: host.unsafe, "Whether handlers may change what the program computes.")
    probes = Shown(lambda host: host.probes, "What has been asked for, in this order.")
    refused = Shown(
        lambda host: host.refused, "Everything that was asked for and not placed: canonical spec and reason."
    )
    pending = Shown(lambda host: host.modules.pending, "The specs that wait for a library, and have meant nothing yet.")
    count = forwarded(lambda host: host.arming, Arming.count)
    time = forwarded(lambda host: host.arming, Arming.time)
    cover = forwarded(lambda host: host.arming, Arming.cover)
    remove = forwarded(lambda host: host.arming, Arming.remove)
    enable = forwarded(lambda host: host.arming, Arming.enable)
    limit_overhead = forwarded(lambda host: host.arming, Arming.limit_overhead)
    add_provider = forwarded(lambda host: host.arming, Arming.add_provider)
    place_made = forwarded(lambda host: host.arming, Arming.place_made)
    explain = forwarded(lambda host: host.arming, Arming.explain)
    list = forwarded(lambda host: host.arming, Arming.list)
    resolve = forwarded(lambda host: host.arming, Arming.resolve)
    reconcile = forwarded(lambda host: host.modules, ModuleReconciler.reconcile)
    splicing = Shown(lambda host: host.splicing, "What splices the target, in its parts.")
    engine = Shown(lambda host: host.engine, "What makes changes of the target's text.")

    # -- what is changed

    optimise = forwarded(lambda host: host.arming, Arming.optimise)
    replace = forwarded(lambda host: host.arming, Arming.replace)

    # -- handlers

    handling = Shown(lambda host: host.handlers.handling, "What the handlers of this session have in common.")
    callbacks = Shown(lambda host: host.handlers.callbacks, "The Python functions that hits wait for.")
    listeners = Shown(lambda host: host.handlers.listeners, "The Python functions that are called with records.")
    entry = forwarded(lambda host: host.handlers, Decorators.entry)
    ret = forwarded(lambda host: host.handlers, Decorators.ret)
    at = forwarded(lambda host: host.handlers, Decorators.at)
    after = forwarded(lambda host: host.handlers, Decorators.after)
    call = forwarded(lambda host: host.handlers, Decorators.call)
    callback = forwarded(lambda host: host.handlers, Decorators.callback)
    type = forwarded(lambda host: host.handlers, Decorators.type)
    probes_of = forwarded(lambda host: host.handlers, Decorators.probes_of)

    # -- results

    snapshot = forwarded(lambda host: host.results, Results.snapshot)
    finish = forwarded(lambda host: host.life, Lifecycle.finish)
    misses = forwarded(lambda host: host.handlers, Decorators.misses)
    records = forwarded(lambda host: host.handlers, Decorators.records)
    rows = forwarded(lambda host: host.handlers, Decorators.rows)
    events = forwarded(lambda host: host.handlers, Decorators.events)
    on = forwarded(lambda host: host.handlers, Decorators.on)
    has_listeners = Shown(lambda host: host.handlers.has_listeners, "Whether records go to Python functions.")
    shown = forwarded(lambda host: host.handlers, Decorators.shown)
    warnings = Shown(lambda host: host.warnings, "What the user should know.")
    noticed = Shown(lambda host: host.results.noticed, "What is to be said of what has happened to the program.")
    stops_explained = Shown(
        lambda host: host.stops_explained, "Why something was done in a stop, where none was wanted."
    )

    # -- life

    hooks = Shown(lambda host: host.handlers.hooks, "What scripts do at the beginning, at the end, and in between.")
    duties = Shown(lambda host: host.loop.duties, "What is due, and when.")
    begin = forwarded(lambda host: host.handlers, Decorators.begin)
    end = forwarded(lambda host: host.handlers, Decorators.end)
    interval = forwarded(lambda host: host.handlers, Decorators.interval)
    pump = forwarded(lambda host: host.loop, DutyLoop.pump)
    pump_in_background = forwarded(lambda host: host.loop, DutyLoop.pump_in_background)
    resume = forwarded(lambda host: host.life, Lifecycle.resume)
    wait = forwarded(lambda host: host.life, Lifecycle.wait)
    detached = Shown(lambda host: host.detached, "Whether this session is over.")
    detach = forwarded(lambda host: host.life, Lifecycle.detach)
    close = forwarded(lambda host: host.life, Lifecycle.close)

    def __repr__(self) -> str:
        """Return the program and how many probes there are, in one line."""
        target, probes = self.target_info, self.probes
        ended = "" if target.alive and target.exited is None else ", which has ended"
        armed = "detached" if self.detached else f"{sum(each.armed for each in probes)} armed"
        name = printable(target.shown_name)
        return f"<Session on {name} (pid {self.pid}{ended}): {len(probes)} probe{'s' * (len(probes) != 1)}, {armed}>"

    def _repr_html_(self) -> str:
        """Return what notebooks show: what was counted so far."""
        from anyprobe.data.snapshots.shown import page_of

        return page_of(self.snapshot())

    def __enter__(self) -> Self:
        """Return the session, which is the current one from here on."""
        entering.enter(self)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Detach, whatever happened."""
        entering.leave(self)
        self.close()


if TYPE_CHECKING:
    _is_one: type[SessionApi[Probe]] = Session
