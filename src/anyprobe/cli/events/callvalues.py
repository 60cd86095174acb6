"""Values that ``record --with`` keeps: handlers at the ends of calls, whose records go beside those of the calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyprobe.cli.events.tracing import RING_BYTES
from anyprobe.cli.handlers.expressions import Expression
from anyprobe.cli.handlers.handlerplaces import HandlerMaker, once_each, place_for
from anyprobe.cli.handlers.handlertext import OF_RETURNS, PARAMETERS, HandlerText, check_names
from anyprobe.cli.handlers.knownfunctions import knowledge_of
from anyprobe.data.calls.recorded import ENTRY, RETURN, Events
from anyprobe.data.calls.values import Values

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anyprobe.data.aggregates.records import Records
    from anyprobe.probes.session import Session
    from anyprobe.probes.specs.parts import Spec
else:
    from anyprobe.core.later import np

FEW = 8
"""Specs whose rings have the size that was asked for."""
_OWN = ("tid", "func", "frame")
"""Fields of records besides the values: by these a call is found again."""


@dataclass
class CallValues:
    """What is kept with calls, and the records that have it."""

    expressions: tuple[Expression, ...]
    at_entry: tuple[Expression, ...] = ()
    at_return: tuple[Expression, ...] = ()
    """What needs a return."""
    _ends: dict[str, int] = field(default_factory=dict)
    """Which end of calls the records of a name are of."""

    def __post_init__(self) -> None:
        """Tell expressions of returns from others."""
        for each in self.expressions:
            for name, line, column in each.names:
                if name == "latency_ns":
                    raise each.error(line, column, "a recorded call has its duration already")
        later = {each for each in self.expressions if any(map(each.uses, (*OF_RETURNS, "errno")))}
        self.at_entry = tuple(each for each in self.expressions if each not in later)
        self.at_return = tuple(each for each in self.expressions if each in later)

    @property
    def labels(self) -> dict[str, list[str]]:
        """What values are called, by the end of calls."""
        return {end: [each.label for each in found]
                for end, found in (("entry", self.at_entry), ("return", self.at_return))}  # fmt: skip

    def arm(self, session: "Session", specs: "Sequence[Spec]", ring_bytes: int) -> None:
        """Place the handlers of all specs in one session; each has rings of its own, of many specs smaller ones."""
        session.handling.ring_bytes = ring_bytes if len(specs) <= FEW else min(ring_bytes, RING_BYTES)
        with once_each(session):
            for spec in specs:
                if self.at_entry:
                    self._put(session, spec, self.at_entry, ENTRY)
                if self.at_return:
                    self._put(session, spec.end("return"), self.at_return, RETURN)

    def _put(self, session: "Session", spec: "Spec", expressions: tuple[Expression, ...], end: int) -> None:
        from anyprobe.handlers.intrinsics import emit_partial

        known = knowledge_of(session, spec.end("entry"), expressions)
        check_names(expressions, known.names, known.reason)
        place = place_for(spec, expressions, (*PARAMETERS, *known.names))
        name = f"value {len(self._ends)}"

        def write(text: HandlerText, shown: Sequence[str], has_result: bool) -> None:  # noqa: ARG001 - as it is called
            text.add(f"    emit_partial({name!r}, tid=ctx.tid, func=u32(u64(ctx.func)), frame=u32(u64(ctx.regs.rsp)),")
            for at, each in enumerate(expressions):
                text.add_expression(f"        value{at}=", each, ",")
            text.add("    )")

        HandlerMaker(place, expressions, known, write, {"emit_partial": emit_partial}).put(session)
        self._ends[name] = end

    def has(self, name: str) -> bool:
        """Return whether records of a name are those of values."""
        return name in self._ends

    def of(
        self, name: str, batch: "Records", times: "NDArray[np.int64]", threads: "NDArray[np.uint32]",
        functions: "NDArray[np.uint32]",
    ) -> tuple[str, Values]:  # fmt: skip
        """Return which end of calls some records are of, and their values.

        Args:
            name: of the records.
            batch: the records.
            times: of each, by the monotonic clock.
            threads: the number of the thread of each.
            functions: the number of the function of each, times four.
        """
        end = self._ends[name]
        expressions = self.at_entry if end == ENTRY else self.at_return
        events = Events(times, threads, functions | np.uint32(end), batch["frame"] & ~np.uint32(3))
        columns = tuple(_column(batch[f"value{at}"]) for at in range(len(expressions)))
        missing = np.zeros(len(batch), np.uint32)
        if "missing" in (batch.dtype.names or ()):
            missing = (batch["missing"] >> len(_OWN)).astype(np.uint32)
        return ("entry" if end == ENTRY else "return"), Values(events, columns, missing)


def _column(found: "NDArray[np.generic]") -> "NDArray[np.generic]":
    """Return a column of records as it is kept: texts as objects."""
    if found.dtype.kind != "S":
        return np.ascontiguousarray(found)
    texts = np.empty(len(found), object)
    texts[:] = [each.decode(errors="backslashreplace") for each in found.tolist()]
    return texts
