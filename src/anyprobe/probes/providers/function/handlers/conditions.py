"""Conditions under which hits wait for Python: compiled, and placed before the code in which the thread waits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from anyprobe.core.code import InputKind, NativeCode
from anyprobe.core.errors import HandlerError
from anyprobe.handlers.frontend.source import Condition
from anyprobe.probes.providers.function.handlers.points import Handler, HandlerAt, Point
from anyprobe.splice.codegen.handlers import rendezvous
from anyprobe.splice.codegen.handlers.facts import HandlerFacts

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.handlers.handling import Handling
    from anyprobe.probes.specs.parts import Spec


@dataclass(frozen=True, slots=True)
class WaitCondition:
    """One condition, for the places that some specs name."""

    handling: "Handling"
    specs: "Sequence[Spec]"
    when: Handler

    def check(self) -> None:
        """Raise if it cannot be compiled; nothing is touched."""
        code, _ = self.handling.compiled(self._at)
        if any(each.kind is InputKind.INSTANCE or each.written for each in code.inputs):
            raise HandlerError("a callback's condition has no ctx.data, and changes nothing")

    def facts(self, waiting: NativeCode, memory: int) -> HandlerFacts:
        """Return what waits where the condition holds; ``memory`` is where it waits."""
        facts = self.handling.prepared(self._at)
        return replace(facts, code=rendezvous.conditional(facts.code, waiting), storages=(memory, *facts.storages))

    @property
    def _at(self) -> HandlerAt:
        """The condition, where all specs have something in common: entries, returns, or else any instructions."""
        points = {"entry": Point.ENTRY, "return": Point.RETURN}
        names = {spec.name for spec in self.specs}
        point = points.get(next(iter(names)), Point.BEFORE) if len(names) == 1 else Point.BEFORE
        return HandlerAt(function=Condition(self.when), point=point, specs=self.specs)
