"""What there is to be read of what handlers emit, and what maps, records and stacks have lost."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from anyprobe.data.aggregates.records import Records
from anyprobe.data.layouts.stacks import StackView
from anyprobe.data.readers.maps import MapView
from anyprobe.data.readers.rings import RingReader
from anyprobe.handlers.frontend.collecting import MARKS


class Undecided(Protocol):
    """Records that depend on speculations."""

    def drain(
        self, readers: Mapping[str, RingReader], *, final: bool, until: int | None
    ) -> Iterator[tuple[str, Records]]:
        """Yield the records that are to be kept, by name."""

    def lost(self) -> dict[str, int]:
        """Return what was given up undecided, by what it is."""


def drained(
    readers: Mapping[str, RingReader], speculative: Callable[[], Undecided], *, final: bool, until: int | None
) -> Iterator[tuple[str, Records]]:
    """Yield what was emitted since the last time, by name: all of it, or what is kept where handlers speculate."""
    if MARKS in readers:
        yield from speculative().drain(readers, final=final, until=until)
        return
    for name, reader in readers.items():
        yield name, reader.drain(final=final, until=until)


def dropped_by(
    views: Mapping[object, object], stacks: StackView | None, speculative: Undecided | None = None
) -> dict[str, dict[str, int]]:
    """Return what was lost, by name and cause."""
    found: dict[str, dict[str, int]] = {}
    if stacks is not None and stacks.dropped:
        found["stacks"] = {"no room": stacks.dropped}
    for key, view in views.items():
        if isinstance(view, MapView):
            causes = {"no room": view.dropped, "contended": view.contended}
            name = view.layout.map.name
        elif isinstance(view, RingReader):
            drops = view.drops()
            causes, name = {"ring full": sum(drops.full.values()), "abandoned": drops.abandoned}, str(key)
        else:
            continue
        if name == MARKS and speculative is not None:
            causes |= speculative.lost()
        if any(causes.values()):
            found[name] = {cause: count for cause, count in causes.items() if count}
    return found
