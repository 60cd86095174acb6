"""Conditions under which hits wait for Python: compiled, and placed in front of the code that waits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from anyprobe.core.code import InputKind, NativeCode
from anyprobe.core.errors import HandlerError
from anyprobe.handlers.frontend.source import Condition
from anyprobe.probes.specs.spec import parse
from anyprobe.splice.codegen.handlers import rendezvous
from anyprobe.splice.codegen.handlers.facts import HandlerFacts

if TYPE_CHECKING:
    from anyprobe.probes.handlers.decorators import Decorators
    from anyprobe.probes.handlers.handling import Handler


@dataclass(frozen=True, slots=True)
class WaitCondition:
    """One condition, for the places that some specs name."""

    session: "Decorators"
    specs: Sequence[str]
    when: "Handler"

    def check(self) -> None:
        """Raise if it cannot be compiled; nothing is touched."""
        returns, inside = self._where
        code, _ = self.session.handling.compiled(Condition(self.when), returns=returns, inside=inside, specs=self.specs)
        if any(each.kind is InputKind.INSTANCE or each.written for each in code.inputs):
            raise HandlerError("a callback's condition has no ctx.data, and changes nothing")

    def facts(self, waiting: NativeCode, memory: int) -> HandlerFacts:
        """Return what waits where the condition holds; ``memory`` is where it waits."""
        returns, inside = self._where
        facts = self.session.handling.prepared(Condition(self.when), returns=returns, inside=inside, specs=self.specs)
        return replace(facts, code=rendezvous.conditional(facts.code, waiting), storages=(memory, *facts.storages))

    @property
    def _where(self) -> tuple[bool, bool]:
        """Whether all places are returns, and whether there are any but entries and returns."""
        names = {parse(spec).name for spec in self.specs}
        return names == {"return"}, names not in ({"entry"}, {"return"})
