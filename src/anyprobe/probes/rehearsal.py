"""A session in which handlers are compiled and nothing is placed: what ``explain`` says about a script."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyprobe.probes.providers.function.handlers.points import HandlerAt, Point
from anyprobe.probes.specs.spec import parsed

if TYPE_CHECKING:
    from anyprobe.core.code import NativeCode
    from anyprobe.probes.providers.function.handlers.handling import Call
    from anyprobe.probes.providers.function.handlers.points import Handler
    from anyprobe.probes.session import Session
    from anyprobe.probes.specs.parts import Spec

_SHOWN = {Point.BEFORE: "at"}
"""Points that sessions have under another name."""
_PLACING = frozenset({"count", "time", "remove", "enable", "place_made", "limit_overhead", "resume", "detach", "close"})


@dataclass(frozen=True, slots=True)
class RehearsedHandler:
    """A handler as it would be placed: what it is, where it would run, and what it may cost."""

    name: str
    file: str
    line: int
    specs: "tuple[Spec, ...]"
    place: str
    """``entry``, ``return``, ``at`` or ``after``."""
    steps: int
    """Operations that one run executes at most, which is proven."""
    stack: int
    """Bytes of the program's stack that it takes at most."""
    size: int
    """Bytes of its code."""
    inputs: tuple[str, ...]
    """What it is given at each hit."""


class Rehearsal:
    """Stands for a session: handlers are compiled, everything else that would touch the target does nothing."""

    def __init__(self, session: "Session") -> None:
        """Compile for a session, which stays as it is."""
        self._session = session
        self.handlers: list[RehearsedHandler] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever sessions have
        """Return what only looks; replace what would touch the target."""
        if name in _PLACING:
            return lambda *_, **__: []
        return getattr(self._session, name)

    def begin(self, function: "Handler") -> "Handler":
        """Do nothing: no probe is placed."""
        return function

    end = begin

    def interval(self, seconds: float) -> "Callable[[Handler], Handler]":  # noqa: ARG002 - the signature of sessions
        """Do nothing either."""
        return lambda function: function

    def entry(self, *specs: "str | Spec", when: "Handler | None" = None) -> "Callable[[Handler], Handler]":
        """Compile a handler of entries."""
        return self._rehearsed(parsed(specs), Point.ENTRY, when=when)

    def ret(
        self, *specs: "str | Spec", when: "Handler | None" = None, retval: Any = None  # noqa: ANN401 - as sessions have it
    ) -> "Callable[[Handler], Handler]":  # fmt: skip
        """Compile a handler of returns."""
        return self._rehearsed(parsed(specs), Point.RETURN, when=when, retval=retval)

    def at(self, *specs: "str | Spec", when: "Handler | None" = None) -> "Callable[[Handler], Handler]":
        """Compile a handler before instructions."""
        return self._rehearsed(parsed(specs), Point.BEFORE, when=when)

    def after(self, *specs: "str | Spec", when: "Handler | None" = None) -> "Callable[[Handler], Handler]":
        """Compile a handler after instructions."""
        return self._rehearsed(parsed(specs), Point.AFTER, when=when)

    def callback(self, *specs: str, **_: object) -> "Callable[[Handler], Handler]":  # noqa: ARG002 - as sessions have it
        """Leave a callback alone: it runs here, and has no bound."""
        return lambda function: function

    def call(self, *specs: "str | Spec", when: "Handler | None" = None, **settings: Any) -> "Callable[[Handler], Call]":  # noqa: ANN401
        """Compile a pair of handlers."""
        from anyprobe.probes.providers.function.handlers.handling import Call

        wanted = parsed(specs)

        def place(function: "Handler") -> Call:
            made = _RehearsedCall(self._session.handling, wanted, retval=settings.get("retval"))
            made.rehearse = self._rehearsed(wanted, Point.RETURN, call=made, retval=made.retval)
            self._rehearsed(wanted, Point.ENTRY, when=when, call=made)(function)
            return made

        class _RehearsedCall(Call):
            rehearse: "Callable[[Handler], Handler]"

            def ret(self, function: "Handler") -> "Handler":
                return self.rehearse(function)

        return place

    def _rehearsed(
        self, specs: "tuple[Spec, ...]", point: Point, **settings: Any  # noqa: ANN401 - as ``HandlerAt`` has them
    ) -> "Callable[[Handler], Handler]":  # fmt: skip
        def rehearse(function: "Handler") -> "Handler":
            code, _ = self._session.handling.compiled(
                HandlerAt(function=function, point=point, specs=specs, **settings)
            )
            self.handlers.append(_described(function, specs, _SHOWN.get(point, point.value), code))
            return function

        return rehearse


def _described(function: "Handler", specs: "tuple[Spec, ...]", place: str, code: "NativeCode") -> RehearsedHandler:
    inner = getattr(function, "__wrapped__", function)
    where = inner.__code__
    # a parameter by where it is; its name is that of its type
    inputs = dict.fromkeys(each.place or each.name or each.kind.value for each in code.inputs)
    return RehearsedHandler(
        function.__name__,
        where.co_filename,
        where.co_firstlineno,
        specs,
        place,
        code.steps,
        code.stack,
        len(code.code),
        tuple(inputs),
    )
