"""What ``hist`` counts: an aggregation of an expression's values, by other expressions."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from anyprobe.cli.handlers.expressions import Expression
from anyprobe.cli.handlers.handlerplaces import HandlerMaker, once_each, place_in
from anyprobe.cli.handlers.handlertext import HandlerText, check_names, uses_returns
from anyprobe.cli.handlers.knownfunctions import knowledge_of

if TYPE_CHECKING:
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.aggregates.aggregations import Aggregation
    from anyprobe.data.snapshots.snapshot import Snapshot

TAILS = "left by a tail jump"
"""Counts calls that end by a jump to another function, where they go on: they have no result and no time yet."""
KINDS = ("hist", "quantize", "lquantize", "count", "sum", "min", "max", "avg", "stddev")


class Counting(NamedTuple):
    """What is counted: the values of an expression, or only how often."""

    kind: str
    of: Expression | None
    by: tuple[Expression, ...] = ()
    numbers: tuple[int, ...] = ()
    """Lower end, upper end and step of ``lquantize``."""
    capacity: int | None = None
    when: Expression | None = None
    """Under which condition."""

    @property
    def _expressions(self) -> list[Expression]:
        return [each for each in (self.of, *self.by, self.when) if each is not None]

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Place the handlers of all specs in one session; they share an aggregation."""
        from anyprobe.data.aggregates.aggregations import Count

        expressions = self._expressions
        knowledge = [knowledge_of(session, spec, expressions) for spec in specs]
        for each in knowledge:
            check_names(expressions, each.names, each.reason)
        places = [
            place_in(session, spec, expressions, known.names) for spec, known in zip(specs, knowledge, strict=True)
        ]
        things = {"values": self._aggregation()}
        if uses_returns(expressions):
            things["tails"] = Count(TAILS)
        with once_each(session):
            for place, known in zip(places, knowledge, strict=True):
                tails = "" if known.has_parts and known.reads_result(expressions) else "tails.add()"
                HandlerMaker(place, expressions, known, partial(self._write, tails), things).put(session)

    @property
    def is_stacked(self) -> bool:
        """Whether there is a value for each stack that adds up over these."""
        from anyprobe.exporters.stacked import KINDS, is_stack

        return self.kind in KINDS and len(self.by) == 1 and is_stack(self.by[0].label)

    def _aggregation(self) -> "Aggregation":
        from anyprobe.data.aggregates import aggregations

        kinds: dict[str, Any] = {
            each.lower(): getattr(aggregations, each)
            for each in ("Hist", "Quantize", "LQuantize", "Count", "Sum", "Min", "Max", "Avg", "Stddev")
        }
        settings: dict[str, Any] = {"by": tuple(each.label for each in self.by)}
        if self.capacity is not None:
            settings["capacity"] = self.capacity
        name = "hits" if self.of is None else self.of.label
        made: Aggregation = kinds[self.kind](name, *self.numbers, **settings)
        return made

    def seen(self, snapshot: "Snapshot") -> "Snapshot":
        """Return results with how many calls have none, apart from the aggregation that was asked for."""
        if not uses_returns(self._expressions):
            return snapshot
        tails = sum(each.total.count for each in snapshot.aggregations if each.name == TAILS)
        rest = tuple(each for each in snapshot.aggregations if each.name != TAILS)
        if self.when is not None:  # it is not known of which calls the condition was told not to hold
            return replace(snapshot, aggregations=rest, tail_exits=tails)
        learning = min(sum(site.learning for site in snapshot.sites), tails)
        return replace(snapshot, aggregations=rest, tail_exits=tails - learning, learning=learning)

    def _write(self, tails: str, text: HandlerText, shown: Sequence[str], returns: bool) -> None:  # noqa: ARG002 - a Write
        if uses_returns(self._expressions):
            text.add_condition_of_calls(self.when, tails)
        else:
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
    """Read ``--as``: a name, and for ``lquantize`` its lower end, upper end and step, separated by colons."""
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
