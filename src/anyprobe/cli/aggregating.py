"""What ``hist`` counts: an aggregation of an expression's values, by other expressions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.expressions import Expression
from anyprobe.cli.handlerplaces import HandlerMaker, place_for
from anyprobe.cli.handlertext import PARAMETERS, HandlerText, check_names
from anyprobe.cli.knownfunctions import knowledge_of

if TYPE_CHECKING:
    from anyprobe.data.aggregations import Aggregation
    from anyprobe.probes.session import Session

KINDS = ("hist", "quantize", "lquantize", "count", "sum", "min", "max", "avg", "stddev")


@dataclass(frozen=True, slots=True)
class Counting:
    """What is counted: the values of an expression, or only how often."""

    kind: str
    of: Expression | None
    by: tuple[Expression, ...] = ()
    numbers: tuple[int, ...] = ()
    """Lower end, upper end and step of ``lquantize``."""
    capacity: int | None = None
    when: Expression | None = None
    """Under which condition."""

    def arm(self, session: "Session", specs: Sequence[str]) -> None:
        """Place the handlers of all specs in one session; they share an aggregation."""
        expressions = [each for each in (self.of, *self.by, self.when) if each is not None]
        knowledge = [knowledge_of(session, spec) for spec in specs]
        for each in knowledge:
            check_names(expressions, each.names, each.reason)
        places = [
            place_for(spec, expressions, (*PARAMETERS, *known.names))
            for spec, known in zip(specs, knowledge, strict=True)
        ]
        things = {"values": self._aggregation()}
        for place, known in zip(places, knowledge, strict=True):
            HandlerMaker(place, expressions, known, self._write, things).put(session)

    def _aggregation(self) -> "Aggregation":
        from anyprobe.data import aggregations

        kinds: dict[str, Any] = {
            each.lower(): getattr(aggregations, each)
            for each in aggregations.__dict__
            if each in {"Hist", "Quantize", "LQuantize", "Count", "Sum", "Min", "Max", "Avg", "Stddev"}
        }
        settings: dict[str, Any] = {"by": tuple(each.label for each in self.by)}
        if self.capacity is not None:
            settings["capacity"] = self.capacity
        name = "hits" if self.of is None else self.of.label
        made: Aggregation = kinds[self.kind](name, *self.numbers, **settings)
        return made

    def _write(self, text: HandlerText, shown: Sequence[str], returns: bool) -> None:  # noqa: ARG002 - a Write
        text.add_condition(self.when)
        text.add("    values.add(")
        if self.of is not None:
            text.add_expression("    ", self.of, ",")
        if self.by:
            text.add("    key=(")
            for each in self.by:
                text.add_expression("    ", each, ",")
            text.add("    )")
        text.add("    )")


def kind_of(text: str, *, has_value: bool) -> tuple[str, tuple[int, ...]]:
    """Read ``--as``: a name, and for ``lquantize`` its lower end, upper end and step behind colons."""
    name, *rest = text.split(":")
    if name not in KINDS:
        raise click.BadParameter(f"{name!r} is none of {', '.join(KINDS)}", param_hint="--as")
    try:
        numbers = tuple(int(each, 0) for each in rest)
    except ValueError:
        numbers = ()
    if (name == "lquantize") != (len(numbers) == 3) or len(rest) != len(numbers):
        raise click.BadParameter("lquantize has three numbers, as lquantize:0:100:10; others none", param_hint="--as")
    if has_value == (name == "count"):
        message = "count counts hits and takes no --of" if has_value else f"{name} needs --of EXPR, the value"
        raise click.UsageError(message)
    return name, numbers
