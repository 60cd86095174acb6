"""Maps in shared memory that handlers of all threads set, read and delete from, without locks.

The algorithm is Michael's list-based hash table (SPAA 2002), with version numbers instead of hazard pointers. Each
bucket is a list of nodes. A *word* that leads to a node holds its number (from 1; 0 ends the list), a mark and a
version that every change of the word increases. A node is such a word (its *link*, marked when the node is dead), a
value and the words of its key.

- *Look up*: go along the list. After a node's link, value and key have been read, the word that led to it is read
  again. If that is unchanged, version included, the node was in the list all that time, so what was read belongs
  together; otherwise begin anew. A dead node is taken out of the list by the one who meets it and wins the ``cmpxchg``
  of the word in front, and only that one puts it on the list of free nodes.
- *Set*: where the key is there, link and value are compared and exchanged together (``cmpxchg16b``): a node that has
  died or serves another key by now has another link. Where it is not, a free node is filled and becomes the first of
  its bucket, if the bucket's word is still the one from which the look-up began. New nodes come in nowhere else, so a
  key that was not there then is not there now, and no key is there twice.
- *Increase*: a set to the sum with the value that was read; an exchange fails where another thread was faster.
- *Delete*: the mark is set by ``cmpxchg16b`` of link and value, which is the moment of the deletion, and returns the
  value that was deleted. The next thread that passes takes the node out of the list.

Why that holds under signals and many threads: no step waits for another. A signal handler that interrupts an operation
finds a list that is whole at each instruction, and what it changes makes the interrupted ``cmpxchg`` fail and begin
anew, exactly as if it were another thread. If it never returns (``siglongjmp``), a dead node is taken out by others,
and a free node that was just being filled is lost, which costs room for one key. A version returns to an old value
after 2**31 changes of one word: a thread would have to sleep so long between two instructions, and wake up at exactly
that number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from anyprobe.core.errors import TargetError, UsageError
from anyprobe.data.aggregates.contents import ByKey
from anyprobe.data.layouts.cells import Key
from anyprobe.data.layouts.keys import KeyShape, Names, Place

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

FREE = 0
"""Head: the word that leads to the free nodes."""
USED = 64
"""Head: nodes handed out for the first time, changed by ``lock xadd``; may exceed the number of nodes."""
DROPPED = 128
"""Head: values that found no free node."""
CONTENDED = 136
"""Head: operations given up after too many steps: a ``set`` had no effect, a ``get`` or ``delete`` found nothing."""
HEAD_BYTES = 256
NUMBER_MASK = 0xFFFFFFFF
MARK = 1 << 32
ONE_VERSION = 1 << 33
NODE_LINK = 0
NODE_VALUE = 8
NODE_KEY = 16
INSERTING = 64
"""Nodes beyond the capacity, for those who take one before they know that they need it."""
STEPS = 1024
"""Nodes that one operation looks at, at most."""
_ROUNDS = 8
"""How often what changed meanwhile is read again together with all else that did."""
_TRIES = 200_000
"""How often one list is read before it is said that it cannot be; some 0.2 s."""


_SHOWN = {"stack": "stack", "func": "func", "ptr": "address"}
_VALUES = frozenset({*_SHOWN, "i64", "u64"})


class ItemsView(Protocol):
    """What one map holds in one process, or in the kernel."""

    def items(self) -> dict[Key, int | str]:
        """Return what is there."""


class Map(ByKey[int | str]):
    """Values of 64 bits by key, shared by all threads of the target.

    For what begins in one place and ends in another: ``by`` names the parts of the key, ``capacity`` is the number of
    keys that are there at one time. A ``set`` without room is counted as dropped.
    """

    def __init__(
        self, name: str = "", *, by: Sequence[str] = (), capacity: int = 4096, value: object = None, shown: bool = True
    ) -> None:
        """Declare it; memory is taken when a handler that uses it is placed.

        Args:
            name: by which ``snapshot`` and scripts show it.
            by: the names of the key's parts.
            capacity: the most keys at one time.
            value: the type of the values, where that is known: ``stack``, ``func`` and ``ptr`` are shown by name.
            shown: whether scripts print it at their end.
        """
        self.name = name or "map"
        self.by = (by,) if isinstance(by, str) else tuple(by)
        if capacity < 1:
            raise UsageError(f"{self.name}: a capacity of {capacity} holds nothing")
        self.capacity = capacity
        kind = str(getattr(value, "name", value or ""))
        self.value = _SHOWN.get(kind, "")
        """How values are shown: as a ``stack``, a ``func``, a ``gotype``, an ``address``, or as they are."""
        self.signed = kind == "i64"
        """Whether values have a sign, for handlers that look them up before one has set any."""
        self.shown = shown
        if value is not None and kind not in _VALUES:
            raise UsageError(f"{self.name}: values of type {kind}; {', '.join(sorted(_VALUES))} are possible")
        self.views: list[ItemsView] = []
        """What it holds, in each process where it is in use; the session puts them here."""

    def __repr__(self) -> str:
        """Return the name, the parts of keys, and the first values by key."""
        return self._shown(f"map {self.name!r} by {', '.join(self.by)}")

    def read(self) -> dict[Key, int | str]:
        """Return what is there at this moment; see ``items``."""
        return self.items()

    def _only_in_handlers(self, what: str) -> NoReturn:
        raise UsageError(f"{self.name}.{what}(…) is for handlers: they run in the target, this is the controller")

    def get(self, key: tuple[object, ...]) -> NoReturn:  # noqa: ARG002 - what handlers write
        """Return the value of a key, missing if there is none; only inside of handlers, where it is compiled.

        Args:
            key: a tuple, as long as ``by``.
        """
        self._only_in_handlers("get")

    def set(self, key: tuple[object, ...], value: int) -> NoReturn:  # noqa: ARG002 - what handlers write
        """Set the value of a key; only inside of handlers, where it is compiled.

        Args:
            key: a tuple, as long as ``by``.
            value: 64 bits.
        """
        self._only_in_handlers("set")

    def increase(self, key: tuple[object, ...], by: int = 1) -> NoReturn:  # noqa: ARG002 - what handlers write
        """Add to the value of a key, 0 at first, and return the sum; only inside of handlers.

        No two threads get the same sum: it numbers what happens. Missing where there is no room for the key.

        Args:
            key: a tuple, as long as ``by``.
            by: what is added, 64 bits.
        """
        self._only_in_handlers("increase")

    def delete(self, key: tuple[object, ...]) -> NoReturn:  # noqa: ARG002 - what handlers write
        """Delete a key and return its value, missing if there is none; only inside of handlers.

        Args:
            key: a tuple, as long as ``by``.
        """
        self._only_in_handlers("delete")

    def items(self) -> dict[Key, int | str]:
        """Return what is there at this moment, in all processes together; the last process wins."""
        return {key: value for view in self.views for key, value in view.items().items()}


@dataclass(frozen=True, slots=True)
class MapLayout:
    """Where everything is in the region of one map. Zeroed memory is an empty map."""

    map: Map
    shape: KeyShape
    signed: bool = True
    """Whether values are signed 64-bit numbers."""

    def __post_init__(self) -> None:
        """Refuse maps without a key."""
        if not self.shape.words:
            raise UsageError(f"{self.map.name}: a map needs a key")

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.map.capacity + INSERTING

    @property
    def buckets(self) -> int:
        """Number of buckets, a power of two."""
        return 1 << (2 * self.map.capacity - 1).bit_length()

    @property
    def buckets_offset(self) -> int:
        """Offset of the buckets in the region."""
        return HEAD_BYTES

    @property
    def node_bytes(self) -> int:
        """Bytes of a node; ``cmpxchg16b`` needs link and value on a multiple of 16."""
        return NODE_KEY + 8 * self.shape.words + 15 & ~15

    @property
    def nodes_offset(self) -> int:
        """Offset in the region at which node 0 would be."""
        return self.buckets_offset + 8 * self.buckets + 63 & ~63

    @property
    def size(self) -> int:
        """Bytes of the region."""
        return self.nodes_offset + (self.nodes + 1) * self.node_bytes + 4095 & ~4095


class MapView:
    """One map in one process, as a live view of shared memory; reading never disturbs the target."""

    def __init__(self, region: memoryview, layout: MapLayout) -> None:
        """View ``region``, which begins with the map."""
        self._words = np.frombuffer(region, np.uint64, count=layout.size // 8)
        self.layout = layout
        self.names: Names | None = None
        """How addresses of code in keys are shown."""

    @property
    def dropped(self) -> int:
        """Values that were not set since there was no room."""
        return int(self._words[DROPPED // 8])

    @property
    def contended(self) -> int:
        """Operations that were given up since others changed the same keys all the time."""
        return int(self._words[CONTENDED // 8])

    def items(self) -> dict[Key, int | str]:
        """Return what is there: each key that was there all the time, and of the others those that were met.

        Raises ``TargetError`` where a list changes faster than it can be read.
        """
        layout = self.layout
        first = layout.buckets_offset // 8
        places = np.arange(first, first + layout.buckets)
        parts: list[NDArray[np.uint64]] = []
        for _ in range(_ROUNDS):
            places, rows = self._walk(places)
            parts.append(rows)
            if not len(places):
                break
        step = layout.node_bytes // 8
        busy = [row for place in places.tolist() for row in self._walk_one(place)]
        rows = np.concatenate([*parts, np.array(busy, np.uint64).reshape(-1, step)])
        numbers = rows[:, NODE_VALUE // 8].copy()
        plain = (numbers.view(np.int64) if layout.signed else numbers).tolist()
        if layout.map.value == "address":
            plain = [Place(each, self.names("func", each) if self.names is not None else "") for each in plain]
        elif layout.map.value and self.names is not None:
            plain = [self.names(layout.map.value, each) for each in plain]
        keys = rows[:, NODE_KEY // 8 : NODE_KEY // 8 + layout.shape.words]
        return dict(zip(layout.shape.decode(keys, self.names), plain, strict=True))

    def _walk_one(self, place: int) -> list[list[int]]:
        """Return the nodes of one bucket, whose list changes while all are read at a time.

        A step takes a fraction of a microsecond here, where it takes many in ``_walk``.
        """
        words, layout = self._words.data, self.layout
        step, base = layout.node_bytes // 8, layout.nodes_offset // 8
        for _ in range(_TRIES):
            found: list[list[int]] = []
            before, word = place, words[place]
            expected = word
            for _ in range(layout.nodes):
                number = word & NUMBER_MASK
                if not 0 < number <= layout.nodes:  # what is out of bounds was not written by us
                    return found
                node = base + number * step
                row = words[node : node + step].tolist()
                if words[before] != expected:
                    break
                word = row[0]
                if not word & MARK:
                    found.append(row)
                    before, expected = node, word
            else:
                return []  # it leads back to itself: the target has overwritten it
        raise TargetError(f"{layout.map.name}: the target changes it faster than it can be read")

    def _walk(self, places: "NDArray[np.int64]") -> "tuple[NDArray[np.int64], NDArray[np.uint64]]":
        """Go along the lists of some buckets, all at a time, one node each in a round.

        Returns the buckets whose lists changed meanwhile, and the nodes of the others.
        """
        step, base = self.layout.node_bytes // 8, self.layout.nodes_offset // 8
        changed: list[NDArray[np.int64]] = []
        found: list[tuple[NDArray[np.int64], NDArray[np.uint64]]] = []
        before, words = places, self._words[places]
        expected = words
        for _ in range(self.layout.nodes):
            numbers = words & np.uint64(NUMBER_MASK)
            # what is out of bounds was not written by us
            there = (numbers != 0) & (numbers <= np.uint64(self.layout.nodes))
            places, before, words, expected = places[there], before[there], words[there], expected[there]
            if not len(places):
                break
            nodes = base + (words & np.uint64(NUMBER_MASK)).astype(np.int64) * step
            rows = self._words[nodes[:, None] + np.arange(step)]
            same = self._words[before] == expected
            changed.append(places[~same])
            places, before, expected, nodes, rows = (part[same] for part in (places, before, expected, nodes, rows))
            alive = (rows[:, 0] & np.uint64(MARK)) == 0
            found.append((places[alive], rows[alive]))
            # a dead node's link does not change while it is in the list: the word before it speaks for both
            before, expected = np.where(alive, nodes, before), np.where(alive, rows[:, 0], expected)
            words = rows[:, 0]
        else:
            changed.append(places)
        again = np.concatenate([np.zeros(0, np.int64), *changed])
        if not found:
            return again, np.zeros((0, step), np.uint64)
        rows = np.concatenate([rows for _, rows in found])
        owners = np.concatenate([owners for owners, _ in found])
        return again, rows[~np.logical_or.reduce([owners == place for place in again.tolist()])] if len(again) else rows
