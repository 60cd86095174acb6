"""Aggregations as handlers use them: with which keys, and values of which signedness."""

from dataclasses import dataclass
from typing import Any

from anyprobe.data.aggregations import Aggregation
from anyprobe.data.keys import KeyPart, KeyShape
from anyprobe.data.tables import TableLayout
from anyprobe.handlers import ir
from anyprobe.handlers.types import Type, u64


@dataclass(frozen=True, slots=True)
class Table:
    """The storage of one aggregation; equal if it is the same aggregation used in the same way."""

    layout: TableLayout

    @property
    def signature(self) -> str:
        """Everything that the code of an update depends on; the name of the aggregation is not part of it."""
        layout, cell = self.layout, self.layout.aggregation.cell
        parts = ",".join(f"{part.kind}*{part.words}" for part in layout.shape.parts)
        extra = [getattr(layout.aggregation, name, None) for name in ("lower", "step", "levels")]
        return (
            f"{layout.aggregation.kind} {','.join(cell.fields)}+{cell.buckets} key ({parts}) "
            f"{'signed' if layout.signed else 'unsigned'} capacity {layout.capacity} rows {layout.rows} {extra}"
        )


def is_storage(thing: Any) -> bool:  # noqa: ANN401 - anything that a name can mean
    """Return whether something from outside of a handler is an aggregation."""
    return isinstance(thing, Aggregation)


def key_shape(parts: tuple[ir.Expr | ir.Buffer, ...], signed: tuple[bool, ...]) -> KeyShape:
    """Return the shape of a key; ``signed`` says so for each part that is a number."""
    return KeyShape(
        tuple(
            KeyPart("string", part.size // ir.WORD)
            if isinstance(part, ir.Buffer)
            else KeyPart("signed" if negative else "unsigned")
            for part, negative in zip(parts, signed, strict=True)
        )
    )


def is_signed(kind: Type) -> bool:
    """Return whether values of a type are taken as signed when they are aggregated."""
    return kind != u64
