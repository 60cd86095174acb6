"""Aggregations, maps and records as handlers use them: with which keys, and values of which type."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from anyprobe.data.aggregates.aggregations import Aggregation
from anyprobe.data.layouts import stacks
from anyprobe.data.layouts.keys import KeyKind, KeyShape
from anyprobe.data.readers.maps import Map, MapLayout
from anyprobe.data.readers.tables import TableLayout
from anyprobe.handlers.types.annotations import PointerType, ShownType, Type, u64

if TYPE_CHECKING:
    from anyprobe.core.code import NativeCode
    from anyprobe.data.readers.rings import RingLayout

CALLS = "call"
"""The name of the records of calls."""


class Storage(Protocol):
    """What the compiler knows of an aggregation, a map or a kind of record."""

    @property
    def signature(self) -> str:
        """Everything that the code of its operations depends on, as text."""


class Table(NamedTuple):
    """The storage of one aggregation; equal if it is the same aggregation used in the same way."""

    layout: TableLayout

    @property
    def signature(self) -> str:
        """Everything that the code of an update depends on; the name of the aggregation is not part of it."""
        layout, cell = self.layout, self.layout.aggregation.cell
        extra = [getattr(layout.aggregation, name, None) for name in ("lower", "step", "levels")]
        return (
            f"{layout.aggregation.kind} {','.join(cell.fields)}+{cell.buckets} key ({_shown(layout.shape)}) "
            f"{_sign(signed=layout.signed)} capacity {layout.capacity} rows {layout.rows} {extra}"
        )


class MapTable(NamedTuple):
    """The storage of one map."""

    layout: MapLayout

    @property
    def signature(self) -> str:
        """Everything that the code of its operations depends on."""
        layout = self.layout
        return f"map key ({_shown(layout.shape)}) {_sign(signed=layout.signed)} capacity {layout.map.capacity}"


class Ring(NamedTuple):
    """The storage of one kind of records; ``format`` is how a row is shown, with a place for each field."""

    layout: "RingLayout"
    format: str = ""
    by_clock: bool = False
    """Whether records have ``ctx.now`` as their time; else that of the time stamp counter."""

    @property
    def signature(self) -> str:
        """Everything that the code of emitting depends on."""
        fields = ",".join(f"{field.kind}*{field.size}" for field in self.layout.record.fields)
        layout, clock = self.layout, " by clock" * self.by_clock
        return f"records ({fields}) slots {layout.slots} rings {layout.rings} threads {layout.threads}{clock}"


class EndRecorder(ABC):
    """A handler of one end of calls whose code is written already (``handlers.x86.recorder``)."""

    storage: Ring

    @abstractmethod
    def compiled(self, *, at_jump: bool = False) -> "NativeCode":
        """Return the code; ``at_jump``: where the function ends by a jump to another one."""


class Stacks(NamedTuple):
    """The storage of the stacks of a session; where the kernel takes them, one for each side and depth."""

    of_kernel: bool = False
    depth: int = 0
    """Addresses of a stack at most, 0 where each has as many as it needs."""

    @property
    def signature(self) -> str:
        """Everything that the code of taking a stack depends on."""
        return f"stacks {stacks.PLACES} of {stacks.PLACE_BYTES} {self.of_kernel} {self.depth}"

    @property
    def layout(self) -> "Stacks":
        """Itself: there is one kind."""
        return self

    @property
    def size(self) -> int:
        """Bytes of the region."""
        return stacks.SIZE


@dataclass(frozen=True, eq=False, slots=True)
class CallData:
    """Where the data of calls under way is in the kernel; each call has words of its own. Two are the same if one."""

    capacity: int = 0
    """Calls that can be under way; 0: the usual number."""

    @property
    def signature(self) -> str:
        """Everything that the code depends on."""
        return "calls"


Storages = dict[object, Storage]
"""What the handlers of a session use: by aggregation or map, and by the name of a record."""


def _shown(shape: KeyShape) -> str:
    return ",".join(f"{part.kind}*{part.words}" for part in shape.parts)


def _sign(*, signed: bool) -> str:
    return "signed" if signed else "unsigned"


def is_storage(thing: Any) -> bool:  # noqa: ANN401 - anything that a name can mean
    """Return whether something from outside of a handler is an aggregation or a map."""
    return isinstance(thing, Aggregation | Map)


def key_kind(kind: Type) -> KeyKind:
    """Return what a number of a type is as part of a key."""
    if isinstance(kind, ShownType):
        return kind.label
    if isinstance(kind, PointerType):
        return "address"
    return "signed" if is_signed(kind) else "unsigned"


def is_signed(kind: Type) -> bool:
    """Return whether values of a type are taken as signed when they are kept."""
    return kind != u64
